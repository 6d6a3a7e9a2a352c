"""How the server endpoint of a synchronous client sends its requests, in the background loop."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import httpx2
from anyio import to_thread
from openai import AsyncOpenAI

from disco.endpoints.openai_api.sdk_client import send_counted

if TYPE_CHECKING:
    from openai._models import FinalRequestOptions

    from disco.client.sync.sync_client import SyncRouting

__all__ = ["Connections", "SyncServerCalls"]


_MAKE_KEYS = ("_api_key_provider", "_azure_ad_token_provider", "_provider_runtime")


class Connections:
    """The asynchronous connections of a synchronous client and its copies. Made at first use, in each process anew.

    Mutable: all.
    """

    def __init__(self) -> None:
        self._http: httpx2.AsyncClient | None = None
        self._process = 0

    def client(self) -> httpx2.AsyncClient:
        """Return the HTTP client. A forked child gets its own: the parent's belong to the parent's event loop."""
        if self._http is None or self._process != os.getpid():
            sdk = AsyncOpenAI(api_key="-", base_url="http://server.invalid", _enforce_credentials=False)
            self._http, self._process = sdk._client, os.getpid()  # noqa: SLF001 - with the SDK's own settings
        return self._http

    async def aclose(self) -> None:
        """Close all connections."""
        if self._http is not None and self._process == os.getpid():
            await self._http.aclose()


class _Unused(httpx2.AsyncBaseTransport):
    """Stands in until the connections are needed: making them reads all certificates of the machine."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        raise httpx2.UnsupportedProtocol("the synchronous client sends its requests itself", request=request)


class SyncServerCalls(AsyncOpenAI):
    """An asynchronous client that asks a synchronous one, at every request, for all that decides the request.

    So the key, the address, the headers and the hooks are those that the synchronous client has at that time. The
    request goes out asynchronously, unless the application has its own HTTP client or way of signing; then the
    synchronous client sends it, in a worker thread.

    Attributes:
        sends_elsewhere: the synchronous client sends the requests.
    """

    def __init__(self, owner: SyncRouting, connections: Connections, *, has_own_http: bool) -> None:
        of: Any = owner
        self._of = of
        self._connections = connections
        self.sends_elsewhere = has_own_http or any(
            getattr(owner, name, None) is not None
            for name in ("_workload_identity_auth", "_provider_runtime")
        )
        super().__init__(
            api_key="",
            base_url=str(self._of.base_url),
            max_retries=0,
            http_client=httpx2.AsyncClient(transport=_Unused()),
            _enforce_credentials=False,
        )

    @property
    def _client(self) -> httpx2.AsyncClient:
        return self._unused if self.sends_elsewhere else self._connections.client()

    @_client.setter
    def _client(self, unused: httpx2.AsyncClient) -> None:  # by the SDK's constructor
        self._unused = unused

    @property
    def base_url(self) -> httpx2.URL:
        """The synchronous client's address."""
        return self._of.base_url  # type: ignore[no-any-return]

    @base_url.setter
    def base_url(self, url: httpx2.URL | str) -> None:
        pass  # by the SDK's constructor

    async def _prepare_options(self, options: FinalRequestOptions) -> FinalRequestOptions:
        hook: Any = self._of._prepare_options  # noqa: SLF001 - our own client, here and below
        prepared: FinalRequestOptions = await self._called(hook, options)
        return prepared

    def _build_request(self, options: FinalRequestOptions, *, retries_taken: int = 0) -> httpx2.Request:
        request: httpx2.Request = self._of._build_request(options, retries_taken=retries_taken)  # noqa: SLF001
        return request

    async def _prepare_request(self, request: httpx2.Request) -> None:
        await self._called(self._of._prepare_request, request)  # noqa: SLF001

    async def _called(self, hook: Callable[[Any], Any], argument: object) -> Any:
        """Call a hook; in a worker thread where a function or a class of the application's may block."""
        makes_keys = any(getattr(self._of, name, None) is not None for name in _MAKE_KEYS)
        if makes_keys or hook.__module__.partition(".")[0] not in ("openai", "disco"):
            return await to_thread.run_sync(hook, argument)
        return hook(argument)

    async def _send_request(self, request: httpx2.Request, *, stream: bool, **more: Any) -> httpx2.Response:
        send = self._send_in_thread if self.sends_elsewhere else self._send
        return await send_counted(send, request, stream=stream, **more)

    async def _send(self, request: httpx2.Request, *, stream: bool, **more: Any) -> httpx2.Response:
        return await self._client.send(request, stream=stream, **more)

    async def _send_in_thread(self, request: Any, *, stream: bool, **more: Any) -> httpx2.Response:
        send = self._of._send_uncounted  # noqa: SLF001 - our own client
        response = await to_thread.run_sync(
            lambda: send(request, stream=stream, **more), abandon_on_cancel=True
        )
        sent = httpx2.Request(
            request.method, str(request.url), headers=request.headers.raw, content=request.read()
        )
        head = httpx2.Headers(response.headers.raw)
        if response.is_closed:  # read and decoded already
            for name in ("content-encoding", "content-length", "transfer-encoding"):
                head.pop(name, None)
        same = httpx2.Response(
            response.status_code,
            request=sent,
            headers=head,
            stream=_Threaded(response),
            extensions=dict(response.extensions),
        )
        if not stream:
            await same.aread()
        return same


class _Threaded(httpx2.AsyncByteStream):
    """The body of a synchronous response; each blocking step runs in a worker thread."""

    def __init__(self, response: Any) -> None:
        self._response = response
        # A transport for tests may have read the body already, and then nothing is left to read raw.
        self._parts = iter([response.content]) if response.is_closed else response.iter_raw()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (part := await to_thread.run_sync(next, self._parts, None, abandon_on_cancel=True)) is not None:
            yield part

    async def aclose(self) -> None:
        await to_thread.run_sync(self._response.close)
