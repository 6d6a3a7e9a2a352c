"""The stream an application iterates: the SDK's `AsyncStream`, fed by a session."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Self, cast

import anyio
import httpx2
from openai import AsyncStream
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionChunk

from disco.client.chat.chat_chunks import ChatChunks
from disco.client.live_driver import LiveSession
from disco.errors import DiscoError, attach_evidence
from disco.events import Delta

if TYPE_CHECKING:
    from disco.session.records.route_record import RouteRecord

__all__ = ["DiscoStream", "Reading", "answer_usage", "finish_reason", "read", "stop"]

CLOSE_S = 5.0


class DiscoStream(AsyncStream[ChatCompletionChunk]):
    """An `openai.AsyncStream[ChatCompletionChunk]` whose answer may have several writers.

    `route` is the route record, once the answer is complete; `writer` names the endpoint that
    wrote the chunk handed out last. Leaving the iteration early must be followed by `close()` (or use
    `async with`), as with the SDK's own stream; nothing runs on after it.
    """

    # Deliberately does not call the base class's __init__: there is no single HTTP response behind it.
    def __init__(
        self, live: LiveSession, first: list[Delta], chunks: ChatChunks, *, include_usage: bool
    ) -> None:
        self._live = live
        self._reading = Reading(live, first)
        self._chunks = chunks
        self._include_usage = include_usage
        # --- mutable from here on
        self._chars = 0
        self._waiting: deque[Delta | ChatCompletionChunk] = deque()

    @property
    def route(self) -> RouteRecord:
        """The route record: who started, who won, where the answer moved, what it cost.

        Raises:
            DiscoError: the answer is not complete yet.
        """
        if self._live.record is None:
            raise DiscoError(
                "The route record is written when the answer is complete: read the stream to its end, or close it."
            )
        return self._live.record

    @property
    def writer(self) -> str | None:
        """Name of the endpoint that wrote the last chunk with text."""
        return self._live.session.transcript.writer_at(max(0, self._chars - 1))

    @property
    def buffered_tokens(self) -> int:
        """How full the playback buffer is: tokens that are written and that the application has not been given yet.

        What is kept back for a steady pace, and what nobody has read so far; a chunk counts as one token at least.
        """
        unread = sum(delta.tokens for delta in self._reading.first) + len(self._waiting)
        return round(self._live.buffered_tokens) + unread

    @cached_property
    def response(self) -> httpx2.Response:  # type: ignore[override]
        """A stand-in for the HTTP response of the plain SDK: an answer here may have several, or none.

        Closing it stops the answer: the SDK's helpers around a stream close it in this way.
        """
        request = httpx2.Request("POST", "disco://session/chat/completions")
        kind = {"content-type": "text/event-stream; charset=utf-8"}
        response = httpx2.Response(200, request=request, headers=kind, stream=_Closes(self._live))
        response.is_closed = self._reading.is_over or self._live.done
        return response

    # Plain methods, not a generator: one that is left early would have to be closed by its owner under trio.
    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ChatCompletionChunk:
        if not self._waiting:
            self._waiting = deque(await self._next_batch())
            if not self._waiting:
                raise StopAsyncIteration
        return self._hand_out(self._waiting.popleft())

    def _hand_out(self, item: Delta | ChatCompletionChunk) -> ChatCompletionChunk:
        """The chunk that the application gets now, which is what `writer` is about.

        It is made here: those of a whole batch at once would keep the garbage collector busy.
        """
        chunk = self._chunks.of(item) if type(item) is Delta else cast("ChatCompletionChunk", item)
        if chunk.choices:
            self._chars += len(chunk.choices[0].delta.content or "")
        return chunk

    async def _next_batch(self) -> Sequence[Delta | ChatCompletionChunk]:
        """All that waits to be read, at least one item; none at the end. For readers in other threads, too.

        Each item goes through `_hand_out`, in order.

        Raises:
            Exception: what ended the answer, with `partial_text` and `route` on it.
        """
        reading = self._reading
        if reading.is_over:
            return []
        batch: list[Delta] = []
        try:
            batch = await reading.next()
        finally:
            if not batch:
                self._close_response()
        if batch:
            return batch
        if reading.was_cancelled:
            return []
        last = [self._chunks.last(finish_reason(self._live))]
        if self._include_usage:
            last.append(self._chunks.usage(answer_usage(self._live)))
        return last

    def _close_response(self) -> None:
        if "response" in self.__dict__:
            self.response.is_closed = True

    def __del__(self) -> None:
        # Forgotten in the middle: nobody will read on, so nothing needs to write on.
        live = getattr(self, "_live", None)
        if live is not None:
            live.abandon()

    async def close(self) -> None:
        """Stop the answer wherever it is and return once nothing of it runs. Idempotent."""
        await stop(self._live)
        self._close_response()


class _Closes(httpx2.AsyncByteStream):
    """The body of the stand-in: nothing to read, and closing it stops the answer.

    It does not hold the stream: in a circle, one that is dropped would run on until the garbage collector comes.
    """

    def __init__(self, live: LiveSession) -> None:
        self._live = live

    async def __aiter__(self) -> AsyncIterator[bytes]:
        nothing: tuple[bytes, ...] = ()
        for part in nothing:
            yield part

    async def aclose(self) -> None:
        await stop(self._live)


class Reading:
    """An answer as it is read, from the text on that was waited for before it was handed out.

    Mutable: `first`, `is_over`.

    Attributes:
        first: what was read already and is not handed out yet.
        is_over: nothing more comes: it was read to its end, or reading it has failed.
    """

    def __init__(self, live: LiveSession, first: list[Delta]) -> None:
        self._live = live
        self.first = first
        self.is_over = False

    async def next(self) -> list[Delta]:
        """What was released, at least one delta; empty at the end.

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

    async def rest(self) -> list[Delta]:
        """All that comes until the end of the answer.

        Raises:
            Exception: as `read`.
        """
        deltas: list[Delta] = []
        while batch := await self.next():
            deltas.extend(batch)
        return deltas

    @property
    def was_cancelled(self) -> bool:
        """Whether it was stopped, so that its end must not look like that of a complete answer."""
        return self._live.session.finish_reason == "cancelled"


async def read(live: LiveSession) -> list[Delta]:
    """What was released of an answer, at least one delta; empty at its end. A read that is broken off ends it.

    Raises:
        Exception: what ended the answer, with `partial_text` and `route` on it.
    """
    try:
        return await live.read()
    except Exception as error:
        attach_evidence(error, partial_text=live.session.transcript.text, route=live.record)
        raise
    except BaseException:  # cancelled: as with the SDK's own stream; nothing is left running behind
        await stop(live)
        raise


async def stop(live: LiveSession) -> None:
    """End an answer wherever it is and return once nothing of it runs, at most a few seconds later."""
    live.cancel()
    with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_S):
        await live.wait_done()


def finish_reason(live: LiveSession) -> str:
    """Why an answer ended, once it has."""
    return live.session.finish_reason or "stop"


def answer_usage(live: LiveSession) -> CompletionUsage:
    """One usage for one answer: its prompt once, its own tokens once; what losers used is in the route."""
    session = live.session
    prompt, completion = session.config.prompt_tokens, session.transcript.tokens
    first = session.transcript.first_writer
    if first is not None and first.usage is not None and first.usage.prompt_tokens:
        prompt = first.usage.prompt_tokens
        if len(session.transcript.segments) == 1 and first.usage.completion_tokens:
            completion = first.usage.completion_tokens
    return CompletionUsage(
        prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion
    )
