"""Routed streams for callers that parse an HTTP response: they get objects directly, not made from bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeVar

from openai import AsyncStream, Stream
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent

from disco.client.chat.http_encoding import EventStream
from disco.client.chat.routed_results import LiveSource, RouteOfSource
from disco.client.sync.sync_stream import FetchedBytes

__all__ = ["ParsedStream", "quick_stream_class"]

T = TypeVar("T")


class ParsedStream(AsyncStream[T], RouteOfSource):
    """What `parse()` returns for a routed response: the chunks or events that its bytes encode.

    If the bytes of the response are already being read, the SDK parses them as usual. Mutable: `_waiting`, the
    items fetched but not yet returned.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._events: EventStream | None = None
        self._waiting: deque[Any] = deque()
        if isinstance(self.response.stream, EventStream):
            self._answer_source = LiveSource(self.response.stream.live)
        if isinstance(self.response.stream, EventStream) and not self.response.is_stream_consumed:
            self._events = self.response.stream
            self.response.is_stream_consumed = True

    # Plain methods, not a generator: see `DiscoStream`.
    def __aiter__(self) -> AsyncIterator[T]:
        return self if self._events is not None else super().__aiter__()

    async def __anext__(self) -> T:
        if self._events is None:
            return await super().__anext__()
        if not self._waiting:
            try:
                self._waiting.extend(await self._events.next_objects())
            except BaseException:
                await self.response.aclose()
                raise
            if not self._waiting:
                await self.response.aclose()
                raise StopAsyncIteration
        made = self._events.made(self._waiting.popleft())
        return _as_parsed(self, made) if type(made) is dict else made  # type: ignore[no-any-return]


class ParsedSyncStream(Stream[T], RouteOfSource):
    """See `ParsedStream`."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._events: FetchedBytes | None = None
        self._waiting: deque[Any] = deque()
        if isinstance(self.response.stream, FetchedBytes):
            self._answer_source = LiveSource(self.response.stream.live)
        if isinstance(self.response.stream, FetchedBytes) and not self.response.is_stream_consumed:
            self._events = self.response.stream
            self.response.is_stream_consumed = True

    def __iter__(self) -> Iterator[T]:
        return self if self._events is not None else super().__iter__()

    def __next__(self) -> T:
        if self._events is None:
            return super().__next__()
        if not self._waiting:
            try:
                self._waiting.extend(self._events.next_objects())
            except BaseException:
                self.response.close()
                raise
            if not self._waiting:
                self.response.close()
                raise StopIteration
        made = self._events.made(self._waiting.popleft())
        return _as_parsed(self, made) if type(made) is dict else made  # type: ignore[no-any-return]


def _as_parsed(stream: Any, data: object) -> Any:
    """Return what the SDK makes of an event's JSON."""
    return stream._client._process_response_data(  # noqa: SLF001 - as its own streams do it
        data=data,
        cast_to=stream._cast_to,  # noqa: SLF001
        response=stream.response,
    )


def quick_stream_class(stream_cls: Any) -> Any:
    """Return the class that parses a routed answer in place of `stream_cls`; `stream_cls` itself if there is none."""
    return _QUICK.get(stream_cls, stream_cls)


_QUICK: dict[Any, Any] = {
    Stream[ChatCompletionChunk]: ParsedSyncStream[ChatCompletionChunk],
    Stream[ResponseStreamEvent]: ParsedSyncStream[ResponseStreamEvent],
    AsyncStream[ChatCompletionChunk]: ParsedStream[ChatCompletionChunk],
    AsyncStream[ResponseStreamEvent]: ParsedStream[ResponseStreamEvent],
}
