"""One streamed request to a server: the attempt asks, reads the answer, asks again where nothing came, and ends."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import httpx2
import openai

from disco.endpoints.continuation.methods import used_up
from disco.endpoints.contract import Attempt
from disco.endpoints.openai_api import error_mapping
from disco.endpoints.openai_api.additions import Refusal
from disco.endpoints.openai_api.api_answer import CLOSE_S, TAIL_S, ServerAnswer
from disco.endpoints.openai_api.api_request import ServerRequest
from disco.endpoints.openai_api.chunk_repair import MalformedChunkError, ServerReportedError
from disco.endpoints.openai_api.http_transport import estimated_tokens
from disco.endpoints.openai_api.sse import EventTooLargeError
from disco.errors import EndpointFailure
from disco.events import Alive, Delta, Ended, SeamReport, Started, Traffic, Usage
from disco.session.answer_rule import Calls, lacking

__all__ = ["ServerAttempt"]

# An answer that comes as a whole: its server is silent for as long as it writes.
_WHOLE_S = 120.0
_UNREADABLE = (MalformedChunkError, ServerReportedError, EventTooLargeError, httpx2.DecodingError)


class ServerAttempt(Attempt):
    """See `Attempt`. Made by `OpenAIEndpoint.open`.

    Args:
        asked: what it asks.
        on_close: called once when the attempt has ended, with the response, if one came.
    """

    # Mutable: everything below the blank line.

    def __init__(
        self,
        asked: ServerRequest,
        on_close: Callable[[ServerAttempt, httpx2.Response | None], object] | None = None,
    ) -> None:
        self._asked = asked
        self._on_close = on_close

        self._answer: ServerAnswer | None = None
        self._calls = Calls()  # of an answer whose stream nobody asked for
        self._was: Exception | None = None  # why the request was sent once more without what disco adds
        self._opening: anyio.CancelScope | None = None  # lets `aclose` end a request that has no response yet
        self._ended = self._stopped = False  # stopped: ended or failed
        self._running = self._closed = False
        self._idle: anyio.Event | None = None

    async def __anext__(self) -> list[Delta] | Ended | Started | Alive:
        if self._stopped or self._closed:
            await self._release()
            raise StopAsyncIteration
        self._running = True
        try:
            return await self._next()
        except BaseException as error:
            self._stopped = True
            await self._release()
            if not isinstance(error, Exception):
                raise
            if self._closed:
                # Another task closed the attempt in the middle of a read: the server has not failed.
                raise StopAsyncIteration from None
            if self._was is not None and not isinstance(error, openai.APIStatusError):
                error = self._was  # the second request has shown nothing better
            raise self._asked.failure(error, self._answer) from error
        finally:
            self._running = False
            if self._idle is not None:
                self._idle.set()

    async def aclose(self) -> None:
        first = not self._closed
        self._closed = True
        if self._running:
            # Another task reads: it notices that its connection is closed.
            self._idle = anyio.Event()
            if self._opening is not None:
                self._opening.cancel()
            if self._answer is not None:
                with anyio.move_on_after(CLOSE_S, shield=True):
                    await self._answer.response.aclose()
            with anyio.move_on_after(CLOSE_S, shield=True):
                await self._idle.wait()
        if first:
            await self._release()

    @property
    def usage(self) -> Usage:
        asked, answer, proof = self._asked, self._answer, self._asked.meter.usage
        given, seen = (None, 0) if answer is None else (answer.reader.usage, answer.reader.tokens)
        given = given or Usage()
        prompt_tokens, written = given.prompt_tokens, given.completion_tokens
        if not prompt_tokens and asked.is_sent:
            prompt_tokens = estimated_tokens(asked.request, asked.prefix)
        if not written or (written < seen and not self._ended):
            written = seen
        cached_tokens = min(given.cached_tokens, prompt_tokens)
        return Usage(
            prompt_tokens + proof.prompt_tokens,
            written + proof.completion_tokens,
            cached_tokens,
            probed=(proof.prompt_tokens, proof.completion_tokens),
            cache_write_tokens=min(given.cache_write_tokens, prompt_tokens - cached_tokens),
        )

    @property
    def traffic(self) -> Traffic:
        """Return the bytes on the wire so far; `TrafficCounter` says what is counted exactly."""
        return self._asked.wire.traffic

    @property
    def seam(self) -> SeamReport | None:
        return None if self._asked.spliced is None else self._asked.spliced.report

    async def _next(self) -> list[Delta] | Ended | Started | Alive:
        asked, answer = self._asked, self._answer
        if answer is None:
            if not used_up(asked.request, asked.prefix):
                return await self._open()
            self._ended = self._stopped = True
            return Ended("length", Usage())
        reader = answer.reader
        while not answer.is_over or answer.waiting:
            if reader.is_sure:
                if not asked.is_excused:
                    asked.is_excused = True
                    return Alive(TAIL_S)
                deltas = await answer.read_tail()
            elif answer.tail_at is not None:  # more text has come
                answer.tail_at, asked.is_excused = None, False
                return Alive(0.0)
            else:
                is_bare = reader.finish_reason is not None and not reader.tokens
                try:
                    deltas = await (answer.read_tail() if is_bare else answer.read())
                except (*_UNREADABLE, EndpointFailure) as error:
                    if await self._asks_again(answer, Refusal.within(error, answer.response), error):
                        return await self._open()
                    raise
            if deltas is None:
                return Alive()
            if deltas:
                if asked.doubts_stream:
                    for delta in deltas:
                        self._calls.read(delta.tool_calls)
                return deltas
        if (lacks := self._lacks(answer)) is not None:
            why = error_mapping.incomplete(asked.name, lacks)
            # llama-cpp-python's server refuses log probabilities by a status of 200 and nothing else.
            statuses = (200, 0) if answer.is_at_end and reader.finish_reason is None else (0,)
            for status in () if answer.is_document else statuses:  # it has not streamed, so that is not why
                if await self._asks_again(answer, Refusal(status, says_nothing=True), why):
                    return await self._open()
        return self._end(answer)

    async def _open(self) -> Started | Alive:
        """Ask the server; `_answer` is None where that has to wait for what the session must know first."""
        asked, waited = self._asked, self._asked.meter.waited
        opening = self._opening = anyio.CancelScope()
        with opening, asked.wire:
            if asked.call is None:
                asked.call = await asked.prepare()
            if asked.meter.waited == waited and not asked.must_excuse:
                self._answer = await asked.send()
        if opening.cancelled_caught:
            raise StopAsyncIteration
        if asked.meter.waited != waited:
            # The wait for a probe is over. The server's time to first token begins now.
            return Started()
        if self._answer is None:
            asked.is_excused = True
            return Alive(_WHOLE_S)
        return Alive()  # the head of the response

    async def _asks_again(self, answer: ServerAnswer, refusal: Refusal, why: Exception) -> bool:
        """Amend the call where nothing of an answer was read, and give up the response. Return whether this was so."""
        if answer.reader.tokens or self._asked.prefix or not self._asked.amends(refusal):
            return False
        await answer.aclose()
        self._answer, self._asked.is_excused, self._was = None, False, why
        return True

    def _lacks(self, answer: ServerAnswer) -> str | None:
        """Return what an answer lacks that its server has ended, in words; None: nothing, or it has not streamed."""
        reader, calls = answer.reader, self._calls
        if reader.finish_reason is None:
            return error_mapping.NO_REASON
        if answer.is_document:
            return None
        return lacking(
            "",
            calls if calls.are_cut else None,
            reader.finish_reason,
            has_more=reader.has_content,
            may_be_empty=self._asked.request.may_be_empty,
        )

    def _end(self, answer: ServerAnswer) -> list[Delta] | Ended:
        reader, spliced, asked = answer.reader, answer.spliced, self._asked
        if spliced is not None and spliced.is_cut:
            self._ended = self._stopped = True
            return Ended("length")
        if reader.broken is not None:
            raise reader.broken
        if reader.finish_reason is None or (answer.is_cut and not reader.is_sure):
            # The server ended early, so the text that the seam still holds back is no evidence about the seam.
            raise error_mapping.incomplete(asked.name)
        if reader.finish_reason == "error" and not (asked.request.streams or answer.is_document):
            raise ServerReportedError(None)  # perhaps only of the stream, which nobody asked for
        if spliced is not None and (deltas := spliced.end()):
            return deltas
        self._ended = self._stopped = True
        lacks = self._lacks(answer) if asked.doubts_stream else None
        if asked.call is not None and reader.has_content and lacks is None:  # what is none shows nothing
            for addition in asked.additions:
                addition.answered(asked.call)
        if asked.limit is not None:
            asked.limit.ended(reader.finish_reason)
        usage = None if reader.usage is None else self.usage
        return Ended(
            reader.finish_reason,
            usage,
            reader.finish_raw,
            reader.ends_with_content,
            reader.has_notes,
            reader.last_calls,
            lacks=lacks,
        )

    async def _release(self) -> None:
        answer = self._answer
        if answer is not None:
            await answer.aclose()
        if self._on_close is not None:
            self._on_close(self, None if answer is None else answer.response)
            self._on_close = None
