"""The stream an application iterates: the SDK's `AsyncStream`, fed by a session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import anyio
import httpx2
from openai import AsyncStream
from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionChunk

from disco.client.chunks import Chunks
from disco.client.driver import LiveSession
from disco.errors import DiscoError, attach_evidence
from disco.session.events import Delta

if TYPE_CHECKING:
    from disco.session.record import RouteRecord

__all__ = ["DiscoStream", "answer_usage"]

CLOSE_S = 5.0


class DiscoStream(AsyncStream[ChatCompletionChunk]):
    """An `openai.AsyncStream[ChatCompletionChunk]` whose answer may have several writers.

    `route` is the route record, once the answer is complete; `writer` names the endpoint that
    wrote the chunk handed out last. Leaving the iteration early must be followed by `close()` (or use
    `async with`), as with the SDK's own stream; nothing runs on after it.
    """

    # Deliberately does not call the base class's __init__: there is no single HTTP response behind it.
    def __init__(self, live: LiveSession, first: list[Delta], chunks: Chunks, *, include_usage: bool) -> None:
        self._live = live
        self._chunks = chunks
        self._first = first
        self._include_usage = include_usage
        self._chars = 0
        self._iterator = self.__stream__()

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
        return self._live.session.writer_at(max(0, self._chars - 1))

    @property
    def response(self) -> httpx2.Response:  # type: ignore[override]
        """A stand-in for the HTTP response of the plain SDK: an answer here may have several, or none."""
        return httpx2.Response(200, request=httpx2.Request("POST", "disco://session/chat/completions"))

    def __aiter__(self) -> AsyncIterator[ChatCompletionChunk]:
        return self._iterator

    async def __stream__(self) -> AsyncIterator[ChatCompletionChunk]:
        live, make = self._live, self._chunks.of
        batch = self._first
        self._first = []
        try:
            while batch:
                for delta in batch:
                    self._chars += len(delta.text)
                    yield make(delta)
                batch = await live.read()
            reason = live.session.finish_reason or "stop"
            if reason != "cancelled":
                yield self._chunks.last(reason)
                if self._include_usage:
                    yield self._chunks.usage(answer_usage(live))
        except Exception as error:
            attach_evidence(error, partial_text=live.session.text, route=live.record)
            raise
        finally:
            live.cancel()

    async def close(self) -> None:
        """Stop the answer wherever it is and return once nothing of it runs. Idempotent."""
        self._live.cancel()
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_S):
            await self._live.wait_done()


def answer_usage(live: LiveSession) -> CompletionUsage:
    """One usage for one answer: its prompt once, its own tokens once; what losers used is in the route."""
    session = live.session
    prompt, completion = session.terms.prompt_tokens, session.tokens
    first = session.attempts[session.segments[0][1]] if session.segments else None
    if first is not None and first.usage is not None and first.usage.prompt_tokens:
        prompt = first.usage.prompt_tokens
        if len(session.segments) == 1 and first.usage.completion_tokens:
            completion = first.usage.completion_tokens
    return CompletionUsage(
        prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion
    )
