"""The client's side of a connection: how many bytes of each response it has read, and which it still waits for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2

__all__ = ["Asked", "CountingTransport"]


class Asked:
    """A request for an answer. Mutable: `read_bytes` of the response's body, `is_over`."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.read_bytes = 0
        self.is_over = False


class CountingTransport(httpx2.AsyncHTTPTransport):
    """Real connections. Mutable: `asked`, the POST requests so far."""

    def __init__(self) -> None:
        super().__init__(verify=False)  # reading the certificates of the world takes longer than a test
        self.asked: list[Asked] = []

    @property
    def open(self) -> list[Asked]:
        """Requests that somebody still waits for."""
        return [asked for asked in self.asked if not asked.is_over]

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method != "POST":
            return await super().handle_async_request(request)
        asked = self.begin()
        self.asked.append(asked)
        try:
            response = await super().handle_async_request(request)
        except BaseException:
            asked.is_over = True
            raise
        response.stream = _Body(response.stream, asked)
        return response

    def begin(self) -> Asked:
        return Asked(len(self.asked))


class _Body(httpx2.AsyncByteStream):
    def __init__(self, stream: Any, asked: Asked) -> None:
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
