"""One streamed request to a server: the attempt sends it, reads it in batches, checks its seam and closes it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, cast

import anyio
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
from disco.endpoints.openai_api.answer_limit import AnswerLimit
from disco.endpoints.openai_api.chunk_reader import ChatReader, ChunkReader, CompletionReader
from disco.endpoints.openai_api.chunk_repair import MalformedChunkError, ServerReportedError
from disco.endpoints.openai_api.http_transport import (
    TrafficCounter,
    estimated_tokens,
    exhaust,
    pieces,
    unwind,
)
from disco.endpoints.openai_api.logprobs_request import LogprobsRequest
from disco.endpoints.openai_api.response_reader import ResponseReader
from disco.endpoints.openai_api.sse import EventSplitter, EventTooLargeError, last_event
from disco.endpoints.openai_api.whole_documents import events_of_document
from disco.errors import EndpointFailure, FailureKind, IncompleteAnswerError, ModelFileError
from disco.events import Alive, Delta, Ended, SeamReport, Started, Traffic, Usage
from disco.request import Prefix, Request

__all__ = ["ServerAttempt"]

# An answer that has its finish reason is complete; only usage and [DONE] may still follow.
_TAIL_S = 1.0
# For the few bytes between [DONE] and the end of the body: once they are read, the connection can be reused.
_DRAIN_S = 0.1
_CLOSE_S = 1.0
_HEADERS_S = 1.0  # headers that took longer are told as a sign of life
_NO_SUCH_PATH = (404, 405, 501)


class ServerAttempt(Attempt):
    """See `Attempt`. Made by `OpenAIEndpoint.open`.

    Args:
        client: sends the request; its retries and time-outs are not used.
        name: the endpoint's.
        request, prefix: the request to answer, and the beginning of the answer.
        prepare: makes the call; may itself query the server, and raises `CannotContinueError`.
        meter: what `prepare` has used to prove that the server continues.
        logprobs, limit: the log probabilities that disco asks for, and the limit that it sets; None: it does not.
        on_missing: called when the server has turned out to lack the path of the call.
        on_close: called once when the attempt has ended.
    """

    # Mutable: everything below the blank line.
    __slots__ = (
        *(
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
        *("_body", "_call", "_closed", "_document", "_ended", "_eof", "_idle", "_opening", "_over"),
        *("_reader", "_request", "_response", "_running", "_sent", "_spliced", "_splitter"),
        *("_stopped", "_wire"),
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
        logprobs: LogprobsRequest | None = None,
        limit: AnswerLimit | None = None,
        on_missing: Callable[[], object] = lambda: None,
        on_close: Callable[[ServerAttempt, httpx2.Response | None], object] | None = None,
    ) -> None:
        self._client = client
        self._name = name
        self._request = request
        self._prefix = prefix
        self._prepare = prepare
        self._meter = meter
        self._logprobs = logprobs
        self._limit = limit
        self._on_missing = on_missing
        self._on_close = on_close
        self._splitter = EventSplitter()

        self._wire = TrafficCounter()
        self._reader: ChunkReader = ChatReader()
        self._call: Call | None = None
        self._spliced: SplicedDeltas | None = None
        self._response: httpx2.Response | None = None
        self._body: AsyncGenerator[bytes, None] | None = None
        self._document: list[bytes] | None = None  # the answer's events, if it came as one document
        self._opening: anyio.CancelScope | None = None  # lets `aclose` end a request that has no response yet
        self._sent = False
        self._over = False  # nothing more to read: [DONE], end of body, or the wait for the tail is over
        self._eof = False
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
        if not (proof.prompt_tokens or proof.completion_tokens):
            return Usage(prompt_tokens, written, cached_tokens)
        probed = proof.prompt_tokens, proof.completion_tokens
        return Usage(prompt_tokens + probed[0], written + probed[1], cached_tokens, probed=probed)

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
            waited, asked_at = self._meter.waited, anyio.current_time()
            opening = self._opening = anyio.CancelScope()
            with opening, self._wire:
                if self._call is None:
                    self._call = await self._prepare()
                if self._meter.waited == waited:
                    await self._open_either(self._call)
            if opening.cancelled_caught:
                raise StopAsyncIteration
            if self._meter.waited == waited and anyio.current_time() - asked_at > _HEADERS_S:
                return Alive()
            if self._response is None:
                # The wait for a probe is over. The server's time to first token begins now.
                return Started()
        while not self._over and self._reader.finish_reason is None:
            if deltas := await self._read():
                return deltas
            if not self._over and self._reader.finish_reason is None:
                return Alive()
        if not self._over:
            # The answer is complete: wait only a moment for what may still come.
            with anyio.move_on_after(_TAIL_S):
                while not self._over:
                    if deltas := await self._read():
                        return deltas
            self._over = True
        is_empty = self._eof and not self._reader.tokens and self._reader.finish_reason is None
        # llama-cpp-python's server refuses log probabilities by a status of 200 and nothing else.
        if is_empty and self._amends(200, None):
            self._response, self._over, self._eof = None, False, False
            return await self._next()
        return self._end()

    def _amends(self, status: int, error: openai.APIStatusError | None) -> bool:
        """Return whether the server may have refused what disco added to the request; then the call is amended."""
        call, amended = cast("Call", self._call), None
        if self._limit is not None and error is not None:
            amended = self._limit.amended(call, error)
        if amended is None and self._logprobs is not None:
            amended = self._logprobs.dropped_from(call, status)
        self._call = amended or call
        return amended is not None

    async def _read(self) -> list[Delta]:
        """Return the deltas in the next piece of the body; the list may be empty."""
        reader = self._reader
        if reader.broken is not None:
            raise reader.broken
        try:
            data = await cast("Any", self._body).__anext__()
            self._wire.received(data)
            events = self._splitter.feed(data)
        except StopAsyncIteration:
            self._wire.ended()
            self._over = self._eof = True
            events = last_event(self._splitter) if self._document is None else self._document
        except httpx2.HTTPError:
            if reader.finish_reason is None:
                raise
            # The answer is complete; only the stream's tail failed.
            self._over = True
            return []
        deltas = reader.read(events)
        if self._limit is not None:
            self._limit.read(deltas)
        self._over = self._over or reader.done
        if self._spliced is None:
            return deltas
        deltas = self._spliced.pass_on(deltas)
        self._over = self._over or self._spliced.is_cut
        return deltas

    async def _open_either(self, call: Call) -> None:
        """Make the call, or another one where the server has no such path, or no log probabilities."""
        try:
            await self._open(call)
        except openai.APIStatusError as error:
            if self._amends(error.status_code, error):
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
        of_responses = isinstance(self._reader, ResponseReader)
        self._document = await events_of_document(self._response, name=self._name, of_responses=of_responses)
        self._body = pieces(self._response) if self._document is None else _nothing()

    def _end(self) -> list[Delta] | Ended:
        reader, spliced = self._reader, self._spliced
        if spliced is not None and spliced.is_cut:
            self._ended = self._stopped = True
            return Ended("length")
        if reader.finish_reason is None:
            # The server ended early, so the text that the seam still holds back is no evidence about the seam.
            raise error_mapping.incomplete(self._name)
        if reader.finish_reason == "error":
            raise ServerReportedError(None)
        if spliced is not None and (deltas := spliced.end()):
            return deltas
        self._ended = self._stopped = True
        if self._logprobs is not None:
            self._logprobs.answered()
        if self._limit is not None:
            self._limit.ended(reader.finish_reason)
        usage = None if reader.usage is None else self.usage
        return Ended(reader.finish_reason, usage, reader.finish_raw)

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
            elif isinstance(error, MalformedChunkError | EventTooLargeError | httpx2.DecodingError):
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
        if self._on_close is not None:
            self._on_close(self, response)
            self._on_close = None


async def _nothing() -> AsyncGenerator[bytes, None]:
    """Yield nothing: the body was read already."""
    nothing: tuple[bytes, ...] = ()
    for part in nothing:
        yield part
