"""Pass a request for an answer to the client, and send the answer's bytes back as they come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import anyio
import httpx2
from starlette.types import Receive, Scope, Send

from disco.candidate import Reach
from disco.client import AsyncDisco
from disco.client.chat.http_encoding import EventStream
from disco.client.direct.direct_answer import reports_put_off
from disco.client.endpoint_catalog.local_servers import REACHES
from disco.dispatch.eligibility import is_within
from disco.server.admission import AnswerLimiter
from disco.server.api_errors import Refusal
from disco.server.http_reply import EVENTS, Reply
from disco.server.live_page.live_board import LiveBoard, Watched
from disco.server.named_models import NamedModel, NamedModels
from disco.server.request_body import CHAT, RESPONSES, ParsedBody, parse
from disco.server.request_flow import answer_request
from disco.server.ttft_board import PUBLISHES, Stopwatch, TtftBoard

__all__ = ["Relay"]

CLOSE_S = 5.0
# Headers passed on from the server behind disco. An answer made here has only the first.
_PASSED = frozenset({"content-type", "x-request-id", "openai-processing-ms", "openai-version"})
_LIMITS = "x-ratelimit-"
_SHORTEST_SECRET = 8  # a shorter "key" (local servers take anything) would blank out ordinary words


class Relay:
    """The ASGI application of one API path that returns answers.

    Args:
        models: who gives the answer, or asks the server.
        path: the API path, below `/v1`.
        limiter: admits requests.
        max_body_bytes: the longest body that is read, in bytes.
        board: gets the TTFT of each answer.
        live: shows each answer on the page; None: there is no page.
    """

    def __init__(
        self,
        models: NamedModels,
        path: str,
        *,
        limiter: AnswerLimiter,
        max_body_bytes: int,
        board: TtftBoard,
        live: LiveBoard | None = None,
    ) -> None:
        self._models = models
        self._path = path
        self._limiter = limiter
        self._max_body_bytes = max_body_bytes
        self._board = board
        self._live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answer_request(
            scope,
            receive,
            Reply(send, f"/v1{self._path}"),
            limiter=self._limiter,
            max_body_bytes=self._max_body_bytes,
            parse=self._parse,
            answer=partial(self._answer, self._board.stopwatch()),
            named=self._path == RESPONSES,
        )

    def _parse(self, data: bytes) -> ParsedBody:
        return parse(self._path, data, self._models.default)

    async def _answer(self, watch: Stopwatch, asked: ParsedBody, reply: Reply) -> None:
        named = self._models.find(asked.body.get("model"))
        if self._path in (CHAT, RESPONSES):
            watch.asked(asked.body.get("model"), asked.disco, stream=asked.stream)
        try:
            with self._shown(named, asked) as shown, reports_put_off():
                await self._write(named, watch, asked, shown, reply)
        except anyio.get_cancelled_exc_class():
            watch.given_up()
            raise

    def _shown(self, named: NamedModel, asked: ParsedBody) -> AbstractContextManager[Watched | None]:
        """Return what shows the answer on the page while it is written; vectors are no answers."""
        if self._live is None or self._path not in (CHAT, RESPONSES):
            return nullcontext()
        return self._live.watching(named.name, asked.body, stream=asked.stream)

    async def _write(
        self, named: NamedModel, watch: Stopwatch, asked: ParsedBody, shown: Watched | None, reply: Reply
    ) -> None:
        client = named.client
        if client.server is None and self._path not in (CHAT, RESPONSES):
            raise Refusal(
                400,
                f"/v1{self._path} needs a server behind disco, but none is configured. Set OPENAI_API_KEY (and "
                "OPENAI_BASE_URL) for `disco serve`, or the model's base_url in its --config. The local model answers "
                "/v1/chat/completions and /v1/responses.",
                code="no_eligible_endpoint",
            )
        disco = asked.disco
        if isinstance(disco, Mapping):
            disco = _bounded(disco, client.router.reach_of(client.default_options))
        if _owner_revises(client) and (disco is None or isinstance(disco, Mapping)):
            disco = _unrevised(disco or {})
        options: Any = {} if disco is None else {"extra_json": {"disco": disco}}
        body = {**asked.body, "model": named.model} if self._models.named else asked.body
        response: httpx2.Response = await client.post(
            self._path, cast_to=httpx2.Response, body=body, options=options, stream=asked.stream
        )
        secrets = _secrets(client)
        if not asked.stream:
            whole = _without(secrets, response.content)
            if shown is not None:
                shown.sent(whole)
            await reply.begin(
                response.status_code, [*_headers(response), ("content-length", str(len(whole)))]
            )
            await reply.end(whole)
            return
        # A compressed answer is passed on uncompressed: the HTTP client may not support the encoding.
        coded = "content-encoding" in response.headers
        pieces: Any = response.aiter_bytes() if coded else response.aiter_raw()
        if isinstance(response.stream, EventStream):
            pieces = aiter(response.stream)  # made here, so without the decoding of HTTP bodies
        try:
            await reply.begin(response.status_code, _headers(response))
            async for piece in pieces:
                watch.sent(piece)
                clean = _without(secrets, piece)
                if shown is not None:
                    shown.sent(clean)
                await reply.piece(clean)
        except BaseException:  # after its end, the response has closed itself
            with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_S):
                await pieces.aclose()
                await response.aclose()
            raise
        await reply.end()


def _owner_revises(client: AsyncDisco) -> bool:
    """Return whether answers would be revised where the caller says nothing about it."""
    return (client.default_options.judge or client.router.preset.cascade.stream) == "revise"


def _secrets(client: AsyncDisco) -> list[bytes]:
    """Return the owner's secrets, which callers must not see."""
    own = client.api_key, client.base_url.password
    return [secret.encode() for secret in own if len(secret) >= _SHORTEST_SECRET]


def _bounded(options: Mapping[str, Any], bound: Reach) -> Mapping[str, Any]:
    """Return a caller's options, which then take no prompt farther than `bound`, the reach that the owner allows."""
    asked = options.get("reach")
    is_wider = asked is None or (asked in REACHES and not is_within(asked, bound))
    return {**options, "reach": bound} if is_wider and bound != "any" else options


def _unrevised(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a caller's options, by which no text is taken back unless the caller asks: most clients would keep it."""
    return options if options.get("judge") is not None else {**options, "judge": "guard"}


def _without(secrets: Iterable[bytes], data: bytes) -> bytes:
    """Return a server's text without the owner's secrets: a server may quote the request it got."""
    for secret in secrets:
        data = data.replace(secret, b"[key]")
    return data


def _headers(response: httpx2.Response) -> list[tuple[str, str]]:
    headers = [(n, v) for n, v in response.headers.items() if n in _PASSED or n.startswith(_LIMITS)]
    if response.headers.get("content-type", "").startswith(EVENTS):
        headers.append(("cache-control", "no-cache"))
    headers.append(PUBLISHES)
    return headers
