"""A synchronous HTTP client behind the asynchronous interface, so that the application's settings still apply."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
from anyio import to_thread

__all__ = ["ThreadedTransport"]


class ThreadedTransport(httpx2.AsyncBaseTransport):
    """Sends through `client`, each blocking step in a worker thread. The caller closes the client."""

    def __init__(self, client: httpx2.Client) -> None:
        self._client = client

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = await request.aread()
        plain = self._client.build_request(
            request.method, request.url, headers=request.headers, content=body, extensions=request.extensions
        )
        response = await to_thread.run_sync(
            lambda: self._client.send(plain, stream=True), abandon_on_cancel=True
        )
        return httpx2.Response(
            response.status_code,
            headers=response.headers,
            stream=_Threaded(response),
            extensions=response.extensions,
        )


class _Threaded(httpx2.AsyncByteStream):
    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self._parts = response.iter_raw()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (part := await to_thread.run_sync(next, self._parts, None, abandon_on_cancel=True)) is not None:
            yield part

    async def aclose(self) -> None:
        await to_thread.run_sync(self._response.close)
