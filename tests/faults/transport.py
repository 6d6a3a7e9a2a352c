"""The client's side of the proxy: knows when nothing of a response can come any more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
from faults.exchange import Passage
from faults.proxy import FaultProxy

__all__ = ["WatchedTransport"]


class _Asked:
    """A request for an answer. Mutable: `read_bytes` of the response's body, `is_over`."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.read_bytes = 0
        self.is_over = False


class WatchedTransport(httpx2.AsyncHTTPTransport):
    """Real connections to `proxy` (or to another server, of which it knows nothing).

    Mutable: `_asked`, the requests so far.
    """

    def __init__(self, proxy: FaultProxy | Any) -> None:
        super().__init__(verify=False)
        self._proxy = proxy if isinstance(proxy, FaultProxy) else None
        self._asked: list[_Asked] = []

    @property
    def open(self) -> list[_Asked]:
        """Requests that somebody still waits for."""
        return [asked for asked in self._asked if not asked.is_over]

    @property
    def is_silent(self) -> bool:
        """Every request that is waited for is silent, and all that was sent before has been read."""
        return all(map(self._silent, self.open))

    def _silent(self, asked: _Asked) -> bool:
        if self._proxy is None:
            return False
        if asked.number >= len(self._proxy.passages):
            return self._proxy.is_hole
        passage: Passage = self._proxy.passages[asked.number]
        return passage.silent and passage.sent_bytes == asked.read_bytes

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self._proxy is None or request.method != "POST":
            return await super().handle_async_request(request)
        asked = _Asked(self._proxy.asked)
        self._proxy.asked += 1
        self._asked.append(asked)
        try:
            response = await super().handle_async_request(request)
        except BaseException:
            asked.is_over = True
            raise
        response.stream = _Body(response.stream, asked)
        return response


class _Body(httpx2.AsyncByteStream):
    def __init__(self, stream: Any, asked: _Asked) -> None:
        self._stream = stream
        self._asked = asked

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for data in self._stream:
                self._asked.read_bytes += len(data)
                yield data
        finally:
            self._asked.is_over = True

    async def aclose(self) -> None:
        self._asked.is_over = True
        await self._stream.aclose()
