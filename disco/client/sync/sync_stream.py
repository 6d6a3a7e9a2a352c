"""Streams for synchronous applications. Their text is fetched from the background loop in batches."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar

import httpx2
from openai.types.chat import ChatCompletionChunk

from disco.client.chat.answer_stream import SessionStream
from disco.client.chat.http_encoding import EventStream
from disco.client.chat.routed_results import LiveSource
from disco.client.chat.stream_types import DiscoSyncStream
from disco.client.sync.portal import Portal
from disco.events import Delta

if TYPE_CHECKING:
    from disco.client.chat.answer_stream import Answer
    from disco.session.records.answer_progress import AnswerProgress
    from disco.session.records.assist_record import AssistState
    from disco.session.records.route_record import RouteRecord

__all__ = ["FetchedBytes", "SyncSessionStream", "sync_response"]

T = TypeVar("T")


class SyncSessionStream(DiscoSyncStream):
    """An `openai.Stream[ChatCompletionChunk]`; see `SessionStream`."""

    # Does not call the base class's __init__, on purpose: no single HTTP response is behind this stream.
    def __init__(self, stream: SessionStream, portal: Portal) -> None:
        self._stream = stream
        self._portal = portal
        # --- mutable from here on
        self._waiting: deque[Delta | ChatCompletionChunk] = deque()  # fetched, not yet returned
        self._source: Iterator[ChatCompletionChunk] | None = None  # set by an instrument

    @property
    def route(self) -> RouteRecord:
        """See `SessionStream.route`."""
        return self._stream.route

    @property
    def _answer_source(self) -> LiveSource:
        return self._stream._answer_source  # noqa: SLF001 - our own stream

    @property
    def writer(self) -> str | None:
        """See `SessionStream.writer`."""
        return self._stream.writer

    @property
    def buffered_tokens(self) -> int:
        """See `SessionStream.buffered_tokens`. Items fetched together with the last chunk are not counted."""
        return self._stream.buffered_tokens

    @property
    def progress(self) -> AnswerProgress:
        """See `SessionStream.progress`; `buffered_tokens` is as in this class."""
        return self._stream.progress

    @property
    def assist(self) -> AssistState | None:
        """See `SessionStream.assist`."""
        return self._stream.assist

    @cached_property
    def response(self) -> httpx2.Response:  # type: ignore[override]
        """See `SessionStream.response`."""
        request = httpx2.Request("POST", "disco://session/chat/completions")
        kind = {"content-type": "text/event-stream; charset=utf-8"}
        response = httpx2.Response(
            200, request=request, headers=kind, stream=_Closes(self._stream, self._portal)
        )
        response.is_closed = self._stream.response.is_closed
        return response

    # Plain methods, not a generator: a generator would hold a reference to the stream, which hides that it was dropped.
    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ChatCompletionChunk:
        return self._next() if self._source is None else next(self._source)

    @property
    def _iterator(self) -> Iterator[ChatCompletionChunk]:
        """See `SessionStream`."""
        if self._source is None:
            self._source = self.__stream__()
        return self._source

    @_iterator.setter
    def _iterator(self, source: Iterator[ChatCompletionChunk]) -> None:
        self._source = source

    def __stream__(self) -> Iterator[ChatCompletionChunk]:
        with contextlib.suppress(StopIteration):
            while True:
                yield self._next()

    def _next(self) -> ChatCompletionChunk:
        if not self._waiting:
            self._waiting = deque(self._portal.run(self._stream._next_batch))  # noqa: SLF001 - our own stream
            if not self._waiting:
                self._close_response()
                raise StopIteration
        return self._stream._hand_out(self._waiting.popleft())  # noqa: SLF001

    def close(self) -> None:
        """Stop the answer at any stage and return once no task of it runs. Idempotent."""
        self._portal.run(self._stream.close)
        self._waiting.clear()
        self._close_response()

    def _close_response(self) -> None:
        if "response" in self.__dict__:
            self.response.is_closed = True


class _Closes(httpx2.SyncByteStream):
    def __init__(self, stream: SessionStream, portal: Portal) -> None:
        self._stream = stream
        self._portal = portal

    def __iter__(self) -> Iterator[bytes]:
        return iter(())

    def close(self) -> None:
        self._portal.run(self._stream.close)


def sync_response(response: httpx2.Response, portal: Portal) -> httpx2.Response:
    """Return the same response for a synchronous reader."""
    stream = response.stream
    if not isinstance(stream, EventStream):
        return response  # the whole response has been read
    same = httpx2.Response(
        response.status_code,
        request=response.request,
        headers=response.headers,
        stream=FetchedBytes(stream, portal),
    )
    same.elapsed = response.elapsed
    return same


class FetchedBytes(httpx2.SyncByteStream):
    """A response body that is made in the background loop."""

    def __init__(self, stream: EventStream, portal: Portal) -> None:
        self._stream = stream
        self._portal = portal

    @property
    def live(self) -> Answer:
        """See `EventStream.live`."""
        return self._stream.live

    def next_objects(self) -> list[Any]:
        """See `EventStream.next_objects`."""
        return self._portal.run(self._stream.next_objects)

    def made(self, item: Any) -> Any:
        """See `EventStream.made`."""
        return self._stream.made(item)

    def __iter__(self) -> Iterator[bytes]:
        parts = aiter(self._stream)
        while part := self._portal.run(_next, parts):
            yield part

    def close(self) -> None:
        self._portal.run(self._stream.aclose)


async def _next(source: AsyncIterator[T]) -> T | None:
    """Return the next item; None at the end."""
    return await anext(source, None)
