"""The stream that an application iterates: the SDK's `AsyncStream`, with text from a session."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Self, TypeAlias, cast

import anyio
import httpx2
from openai import APIConnectionError
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionChunk

from disco.client.chat.answer_ending import finish_reason, last_chunk, session_usage
from disco.client.chat.assembly import assemble
from disco.client.chat.chat_chunks import ChatChunks, RoutedChatCompletion
from disco.client.chat.live_choices import LiveChoices
from disco.client.chat.routed_results import LiveSource
from disco.client.chat.stream_types import DiscoStream, not_complete
from disco.client.live_driver import LiveSession
from disco.errors import attach_evidence
from disco.events import Delta
from disco.session.records.answer_progress import AnswerProgress, answer_progress
from disco.session.records.assist_record import AssistState, assist_state

if TYPE_CHECKING:
    from disco.session.records.route_record import RouteRecord

__all__ = [
    "Answer",
    "Item",
    "Reading",
    "SessionStream",
    "answer_usage",
    "endings",
    "read",
    "stop",
    "whole_answer",
]

CLOSE_S = 5.0

Answer: TypeAlias = LiveSession | LiveChoices
"""An answer in progress."""
Item: TypeAlias = Delta | ChatCompletionChunk
"""A part of it as it is read: a chunk where it has several choices."""


class SessionStream(DiscoStream):
    """An `openai.AsyncStream[ChatCompletionChunk]` whose answer may have several writers.

    `route` is the route record, once the answer is complete. `writer` is the name of the endpoint that wrote the
    chunk returned last. As with the SDK's own stream, a caller that leaves the iteration early must call `close()`
    (or use `async with`). After that, no task of the answer runs any more.
    """

    # Does not call the base class's __init__, on purpose: no single HTTP response is behind this stream.
    def __init__(self, live: Answer, first: list[Item], chunks: ChatChunks, *, include_usage: bool) -> None:
        self._live = live
        self._reading = Reading(live, first)
        self._chunks = chunks
        self._include_usage = include_usage
        # --- mutable from here on
        self._chars = 0
        self._source: AsyncIterator[ChatCompletionChunk] | None = None  # set by an instrument
        self._waiting: deque[Item] = deque()

    @property
    def route(self) -> RouteRecord:
        """The route record: which endpoints started, which won, where the answer migrated, what it cost.

        Raises:
            DiscoError: the answer is not complete yet.
        """
        if self._live.record is None:
            raise not_complete()
        return self._live.record

    @property
    def _answer_source(self) -> LiveSource:
        """What knows the answer, for the SDK's helpers around this stream."""
        return LiveSource(self._live)

    @property
    def writer(self) -> str | None:
        """The name of the endpoint that wrote the last chunk with text."""
        return self._live.session.transcript.writer_at(max(0, self._chars - 1))

    @property
    def buffered_tokens(self) -> int:
        """The fill of the playback buffer: tokens that are written but not yet returned to the application.

        Counts the text held back for a steady pace and the text not yet read. A chunk counts as at least one token.
        """
        unread = sum(getattr(item, "tokens", 1) for item in self._reading.first) + len(self._waiting)
        return round(self._live.buffered_tokens) + unread

    @property
    def progress(self) -> AnswerProgress:
        """The answer as it stands: who writes now, how much is written but not yet shown, what it has cost so far."""
        return answer_progress(self._live.session, self.buffered_tokens)

    @property
    def assist(self) -> AssistState | None:
        """How far a divided answer has come (policy "assist"); None where the answer is not divided."""
        return assist_state(self._live.session)

    @cached_property
    def response(self) -> httpx2.Response:  # type: ignore[override]
        """A stand-in for the plain SDK's HTTP response: an answer of disco may have several responses, or none.

        Closing it stops the answer: the SDK's helpers close a stream in this way.
        """
        request = httpx2.Request("POST", "disco://session/chat/completions")
        kind = {"content-type": "text/event-stream; charset=utf-8"}
        response = httpx2.Response(200, request=request, headers=kind, stream=_Closes(self._live))
        response.is_closed = self._reading.is_over
        return response

    # Plain methods, not a generator: under trio, the owner would have to close a generator that is left early.
    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ChatCompletionChunk:
        if self._source is not None:
            return await anext(self._source)
        return await self._next()

    @property
    def _iterator(self) -> AsyncIterator[ChatCompletionChunk]:
        """What the stream is read from. Instruments of the SDK take it, wrap it and set it again."""
        if self._source is None:
            self._source = self.__stream__()
        return self._source

    @_iterator.setter
    def _iterator(self, source: AsyncIterator[ChatCompletionChunk]) -> None:
        self._source = source

    async def __stream__(self) -> AsyncIterator[ChatCompletionChunk]:
        with contextlib.suppress(StopAsyncIteration):
            while True:
                yield await self._next()

    async def _next(self) -> ChatCompletionChunk:
        if not self._waiting:
            self._waiting = deque(await self._next_batch())
            if not self._waiting:
                raise StopAsyncIteration
        return self._hand_out(self._waiting.popleft())

    def _hand_out(self, item: Item) -> ChatCompletionChunk:
        """Return the chunk for an item. `writer` refers to this chunk.

        The chunk is made only here: making a whole batch at once would keep the garbage collector busy.
        """
        if type(item) is Delta:
            chunk = self._chunks.of(item)
        else:
            chunk = cast("ChatCompletionChunk", item)
            self._chunks.ends_with(chunk)
        if chunk.choices:
            self._chars += len(chunk.choices[0].delta.content or "")
        return chunk

    async def _next_batch(self) -> Sequence[Item]:
        """Return all items that wait to be read, at least one; none at the end. Also for readers in other threads.

        Each item goes through `_hand_out`, in order.

        Raises:
            Exception: the error that ended the answer, with `partial_text` and `route` on it.
        """
        reading = self._reading
        if reading.is_over:
            return []
        batch: list[Item] = []
        try:
            batch = await reading.next()
        finally:
            if not batch:
                self._close_response()
        if batch:
            return batch
        if reading.was_cancelled:  # by another task, or with its client
            error = APIConnectionError(message="The stream was closed.", request=self.response.request)
            attach_evidence(
                error, partial_text=self._live.session.transcript.partial_text, route=self._live.record
            )
            raise error
        last = endings(self._live, self._chunks)
        if self._include_usage:
            last.append(self._chunks.usage(answer_usage(self._live)))
        return last

    def _close_response(self) -> None:
        if "response" in self.__dict__:
            self.response.is_closed = True

    def __del__(self) -> None:
        # The application has dropped the stream before its end, so the answer has no reader any more.
        live = getattr(self, "_live", None)
        if live is not None:
            live.abandon()

    async def close(self) -> None:
        """Stop the answer at any stage and return once no task of it runs. Idempotent."""
        await stop(self._live)
        self._waiting.clear()
        self._reading.close()
        self._close_response()


