"""The client's side of a verify server: the probe, and the rounds of one answer.

A round is idempotent by its key and position. So a round whose reply is lost may be sent again, and one that a server
has no answer for is sent again with what the answer is made from.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, TypeVar, cast

import anyio
import httpx2
import openai
from openai.types.chat import ChatCompletionChunk

from disco.endpoints.kept_line import KeptLine
from disco.endpoints.openai_api import error_mapping
from disco.endpoints.openai_api.connectivity import connects_directly
from disco.endpoints.openai_api.http_transport import TrafficCounter, pieces, unwind
from disco.errors import EndpointFailure, FailureKind
from disco.events import Traffic
from disco.request import Request
from disco.speculate.messages import BadMessageError, Opening, Round, Verdict, VerifierFacts

__all__ = ["MODEL_CHANGED", "NO_VERIFIER", "VerifierClient", "verifier_facts"]

ROUNDS: Final = "/disco/rounds"
FACTS: Final = "/disco/verifier"
NO_VERIFIER: Final = (404, 405, 501)
"""Statuses with which a server says that it has no such path."""
MODEL_CHANGED: Final = "model_changed"
"""The error code with which a server says that it has another model than the opening names."""
_LOST: Final = "answer_lost"
_SUPERSEDED: Final = "superseded"
_PROBE_S: Final = 5.0
_LONGEST_LINE: Final = 4 * 2**20
_CLOSE_S: Final = 1.0
_Sent = TypeVar("_Sent")


async def verifier_facts(client: openai.AsyncOpenAI, *, limit_s: float = _PROBE_S) -> VerifierFacts | None:
    """Ask a server what it says of itself as a verifier; None where it is none.

    Args:
        client: of the server.
        limit_s: time limit, seconds.

    Raises:
        openai.OpenAIError, httpx2.HTTPError: it could not be asked, so nothing is known.
    """
    options: Any = {"max_retries": 0, "timeout": limit_s, "security": {"bearer_auth": True}}
    try:
        answer = await client.get(FACTS, cast_to=object, options=options)
        return VerifierFacts.from_json(answer)
    except openai.APIStatusError as error:
        if error.status_code in NO_VERIFIER:
            return None
        raise
    except (BadMessageError, openai.APIResponseValidationError, ValueError):
        return None  # some servers answer every path with a page


class VerifierClient:
    """Sends the rounds of one answer; as many at the same time as the caller likes.

    Args:
        client: sends the requests; its retries and time-outs are not used.
        name: the endpoint's, for messages.
        request: of the answer; its headers, query and connect time-out are used.
        opening: returns the answer's opening with the ids so far, for a server that has lost the answer.
    """

    # Mutable: everything below the blank line.
    __slots__ = (
        "_client",
        "_lines",
        "_name",
        "_opening",
        "_options",
        "_past",
        "_request",
        "_wires",
    )

    def __init__(
        self,
        client: openai.AsyncOpenAI,
        *,
        name: str,
        request: Request,
        opening: Callable[[], Opening],
    ) -> None:
        self._client = client
        self._name = name
        self._request = request
        self._opening = opening
        timeout = httpx2.Timeout(None, connect=request.connect_s)
        options: Any = {"max_retries": 0, "timeout": timeout, "security": {"bearer_auth": True}}
        if request.extra_headers:
            options["headers"] = dict(request.extra_headers)
        if request.extra_query:
            options["params"] = request.extra_query
        self._options = options

        self._lines: list[KeptLine] = []  # those that are free
        self._wires: list[TrafficCounter] = []  # of the requests in flight
        self._past = Traffic()  # of all that is over

    @property
    def traffic(self) -> Traffic:
        """Return the bytes sent and received so far."""
        passed = [self._past, *(w.traffic for w in self._wires), *(line.traffic for line in self._lines)]
        return Traffic(sum(t.bytes_up for t in passed), sum(t.bytes_down for t in passed))

    async def round(self, round_: Round) -> Verdict:
        """Send one round and return its verdict.

        Raises:
            EndpointFailure: the server refuses it, or fails; with CONNECTION, the round may be sent again.
        """
        content: bytes | None = None
        if self._lines:
            line = self._lines.pop()
            try:
                content = await line.ask(_encoded(round_))
            finally:
                if content is not None:
                    self._lines.append(line)
                else:
                    await self._drop(line)
        if content is None:
            content = await self._sent(round_, self._whole)
        return self._verdict(content)

    async def alone(self, round_: Round) -> AsyncGenerator[Verdict, None]:
        """Send a round after whose draft the server goes on alone, and yield its verdicts as they come.

        Raises:
            EndpointFailure: as from `round`.
        """
        response, wire = await self._sent(round_, self._post)
        try:
            async with aclosing(_lines(response, wire)) as lines:
                async for line in lines:
                    yield self._verdict(line, response)
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise self._failure(error, response) from error
        finally:
            await self._over(response, wire)

    async def release(self, key: str) -> None:
        """Tell the server that nobody will ask for an answer again. What passes for it is not counted.

        Raises:
            openai.OpenAIError, httpx2.HTTPError: the server does not know this request, or cannot be reached.
        """
        await self._client.delete(f"{ROUNDS}/{key}", cast_to=type(None), options=self._options)

    async def aclose(self) -> None:
        """Give the connections back. Idempotent."""
        while self._lines:
            await self._drop(self._lines.pop())

    async def _drop(self, line: KeptLine) -> None:
        self._past = _sum(self._past, line.traffic)
        await line.aclose()

    async def _over(self, response: httpx2.Response, wire: TrafficCounter) -> None:
        if wire in self._wires:
            self._wires.remove(wire)
            self._past = _sum(self._past, wire.traffic)
        if not response.is_closed:
            with anyio.move_on_after(_CLOSE_S, shield=True):
                await response.aclose()

    async def _sent(self, round_: Round, send: Callable[[Round], Awaitable[_Sent]]) -> _Sent:
        """Send a round, with an opening if the server has lost the answer."""
        try:
            try:
                return await send(round_)
            except openai.ConflictError as error:
                if error.code != _LOST:
                    raise
                return await send(replace(round_, opening=self._opening()))
        except EndpointFailure:
            raise
        except Exception as error:
            raise self._failure(error) from error

    async def _post(self, round_: Round) -> tuple[httpx2.Response, TrafficCounter]:
        """Send a round as the SDK does, and return the response and the counter of what passes."""
        wire = TrafficCounter()
        self._wires.append(wire)
        try:
            with wire:
                answer: object = await self._client.post(
                    ROUNDS,
                    body=round_.to_json(),
                    cast_to=httpx2.Response,
                    options=self._options,
                    stream=True,
                    stream_cls=openai.AsyncStream[ChatCompletionChunk],
                )
        except BaseException:
            self._wires.remove(wire)
            self._past = _sum(self._past, wire.traffic)
            raise
        return cast("httpx2.Response", answer), wire

    async def _whole(self, round_: Round) -> bytes:
        """Send a round as the SDK does, return the reply's body, and keep the connection if possible."""
        response, wire = await self._post(round_)
        line: KeptLine | None = None
        try:
            body = [piece async for piece in pieces(response, wire)]
            line = KeptLine.of(response) if self._may_keep else None
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise error_mapping.wrap_transport(error, response.request) from error
        finally:
            if line is None:
                await self._over(response, wire)
        if line is not None:
            self._wires.remove(wire)
            self._past = _sum(self._past, wire.traffic)
            self._lines.append(line)
        return b"".join(body)

    @property
    def _may_keep(self) -> bool:
        """Whether nobody else has to see the requests: no proxy, no hook and no signature of the application's."""
        http = self._client._client  # noqa: SLF001 - as in `connectivity`
        hooks = getattr(http, "event_hooks", {})
        return connects_directly(self._client) and not any(hooks.values()) and http.auth is None

    def _verdict(self, content: bytes, response: httpx2.Response | None = None) -> Verdict:
        try:
            document = json.loads(content)
            if response is not None and isinstance(document, dict) and document.get("error"):
                error = error_mapping.stream_error(document["error"], response.request)
                raise self._failure(error)
            return Verdict.from_json(document)
        except (ValueError, RecursionError) as error:
            reason = openai.APIConnectionError(
                message=f"Endpoint {self._name!r} sent a verdict that breaks the protocol.",
                request=httpx2.Request("POST", f"disco://server{ROUNDS}"),
            )
            raise EndpointFailure(FailureKind.GARBAGE, reason) from error

    def _failure(self, error: Exception, response: httpx2.Response | None = None) -> EndpointFailure:
        if isinstance(error, TypeError | ValueError | RuntimeError) and not isinstance(
            error, openai.OpenAIError
        ):
            # The request cannot be made: a value that is no JSON, a closed client.
            return EndpointFailure(FailureKind.BAD_REQUEST, error)
        if response is not None:
            error = error_mapping.wrap_transport(error, response.request)
        key = getattr(self._client, "api_key", None)
        secrets = (key,) if isinstance(key, str) else ()
        asked = (self._request.messages, self._request.params)
        failure = error_mapping.failure_from(error, name=self._name, secrets=secrets, prompt=asked)
        if getattr(error, "code", None) == _SUPERSEDED:
            # Something between here and the server sent the round twice: its verdict is as good as lost on the way.
            return EndpointFailure(FailureKind.CONNECTION, failure.error)
        return failure


def _encoded(round_: Round) -> bytes:
    return json.dumps(round_.to_json(), separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


async def _lines(response: httpx2.Response, wire: TrafficCounter) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a body of JSON lines as they come."""
    rest = b""
    body = pieces(response, wire)
    try:
        async for piece in body:
            *whole, rest = (rest + piece).split(b"\n")
            if len(rest) > _LONGEST_LINE:
                raise httpx2.DecodingError("a line is too long", request=response.request)
            for line in whole:
                if line.strip():
                    yield line
        if rest.strip():
            yield rest
    finally:
        await unwind(body)


def _sum(one: Traffic, other: Traffic) -> Traffic:
    return Traffic(one.bytes_up + other.bytes_up, one.bytes_down + other.bytes_down)
