"""The client's side of a connection: how many bytes of each response it has read, and which it still waits for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx2

__all__ = ["Asked", "CountingTransport"]


@dataclass
class Asked:
    """A request for an answer: its number, the bytes read of its response's body, and whether it is over."""

    number: int
    read_bytes: int = 0
    is_over: bool = False


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
        asked = Asked(len(self.asked))
        self.asked.append(asked)
        try:
            response = await super().handle_async_request(request)
        except BaseException:
            asked.is_over = True
            raise
        response.stream = _Body(response.stream, asked)
        return response


class _Body(httpx2.AsyncByteStream):
    def __init__(self, stream: Any, asked: Asked) -> None:
        self._stream, self._asked = stream, asked

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