def whole_answer(answer: Answer, chunks: ChatChunks, items: Sequence[Item]) -> RoutedChatCompletion:
    """Return an answer that has ended as one completion."""
    first = answer.lives[0]
    last = None if isinstance(answer, LiveChoices) else last_chunk(first)
    return assemble(chunks, items, finish_reason(first), answer_usage(answer), answer.written, last)


class _Closes(httpx2.AsyncByteStream):
    """The body of the stand-in response: empty, and closing it stops the answer.

    It has no reference to the stream. In a reference cycle, a dropped stream would go on until garbage collection.
    """

    def __init__(self, live: Answer) -> None:
        self._live = live

    async def __aiter__(self) -> AsyncIterator[bytes]:
        nothing: tuple[bytes, ...] = ()
        for part in nothing:
            yield part

    async def aclose(self) -> None:
        await stop(self._live)


class Reading:
    """An answer as it is read, including the text that was awaited before the stream was returned.

    Mutable: `first`, `is_over`.

    Attributes:
        first: deltas that were read but not yet returned.
        is_over: no more deltas come: the answer was read to its end, or reading it has failed.
    """

    def __init__(self, live: Answer, first: list[Item]) -> None:
        self._live = live
        self.first = first
        self.is_over = False

    async def next(self) -> list[Item]:
        """Return the deltas released since the last call, at least one; empty at the end.

        Raises:
            Exception: as `read`.
        """
        try:
            batch = self.first or await read(self._live)
        except BaseException:
            self.is_over = True
            raise
        self.first = []
        self.is_over = not batch
        return batch

    async def rest(self) -> list[Item]:
        """Return all further deltas until the end of the answer.

        Raises:
            Exception: as `read`.
        """
        deltas: list[Item] = []
        while batch := await self.next():
            deltas.extend(batch)
        return deltas

    def close(self) -> None:
        """Drop what was not returned yet: the application has closed its stream."""
        self.first, self.is_over = [], True

    @property
    def was_cancelled(self) -> bool:
        """Whether the answer was stopped, so that its end must not look like that of a complete answer."""
        return self._live.was_cancelled


async def read(live: Answer) -> list[Item]:
    """Return an answer's released deltas, at least one; empty at its end. Cancelling the read stops the answer.

    Raises:
        Exception: the error that ended the answer, with `partial_text` and `route` on it.
    """
    try:
        return cast("list[Item]", await live.read())
    except Exception as error:
        attach_evidence(error, partial_text=live.session.transcript.partial_text, route=live.record)
        raise
    except BaseException:  # cancelled: no task may go on, as with the SDK's own stream
        await stop(live)
        raise


async def stop(live: Answer) -> None:
    """Stop an answer at any stage and return once no task of it runs, at most a few seconds later."""
    live.cancel()
    with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_S):
        await live.wait_done()


def endings(answer: Answer, chunks: ChatChunks) -> list[ChatCompletionChunk]:
    """Return the chunk that says why an answer ended; none where each of several choices has said so."""
    if isinstance(answer, LiveChoices):
        return []
    return [chunks.last(finish_reason(answer), last_chunk(answer))]


def answer_usage(answer: Answer) -> CompletionUsage:
    """Return one usage: of several choices, the prompt counts once."""
    first, *others = map(session_usage, answer.lives)
    if not others:
        return first
    completion = first.completion_tokens + sum(usage.completion_tokens for usage in others)
    return CompletionUsage(
        prompt_tokens=first.prompt_tokens,
        completion_tokens=completion,
        total_tokens=first.prompt_tokens + completion,
    )
