"""Pass a request for an answer to the client, and send the answer's bytes back as they come."""

from __future__ import annotations

from collections.abc import Mapping
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
from disco.server.api_errors import Refusal, garbled, passed_on
from disco.server.http_reply import EVENTS, Reply
from disco.server.live_page.live_board import LiveBoard, Watched
from disco.server.named_models import NamedModel, NamedModels
from disco.server.request_body import CHAT, EMBEDDINGS, RESPONSES, ParsedBody, parse
from disco.server.request_flow import answer_request
from disco.server.ttft_board import PUBLISHES, Stopwatch, TtftBoard
from disco.server.upstream import KeyFilter, hidden_keys

__all__ = ["Relay"]

CLOSE_S = 5.0
# Headers passed on from the server behind disco. An answer made here has only the first.
_PASSED = frozenset({"content-type", "x-request-id", "openai-processing-ms", "openai-version"})
_LIMITS = "x-ratelimit-"
_BODILESS = (204, 205)


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
        if client.server is None and self._path not in (
            CHAT,
            EMBEDDINGS,
            RESPONSES,
        ):  # the client refuses embeddings
            raise Refusal(
                400,
                f"/v1{self._path} needs a server behind disco, but none is configured. Set OPENAI_API_KEY (and "
                "OPENAI_BASE_URL) for `disco serve`, or the model's base_url in its --config. The local model answers "
                "/v1/chat/completions and /v1/responses.",
                code="no_eligible_endpoint",
            )
        reply.clean = KeyFilter(hidden_keys(client)).cleaned
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
        if not 200 <= response.status_code <= 299 or response.status_code in _BODILESS:
            if asked.stream:
                await response.aclose()
            raise garbled()
        keys = KeyFilter(hidden_keys(client, response.request))
        if not asked.stream:
            whole = keys.cleaned(response.content)
            if shown is not None:
                shown.sent(whole)
            length = "content-length", str(len(whole))
            await reply.begin(response.status_code, [*_headers(response, keys), length])
            await reply.end(whole)
            return
        # A compressed answer is passed on uncompressed: the HTTP client may not support the encoding.
        coded = "content-encoding" in response.headers
        pieces: Any = response.aiter_bytes() if coded else response.aiter_raw()
        if isinstance(response.stream, EventStream):
            pieces = aiter(response.stream)  # made here, so without the decoding of HTTP bodies
        try:
            await reply.begin(response.status_code, _headers(response, keys))
            async for piece in pieces:
                clean = keys.next(piece)
                if clean:
                    watch.sent(clean)
                    if shown is not None:
                        shown.sent(clean)
                    await reply.piece(clean)
        except BaseException:  # after its end, the response has closed itself
            with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_S):
                await pieces.aclose()
                await response.aclose()
            raise
        await reply.end(keys.rest())


def _owner_revises(client: AsyncDisco) -> bool:
    """Return whether answers would be revised where the caller says nothing about it."""
    return (client.default_options.judge or client.router.preset.cascade.stream) == "revise"


def _bounded(options: Mapping[str, Any], bound: Reach) -> Mapping[str, Any]:
    """Return a caller's options, which then take no prompt farther than `bound`, the reach that the owner allows."""
    asked = options.get("reach")
    is_wider = asked is None or (asked in REACHES and not is_within(asked, bound))
    return {**options, "reach": bound} if is_wider and bound != "any" else options


def _unrevised(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a caller's options, by which no text is taken back unless the caller asks: most clients would keep it."""
    return options if options.get("judge") is not None else {**options, "judge": "guard"}


def _headers(response: httpx2.Response, keys: KeyFilter) -> list[tuple[str, str]]:
    passed = passed_on(response.headers, lambda name: name in _PASSED or name.startswith(_LIMITS))
    headers = [(n, keys.cleaned(v.encode("latin-1")).decode("latin-1")) for n, v in passed.items()]
    if response.headers.get("content-type", "").startswith(EVENTS):
        headers.append(("cache-control", "no-cache"))
    headers.append(PUBLISHES)
    return headers
