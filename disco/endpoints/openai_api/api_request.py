"""What an attempt asks of a server: the call is made, sent, and amended where the server refuses what disco added."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import httpx2
import openai
from openai.types.chat import ChatCompletionChunk

from disco.endpoints.continuation.methods import RESPONSES, Call
from disco.endpoints.continuation.probe import ProbeMeter
from disco.endpoints.continuation.rendering import CannotContinueError
from disco.endpoints.continuation.seam import SeamMismatchError
from disco.endpoints.continuation.spliced_deltas import SplicedDeltas
from disco.endpoints.openai_api import error_mapping
from disco.endpoints.openai_api.additions import Addition, AnswerLimit, LogprobsRequest, Refusal
from disco.endpoints.openai_api.api_answer import ServerAnswer
from disco.endpoints.openai_api.chunk_reader import ChatReader, ChunkReader, CompletionReader
from disco.endpoints.openai_api.chunk_repair import MalformedChunkError, ServerReportedError
from disco.endpoints.openai_api.http_transport import TrafficCounter
from disco.endpoints.openai_api.response_reader import ResponseReader
from disco.endpoints.openai_api.sse import EventTooLargeError
from disco.errors import EndpointFailure, FailureKind, IncompleteAnswerError, ModelFileError
from disco.request import Prefix, Request

__all__ = ["ServerRequest"]

_NO_SUCH_PATH = (404, 405, 501)
_OF_ANY_CAUSE = (FailureKind.CONNECTION, FailureKind.SERVER, FailureKind.INCOMPLETE)
# What an error behind a piece of the answer says in vain: the server had taken the request.
_IN_VAIN = (FailureKind.GARBAGE, FailureKind.ACCOUNT, FailureKind.MODEL)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class ServerRequest:
    """The request of one attempt. Mutable: the attributes from `call` on.

    Attributes:
        client: sends the call; its retries and time-outs are not used.
        name: the endpoint's.
        request, prefix: the request to answer, and the beginning of the answer.
        prepare: makes the call; may itself query the server, and raises `CannotContinueError`.
        meter: what `prepare` has used to prove that the server continues.
        additions: what disco asks for besides what the application does; of it, `limit` and `logprobs`.
        on_missing: called when the server has turned out to lack the path of the call.
        wire: counts what is sent and what comes.
        call: as it was sent last, or will be; None: it is not made yet.
        spliced: what is passed on of the answer to it, where that has a prefix.
        is_sent: the server must be assumed to have read the prompt.
        is_excused: the session knows that silence says nothing now.
    """

    client: openai.AsyncOpenAI
    name: str
    request: Request
    prefix: Prefix
    prepare: Callable[[], Awaitable[Call]]
    meter: ProbeMeter
    additions: Sequence[Addition]
    limit: AnswerLimit | None
    logprobs: LogprobsRequest | None
    on_missing: Callable[[], object]
    wire: TrafficCounter = field(default_factory=TrafficCounter)
    call: Call | None = None
    spliced: SplicedDeltas | None = None
    is_sent: bool = False
    is_excused: bool = False

    @property
    def must_excuse(self) -> bool:
        """Whether the answer is asked for as a whole, and the session does not know it.

        The last try has no excuse: the SDK's patience is long enough, and nobody is left who could take over too soon.
        """
        may = not (self.is_excused or self.request.is_last)
        return may and self.call is not None and "stream" not in self.call.body

    @property
    def doubts_stream(self) -> bool:
        """Whether only disco asks for a stream, and the server is not known to give one."""
        call = self.call
        if call is None or self.request.streams or self.prefix:
            return False
        return any(addition.is_doubted_in(call) for addition in self.additions)

    def amends(self, refusal: Refusal) -> bool:
        """Return whether the server may have refused what disco added to the request; then the call is amended."""
        call = cast("Call", self.call)
        for guesses in (False, True):
            for addition in self.additions:
                amended = addition.without(call, refusal, guesses=guesses)
                if amended is not None:
                    self.call = amended
                    return True
        return False

    async def send(self) -> ServerAnswer | None:
        """Send the call, or another one where the server has no such path, or refuses what disco added.

        None where the other one asks for a whole answer, which the session has to know first.
        """
        lacking: openai.APIStatusError | None = None
        answer = None
        while answer is None:
            call = cast("Call", self.call)
            try:
                answer = await self._post(call)
            except openai.APIStatusError as error:
                if self.amends(Refusal.of(error)):
                    if self.must_excuse:
                        break
                elif lacking is None and call.otherwise is not None and error.status_code in _NO_SUCH_PATH:
                    lacking, self.call = error, call.otherwise
                elif lacking is not None and error.status_code == lacking.status_code:
                    raise lacking from None  # it is not the path that the server lacks: the model, perhaps
                else:
                    raise
        if lacking is not None:
            self.on_missing()
        return answer

    async def _post(self, call: Call) -> ServerAnswer:
        """Send the call and wait for the response's headers."""
        if self.prefix:
            self.spliced = SplicedDeltas(self.prefix, call)
        request = self.request
        # The transport's time-out is for connecting only; the session keeps the others, alike for all endpoints.
        timeout = httpx2.Timeout(None, connect=request.connect_s)
        headers, query = dict(request.extra_headers or {}), request.extra_query or {}
        if request.retries:  # as the SDK counts them
            headers.setdefault("x-stainless-retry-count", str(request.retries))
        options: Any = {"max_retries": 0, "timeout": timeout, "headers": headers, "params": query}
        options["security"] = {"bearer_auth": True}
        self.is_sent = True
        try:
            # Asking for the bare response skips only the SDK's typed stream: authentication, default headers,
            # status errors and Azure's paths stay the SDK's.
            response: Any = await self.client.post(
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
            self.is_sent = False
            raise
        return ServerAnswer(response, self._reader(call), self.spliced, self.limit, self.wire, self.name)

    def _reader(self, call: Call) -> ChunkReader:
        """Return what reads the answer to a call."""
        if call.path == "/completions":
            return CompletionReader()
        if call.path == RESPONSES:
            return ResponseReader()
        choices, asked = self.request.params.get("n"), self.logprobs
        several = choices if isinstance(choices, int) and choices > 1 else 1
        classes = () if asked is None else asked.classes
        return ChatReader(several, hides_logprobs=asked is not None, classes=classes)

    def failure(self, error: Exception, answer: ServerAnswer | None) -> EndpointFailure:
        """Return an error as the failure of an attempt; `answer`: what came, if anything."""
        failure = self._failure(error, None if answer is None else answer.response)
        # Where a piece of the answer has come, the server streams, and what breaks off there may be of any cause.
        has_begun = answer is not None and answer.reader.tokens > 0
        if self.doubts_stream and self.wire.traffic.bytes_up:
            is_unclear = failure.kind in _OF_ANY_CAUSE and failure.retry_after_s is None
            failure.plainly = has_begun and failure.kind in _IN_VAIN
            failure.once_more = failure.plainly or (is_unclear and not has_begun)
        return failure

    def _failure(self, error: Exception, response: httpx2.Response | None) -> EndpointFailure:
        if isinstance(error, EndpointFailure):
            return error
        is_instructed = self.call is not None and self.call.method == "instructed"
        if isinstance(error, SeamMismatchError | CannotContinueError | ModelFileError):
            reason = IncompleteAnswerError(f"Endpoint {self.name!r} cannot continue the answer: {error}.")
            again = is_instructed and isinstance(error, SeamMismatchError)
            return EndpointFailure(FailureKind.SEAM, reason, retry_after_s=0.0 if again else None)
        if response is None and isinstance(error, TypeError | ValueError | RuntimeError):
            # The request cannot be made: a value that is no JSON, a closed client. The SDK lets these errors through.
            return EndpointFailure(FailureKind.BAD_REQUEST, error)
        if response is not None:
            if isinstance(error, ServerReportedError):
                error = error_mapping.stream_error(error.body, response.request, error.event)
            elif isinstance(error, MalformedChunkError | EventTooLargeError):
                return error_mapping.garbage(f"sent {error} in its stream", response, name=self.name)
            elif isinstance(error, httpx2.HTTPError | httpx2.StreamError):
                error = error_mapping.wrap_transport(error, response.request)
        key = getattr(self.client, "api_key", None)
        secrets = (key,) if isinstance(key, str) else ()
        request = self.request
        asked = (request.messages, request.params, request.responses, self.prefix.text)
        failure = error_mapping.failure_from(error, name=self.name, secrets=secrets, prompt=asked)
        if is_instructed and failure.kind.is_callers_fault:
            # The instruction is refused, not the application's request.
            return EndpointFailure(FailureKind.SEAM, failure.error)
        return failure
