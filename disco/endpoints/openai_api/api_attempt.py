"""One streamed request to a server: the attempt sends it, reads it in batches, checks its seam and closes it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, cast

import anyio
import anyio.lowlevel
import httpx2
import openai
from openai.types.chat import ChatCompletionChunk

from disco.endpoints.continuation.methods import RESPONSES, Call, used_up
from disco.endpoints.continuation.probe import ProbeMeter
from disco.endpoints.continuation.rendering import CannotContinueError
from disco.endpoints.continuation.seam import SeamMismatchError
from disco.endpoints.continuation.spliced_deltas import SplicedDeltas
from disco.endpoints.contract import Attempt
from disco.endpoints.openai_api import error_mapping
from disco.endpoints.openai_api.additions import Addition, AnswerLimit, LogprobsRequest, Refusal
from disco.endpoints.openai_api.chunk_reader import ChatReader, ChunkReader, CompletionReader
from disco.endpoints.openai_api.chunk_repair import MalformedChunkError, ServerReportedError
from disco.endpoints.openai_api.http_transport import (
    TrafficCounter,
    estimated_tokens,
    exhaust,
    pieces,
    unwind,
)
from disco.endpoints.openai_api.response_reader import ResponseReader
from disco.endpoints.openai_api.sse import EventSplitter, EventTooLargeError, last_event
from disco.endpoints.openai_api.whole_documents import events_of_document, is_document
from disco.errors import EndpointFailure, FailureKind, IncompleteAnswerError, ModelFileError
from disco.events import Alive, Delta, Ended, SeamReport, Started, Traffic, Usage
from disco.request import Prefix, Request

__all__ = ["ServerAttempt"]

# Behind the finish reason usage, [DONE] and sometimes more text may follow. The reader waits so long for each piece of
# the body, be it a comment, and so long in all. Where more text has come, the answer's own clocks count again.
_TAIL_GAP_S = 5.0
_TAIL_S = 15.0
# An answer that comes as a whole: its server is silent for as long as it writes.
_WHOLE_S = 120.0
# What is read without a turn of the event loop: bytes of a body, and events, which may be very small.
_AT_ONCE = 16 * 1024
_EVENTS_AT_ONCE = 64
# For the few bytes between [DONE] and the end of the body: once they are read, the connection can be reused.
_DRAIN_S = 0.1
_CLOSE_S = 1.0
_NO_SUCH_PATH = (404, 405, 501)
_UNREADABLE = (MalformedChunkError, ServerReportedError, EventTooLargeError, httpx2.DecodingError)


class ServerAttempt(Attempt):
    """See `Attempt`. Made by `OpenAIEndpoint.open`.

    Args:
        client: sends the request; its retries and time-outs are not used.
        name: the endpoint's.
        request, prefix: the request to answer, and the beginning of the answer.
        prepare: makes the call; may itself query the server, and raises `CannotContinueError`.
        meter: what `prepare` has used to prove that the server continues.
        additions: what disco asks for besides what the application does.
        on_missing: called when the server has turned out to lack the path of the call.
        on_close: called once when the attempt has ended.
    """

    # Mutable: everything below the blank line.
    __slots__ = (
        *(
            "_additions",
            "_client",
            "_limit",
            "_logprobs",
            "_meter",
            "_name",
            "_on_close",
            "_on_missing",
            "_prefix",
            "_prepare",
        ),
        *(
            "_body",
            "_call",
            "_closed",
            "_ended",
            "_eof",
            "_excused",
            "_has_begun",
            "_idle",
            "_is_cut",
            "_was",
        ),
        *("_opening", "_over", "_reader", "_request", "_response", "_running", "_sent", "_spliced"),
        *("_splitter", "_stopped", "_tail", "_unread", "_unread_at", "_waiting", "_wire"),
    )

    def __init__(
        self,
        *,
        client: openai.AsyncOpenAI,
        name: str,
        request: Request,
        prefix: Prefix,
        prepare: Callable[[], Awaitable[Call]],
        meter: ProbeMeter,
        additions: Sequence[Addition] = (),
        on_missing: Callable[[], object] = lambda: None,
        on_close: Callable[[ServerAttempt, httpx2.Response | None], object] | None = None,
    ) -> None:
        self._client = client
        self._name = name
        self._request = request
        self._prefix = prefix
        self._prepare = prepare
        self._meter = meter
        self._additions = additions
        self._logprobs = next((each for each in additions if isinstance(each, LogprobsRequest)), None)
        self._limit = next((each for each in additions if isinstance(each, AnswerLimit)), None)
        self._on_missing = on_missing
        self._on_close = on_close
        self._splitter = EventSplitter()

        self._wire = TrafficCounter()
        self._reader: ChunkReader = ChatReader()
        self._call: Call | None = None
        self._spliced: SplicedDeltas | None = None
        self._response: httpx2.Response | None = None
        self._body: AsyncGenerator[bytes, None] | None = None
        self._has_begun = False  # something of the body has come
        self._unread, self._unread_at = b"", 0  # a large piece of the body, and how much of it was read
        self._waiting: list[bytes] = []  # events, of many that came at once
        # When the answer was complete but for its tail, and when the last event of the tail came.
        self._tail: tuple[float, float] | None = None
        self._excused = False  # the session knows that silence says nothing now
        self._opening: anyio.CancelScope | None = None  # lets `aclose` end a request that has no response yet
        self._sent = False
        self._over = False  # nothing more to read: [DONE], end of body, or the wait for the tail is over
        self._eof = False
        self._is_cut = False  # in the middle of an event
        self._was: Exception | None = None  # why the request was sent once more without what disco adds
        self._ended = False
        self._stopped = False  # ended or failed
        self._running = False
        self._closed = False
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
            if self._closed or not isinstance(error, Exception):
                if isinstance(error, Exception):
                    # Another task closed the attempt in the middle of a read: the server has not failed.
                    raise StopAsyncIteration from None
                raise
            if self._was is not None and not isinstance(error, openai.APIStatusError):
                error = self._was  # the second request has shown nothing better
            raise self._failure(error) from error
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
            if self._response is not None:
                with anyio.move_on_after(_CLOSE_S, shield=True):
                    await self._response.aclose()
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await self._idle.wait()
        if first:
            await self._release()

    @property
    def usage(self) -> Usage:
        given, seen = self._reader.usage or Usage(), self._reader.tokens
        prompt_tokens, written = given.prompt_tokens, given.completion_tokens
        if not prompt_tokens and self._sent:
            prompt_tokens = estimated_tokens(self._request, self._prefix)
        if not written or (written < seen and not self._ended):
            written = seen
        cached_tokens, proof = min(given.cached_tokens, prompt_tokens), self._meter.usage
        into_cache = min(given.cache_write_tokens, prompt_tokens - cached_tokens)
        probed = proof.prompt_tokens, proof.completion_tokens
        return Usage(
            prompt_tokens + probed[0],
            written + probed[1],
            cached_tokens,
            probed=probed,
            cache_write_tokens=into_cache,
        )

    @property
    def traffic(self) -> Traffic:
        """Return the bytes on the wire so far; `TrafficCounter` says what is counted exactly."""
        return self._wire.traffic

    @property
    def seam(self) -> SeamReport | None:
        return None if self._spliced is None else self._spliced.report

    @property
    def _is_instructed(self) -> bool:
        return self._call is not None and self._call.method == "instructed"

    async def _next(self) -> list[Delta] | Ended | Started | Alive:
        if self._response is None:
            if used_up(self._request, self._prefix):
                self._ended = self._stopped = True
                return Ended("length", Usage())
            waited = self._meter.waited
            opening = self._opening = anyio.CancelScope()
            with opening, self._wire:
                if self._call is None:
                    self._call = await self._prepare()
                if self._meter.waited == waited and not self._must_excuse:
                    await self._open_either(self._call)
            if opening.cancelled_caught:
                raise StopAsyncIteration
            if self._meter.waited != waited:
                # The wait for a probe is over. The server's time to first token begins now.
                return Started()
            if self._must_excuse:
                self._excused = True
                return Alive(_WHOLE_S)
            return Alive()  # the head of the response
        while not self._over or self._waiting:
            if self._reader.is_sure:
                if not self._excused:
                    self._excused = True
                    return Alive(_TAIL_S)
                deltas = await self._read_tail()
            elif self._tail is not None:  # more text has come
                self._tail, self._excused = None, False
                return Alive(0.0)
            else:
                try:
                    deltas = await self._read()
                except (*_UNREADABLE, EndpointFailure) as error:
                    if await self._is_asked_again(self._refusal_in(error)):
                        self._was = error
                        return await self._next()
                    raise
            if deltas is None:
                return Alive()
            if deltas:
                return deltas
        reason = self._reader.finish_reason
        if reason is None and self._eof and await self._is_asked_again(Refusal(200, says_nothing=True)):
            # llama-cpp-python's server refuses log probabilities by a status of 200 and nothing else.
            self._was = error_mapping.incomplete(self._name)
            return await self._next()
        if reason is None and await self._is_asked_again(Refusal(0, says_nothing=True)):
            self._was = error_mapping.incomplete(self._name)
            return await self._next()
        return self._end()

    def _refusal_in(self, error: Exception) -> Refusal:
        """Return the refusal that what was read instead of an answer may stand for."""
        if not isinstance(error, ServerReportedError):
            return Refusal(0, says_nothing=True)
        request = cast("httpx2.Response", self._response).request
        return Refusal.within(error_mapping.stream_error(error.body, request))

    async def _is_asked_again(self, refusal: Refusal) -> bool:
        """Amend the call where nothing of an answer was read, and give up the response. Return whether this was so."""
        if self._reader.tokens or self._prefix or not self._amends(refusal):
            return False
        await self._hang_up()
        self._response, self._splitter, self._unread, self._waiting = None, EventSplitter(), b"", []
        self._over = self._eof = self._is_cut = self._excused = False
        self._tail = None
        return True

    @property
    def _must_excuse(self) -> bool:
        """Whether the answer is asked for as a whole, and the session does not know it."""
        return not self._excused and self._call is not None and "stream" not in self._call.body

    def _amends(self, refusal: Refusal) -> bool:
        """Return whether the server may have refused what disco added to the request; then the call is amended."""
        call = cast("Call", self._call)
        for guesses in (False, True):
            for addition in self._additions:
                amended = addition.without(call, refusal, guesses=guesses)
                if amended is not None:
                    self._call = amended
                    return True
        return False

    async def _read_tail(self) -> list[Delta] | None:
        """Do as `_read` once the answer is complete, for a limited time."""
        now = anyio.current_time()
        began, last = self._tail = self._tail or (now, now)
        with anyio.CancelScope(deadline=min(last + _TAIL_GAP_S, began + _TAIL_S)):
            deltas = await self._read()
            self._tail = began, anyio.current_time()
            return deltas
        self._over, self._waiting = True, []
        return []

    async def _read(self) -> list[Delta] | None:
        """Return the deltas in the next piece of the body, which may be none; None where it completes no event."""
        reader = self._reader
        if reader.broken is not None:
            raise reader.broken
        if self._waiting:
            await anyio.lowlevel.checkpoint()
            return self._passed_on(self._waiting)
        try:
            if self._unread:
                await anyio.lowlevel.checkpoint()
                data = self._unread[self._unread_at : self._unread_at + _AT_ONCE]
                self._unread_at += _AT_ONCE
                if self._unread_at >= len(self._unread):
                    self._unread = b""
            else:
                data = await cast("Any", self._body).__anext__()
                self._wire.received(data)
                if not self._has_begun:
                    data = data.lstrip()
                    if data and is_document(cast("Any", self._response), data):
                        return await self._read_document(data)
                    self._has_begun = bool(data)
                if len(data) > _AT_ONCE:
                    self._unread, self._unread_at = data, _AT_ONCE
                    data = data[:_AT_ONCE]
            events = self._splitter.feed(data)
            if not events:
                return None
        except StopAsyncIteration:
            self._wire.ended()
            self._over = self._eof = True
            last = last_event(self._splitter)
            self._is_cut = last is None
            events = last or []
        except (httpx2.HTTPError, OSError, anyio.EndOfStream):
            if not reader.is_sure:
                raise
            # The answer is complete; only the stream's tail failed.
            self._over = True
            return []
        return self._passed_on(events)

    def _passed_on(self, events: list[bytes]) -> list[Delta]:
        """Return the deltas in events, as the reader gets them."""
        reader, self._waiting = self._reader, events[_EVENTS_AT_ONCE:]
        deltas = reader.read(events[:_EVENTS_AT_ONCE] if self._waiting else events)
        if self._limit is not None:
            self._limit.read(deltas)
        if self._spliced is not None:
            deltas = self._spliced.pass_on(deltas)
        if reader.done or (self._spliced is not None and self._spliced.is_cut):
            self._over, self._waiting = True, []
        return deltas

    async def _read_document(self, first: bytes) -> list[Delta]:
        """Read an answer that comes as one document."""
        response, body = cast("Any", self._response), cast("Any", self._body)
        of_responses = isinstance(self._reader, ResponseReader)

        async def rest() -> AsyncGenerator[bytes, None]:
            async for piece in body:
                self._wire.received(piece)
                yield piece
            self._wire.ended()
            self._eof = True

        async with contextlib.aclosing(rest()) as others:
            events = await events_of_document(
                response, first, others, name=self._name, of_responses=of_responses
            )
        self._over = True
        return self._passed_on(events)

    async def _open_either(self, call: Call) -> None:
        """Make the call, or another one where the server has no such path, or refuses what disco added.

        Without a response where the other one asks for a whole answer, which the session has to know first.
        """
        try:
            await self._open(call)
        except openai.APIStatusError as error:
            if self._amends(Refusal.of(error)):
                if not self._must_excuse:
                    await self._open_either(cast("Call", self._call))
                return
            if call.otherwise is None or error.status_code not in _NO_SUCH_PATH:
                raise
            self._call = call.otherwise
            try:
                await self._open_either(call.otherwise)
            except openai.APIStatusError as again:
                if again.status_code == error.status_code:
                    raise error from None  # it is not the path that the server lacks: the model, perhaps
                raise
            self._on_missing()

    async def _open(self, call: Call) -> None:
        """Send the request and wait for the response's headers."""
        if self._prefix:
            self._spliced = SplicedDeltas(self._prefix, call)
        request = self._request
        choices = request.params.get("n")
        if call.path == "/completions":
            self._reader = CompletionReader()
        elif call.path == RESPONSES:
            self._reader = ResponseReader()
        else:
            several = choices if isinstance(choices, int) and choices > 1 else 1
            asked = self._logprobs
            classes = () if asked is None else asked.classes
            self._reader = ChatReader(several, hides_logprobs=asked is not None, classes=classes)
        # The transport's time-out is for connecting only; the session keeps the others, alike for all endpoints.
        timeout = httpx2.Timeout(None, connect=request.timeouts.connect_s)
        options: Any = {"max_retries": 0, "timeout": timeout, "security": {"bearer_auth": True}}
        headers = dict(request.extra_headers or {})
        if request.retries:  # as the SDK counts them
            headers.setdefault("x-stainless-retry-count", str(request.retries))
        if headers:
            options["headers"] = headers
        if request.extra_query:
            options["params"] = request.extra_query
        self._sent = True
        try:
            # Asking for the bare response skips only the SDK's typed stream: authentication, default headers,
            # status errors and Azure's paths stay the SDK's.
            response = await self._client.post(
                call.path,
                body=call.body,
                cast_to=httpx2.Response,
                options=options,
                stream=True,
                stream_cls=openai.AsyncStream[ChatCompletionChunk],
            )
        except Exception:
            # The connection or the request was refused, or the connection was dropped without a response. (A pooled
            # connection is dropped if its server has just closed it.) Without a response there is no charge. An
            # attempt that is cancelled while the server is silent is charged.
            self._sent = False
            raise
        self._response = cast("httpx2.Response", response)
        self._wire.streams(self._response)
        self._body, self._has_begun = pieces(self._response), False

    def _end(self) -> list[Delta] | Ended:
        reader, spliced = self._reader, self._spliced
        if spliced is not None and spliced.is_cut:
            self._ended = self._stopped = True
            return Ended("length")
        if reader.broken is not None:
            raise reader.broken
        if reader.finish_reason is None or (self._is_cut and not reader.is_sure):
            # The server ended early, so the text that the seam still holds back is no evidence about the seam.
            raise error_mapping.incomplete(self._name)
        if reader.finish_reason == "error":
            raise ServerReportedError(None)
        if spliced is not None and (deltas := spliced.end()):
            return deltas
        self._ended = self._stopped = True
        for addition in self._additions:
            addition.answered()
        if self._limit is not None:
            self._limit.ended(reader.finish_reason)
        usage = None if reader.usage is None else self.usage
        return Ended(reader.finish_reason, usage, reader.finish_raw, reader.ends_with_content)

    def _failure(self, error: Exception) -> EndpointFailure:
        if isinstance(error, EndpointFailure):
            return error
        if isinstance(error, SeamMismatchError | CannotContinueError | ModelFileError):
            reason = IncompleteAnswerError(f"Endpoint {self._name!r} cannot continue the answer: {error}.")
            again = self._is_instructed and isinstance(error, SeamMismatchError)
            return EndpointFailure(FailureKind.SEAM, reason, retry_after_s=0.0 if again else None)
        if self._response is None and isinstance(error, TypeError | ValueError | RuntimeError):
            # The request cannot be made: a value that is no JSON, a closed client. The SDK lets these errors through.
            return EndpointFailure(FailureKind.BAD_REQUEST, error)
        if self._response is not None:
            if isinstance(error, ServerReportedError):
                error = error_mapping.stream_error(error.body, self._response.request, error.event)
            elif isinstance(error, MalformedChunkError | EventTooLargeError):
                return error_mapping.garbage(f"sent {error} in its stream", self._response, name=self._name)
            elif isinstance(error, httpx2.HTTPError | httpx2.StreamError):
                error = error_mapping.wrap_transport(error, self._response.request)
        key = getattr(self._client, "api_key", None)
        secrets = (key,) if isinstance(key, str) else ()
        request = self._request
        asked = (request.messages, request.params, request.responses, self._prefix.text)
        failure = error_mapping.failure_from(error, name=self._name, secrets=secrets, prompt=asked)
        if self._is_instructed and failure.kind.is_callers_fault:
            # The instruction is refused, not the application's request.
            return EndpointFailure(FailureKind.SEAM, failure.error)
        return failure

    async def _release(self) -> None:
        """Close the connection, or return it to the pool when the answer was read to its end."""
        await self._hang_up()
        if self._on_close is not None:
            self._on_close(self, self._response)
            self._on_close = None

    async def _hang_up(self) -> None:
        body, response = self._body, self._response
        self._body = None
        if body is not None and not self._eof and self._reader.done:
            with anyio.move_on_after(_DRAIN_S, shield=True):
                self._eof = await exhaust(body, note=self._wire.received)
            if self._eof:
                self._wire.ended()
        if body is not None and not self._eof:
            await unwind(body)
        if response is not None and not response.is_closed:
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await response.aclose()
