"""Routed streams for those who asked for an HTTP response and parse it: objects all the way, no bytes between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeVar

from openai import AsyncStream, Stream
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent

from disco.client.sync_stream import FetchedBytes
from disco.client.wire import EventStream

__all__ = ["ParsedStream", "quick_stream_class"]

T = TypeVar("T")


class ParsedStream(AsyncStream[T]):
    """What `parse()` gives of a routed response: the chunks or events that its bytes say.

    One whose bytes are being read already is parsed by the SDK, as always.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        if isinstance(self.response.stream, EventStream) and not self.response.is_stream_consumed:
            self._iterator = self._objects(self.response.stream)

    async def _objects(self, events: EventStream) -> AsyncIterator[T]:
        self.response.is_stream_consumed = True
        try:
            while batch := await events.next_objects():
                for item in batch:
                    yield _as_parsed(self, item) if type(item) is dict else item
        finally:
            await self.response.aclose()


class ParsedSyncStream(Stream[T]):
    """See `ParsedStream`."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        if isinstance(self.response.stream, FetchedBytes) and not self.response.is_stream_consumed:
            self._iterator = self._objects(self.response.stream)

    def _objects(self, fetched: FetchedBytes) -> Iterator[T]:
        self.response.is_stream_consumed = True
        try:
            while batch := fetched.next_objects():
                for item in batch:
                    yield _as_parsed(self, item) if type(item) is dict else item
        finally:
            self.response.close()


def _as_parsed(stream: Any, data: object) -> Any:
    """What the SDK makes of an event's JSON."""
    return stream._client._process_response_data(  # noqa: SLF001 - as its own streams do it
        data=data,
        cast_to=stream._cast_to,  # noqa: SLF001
        response=stream.response,
    )


def quick_stream_class(stream_cls: Any) -> Any:
    """The class to parse a routed answer with instead of the SDK's; `stream_cls` itself where that is another."""
    return _QUICK.get(stream_cls, stream_cls)


_QUICK: dict[Any, Any] = {
    Stream[ChatCompletionChunk]: ParsedSyncStream[ChatCompletionChunk],
    Stream[ResponseStreamEvent]: ParsedSyncStream[ResponseStreamEvent],
    AsyncStream[ChatCompletionChunk]: ParsedStream[ChatCompletionChunk],
    AsyncStream[ResponseStreamEvent]: ParsedStream[ResponseStreamEvent],
}
