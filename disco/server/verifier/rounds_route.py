"""`POST /v1/disco/rounds`: one round of an answer in, the verdict of the server's model out; and `DELETE`, to leave it.

The first round of an answer brings an opening. `key` is new for each answer: 32 random hexadecimal digits, which are
all that an answer is found by. `speculate.messages` describes the fields; those with usual values are left out.

    POST /v1/disco/rounds
    Authorization: Bearer KEY-OF-THE-SERVER
    Content-Type: application/json

    {"key": "0f3c…", "number": 0, "at": 0, "wants_prompt": true, "opening": {
        "messages": [{"role": "user", "content": "Hi"}], "params": {"max_tokens": 64, "temperature": 0.8}, "seed": 7}}

    200, application/json
    {"number": 0, "at": 0, "ids": [12092], "deltas": [{"delta": {"content": "Hello"}}], "rows": 31,
     "prompt_tokens": 31, "completion_tokens": 1, "compute_s": 0.4, "prompt_ids": [1, …]}

A later round drafts from a position on, and the verdict holds the drafted tokens that were right, and one more:

    {"key": "0f3c…", "number": 1, "at": 1, "draft": [28, 703, 506]}

    {"number": 1, "at": 1, "ids": [28, 703, 260], "judged": 3, "accepted": 2, "rows": 4, …}

The next window may be sent on a second connection before the verdict has come. Once the model has written more tokens
than were drafted, or fewer, the verdict on such a window has no ids, and its `at` is the answer's length.

With `"alone": 32` the server goes on alone for 32 tokens. Then the reply is `application/x-ndjson`: a verdict a line,
each sent as soon as it is made. An error after the first line is the last line, `{"error": {…}}`.

A client that closes the connection stops the work for this round. The answer stays for a while. One that will not ask
for it again says so, and the server has its place for others at once:

    DELETE /v1/disco/rounds/0f3c…

The reply is 204, whether or not the answer was here. An answer that has ended needs no such request.

Errors have the API's form. 400: a broken message (code `invalid_round`; the message names the field), parameters that
the model cannot take, or `context_length_exceeded`. 429 with Retry-After: too many rounds. 503 `verifier_failed`: the
model crashed or stopped; `shutting_down`: the server ends. 409 has three codes:

- `answer_lost`: the answer is not here; send the round again with an opening, and in it the answer's ids so far.
- `model_changed`: the opening's `fingerprint` is that of another model than the server has, so its ids are of no use.
- `superseded`: the same round came again on another connection, which gets the verdict.
"""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Final

import openai
from starlette.types import Receive, Scope, Send

from disco.endpoints.llamacpp.batching.round_engine import RoundEngine
from disco.endpoints.llamacpp.batching.round_refusals import RoundRefused
from disco.errors import EndpointFailure, FailureKind
from disco.request_checks import check_chat, checked_prefix
from disco.server.admission import AnswerLimiter
from disco.server.api_errors import SERVER, Refusal, refusal_of
from disco.server.http_reply import LINES, Reply
from disco.server.request_body import parse_json
from disco.server.request_flow import answer_request
from disco.server.verifier.verifier_metrics import VerifierMetrics
from disco.speculate.messages import BadMessageError, Round, Verdict

__all__ = ["RELEASE", "ROUNDS", "ReleaseRoute", "RoundsRoute", "parse_round"]

ROUNDS: Final = "/v1/disco/rounds"
RELEASE: Final = ROUNDS + "/{key}"
_BUSY: Final = "The model has as many answers as it can take. Try again in a second."
_FAILED: Final = "The model of this verify server failed. Its log says more."
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class RoundsRoute:
    """The ASGI application of the rounds.

    Args:
        engine: answers them.
        limiter: admits the requests.
        max_body_bytes: the longest body that is read, in bytes.
        metrics: counts the verdicts.
    """

    def __init__(
        self,
        engine: RoundEngine,
        *,
        limiter: AnswerLimiter,
        max_body_bytes: int,
        metrics: VerifierMetrics | None,
    ) -> None:
        self._engine = engine
        self._limiter = limiter
        self._max_body_bytes = max_body_bytes
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answer_request(
            scope,
            receive,
            Reply(send, ROUNDS),
            limiter=self._limiter,
            max_body_bytes=self._max_body_bytes,
            parse=parse_round,
            answer=self._answer,
            refusal=_refusal,
        )

    async def _answer(self, round_: Round, reply: Reply) -> None:
        mode = "alone" if round_.alone else "window"
        # Without `aclosing`, an iterator that is left in the middle would go on until it is collected as garbage.
        async with aclosing(self._engine.round(round_)) as verdicts:
            async for verdict in verdicts:
                if self._metrics is not None:
                    self._metrics.verdict(verdict, mode)
                if mode == "window":
                    await reply.whole(200, _bytes(verdict))
                    return
                if not reply.started:
                    await reply.begin(200, [("content-type", LINES), ("cache-control", "no-cache")])
                await reply.piece(_bytes(verdict) + b"\n")
        if not reply.started:
            raise Refusal(503, _FAILED, kind=SERVER, code="verifier_failed", reason="no verdict")
        await reply.end()


class ReleaseRoute:
    """The ASGI application that lets an answer go.

    Args:
        engine: has the answers.
    """

    def __init__(self, engine: RoundEngine) -> None:
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        self._engine.release(scope["path_params"]["key"])
        reply = Reply(send, RELEASE)
        await reply.begin(204, ())
        await reply.end()


def parse_round(data: bytes) -> Round:
    """Parse a round and check what its opening asks for.

    Raises:
        Refusal: the body is no round.
        NoEndpointError: a field of the opening's messages or params has a wrong type or is out of range.
    """
    try:
        round_ = Round.from_json(parse_json(data))
    except BadMessageError as error:
        raise Refusal(400, f"Invalid round: {error}.", code="invalid_round") from None
    if round_.opening is not None:
        checked_prefix(round_.opening.prefix, "opening.prefix")
        if not round_.opening.messages:
            message = "Invalid 'messages': empty array. Expected an array with minimum length 1."
            raise Refusal(400, message, param="messages", code="empty_array")
        for refused in check_chat({**round_.opening.params, "messages": round_.opening.messages}).values():
            raise refused
    return round_


def _bytes(verdict: Verdict) -> bytes:
    # A token may hold half of a surrogate pair only if the tokenizer is broken; then the text says so.
    return _encode(verdict.to_json()).encode("utf-8", "replace")


def _refusal(error: Exception) -> Refusal:
    """Return the refusal for what ended a round."""
    if isinstance(error, RoundRefused):
        return Refusal(409, error.message, code=error.code)
    if not isinstance(error, EndpointFailure):
        return refusal_of(error)
    reason = f"verifier: {error.kind}"
    if error.kind in (FailureKind.BAD_REQUEST, FailureKind.UNSERVED, FailureKind.CONTEXT_LENGTH):
        refusal = refusal_of(error.error) if isinstance(error.error, openai.APIStatusError) else None
        if refusal is None or refusal.status >= 500:
            long = error.kind is FailureKind.CONTEXT_LENGTH
            refusal = Refusal(
                400, str(error.error), code="context_length_exceeded" if long else "invalid_round"
            )
        refusal.reason = reason
        return refusal
    if error.kind is FailureKind.RATE_LIMIT:
        wait_s = max(1, round(error.retry_after_s or 1))
        return Refusal(
            429,
            _BUSY,
            kind="requests",
            code="rate_limit_exceeded",
            headers={"retry-after": str(wait_s)},
            reason=reason,
        )
    return Refusal(503, _FAILED, kind=SERVER, code="verifier_failed", reason=reason)
