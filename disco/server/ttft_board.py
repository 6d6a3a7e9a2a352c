"""The server's own TTFT by model, as its callers feel it but for the network, and `GET /v1/disco/ttft`.

{"version": 1, "unit": "s", "model": "gpt-4o-mini", "count": 180, "censored": 4, "newest_age_s": 2.1,
 "oldest_age_s": 1650.0, "quantiles_s": [0.21, 0.22, ...]}

It is measured from a request's arrival to the first content sent: text, reasoning or a tool call, of answers that are
sent as events. An answer given up before is known to have taken longer. What failed is no latency. Only the last hour
and the last 400 answers count, the newest ones most (`AdaptiveRolling`).
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from disco.endpoints.published_ttft import HEADER, MOST_QUANTILES, VERSION, PublishedTtft
from disco.profiles import AdaptiveRolling
from disco.server.api_errors import Refusal
from disco.server.http_reply import Reply

__all__ = ["PUBLISHES", "TTFT", "Stopwatch", "TtftBoard", "TtftRoute"]

TTFT: Final = "/v1/disco/ttft"
PUBLISHES: Final = (HEADER, VERSION)
"""The header by which a client knows that it may ask."""
MOST_AGE_S: Final = 3600.0
FRESH_S: Final = 1.0
_MOST_MODELS: Final = 64  # callers may make up any model's name
_LONGEST_NAME: Final = 1000  # characters
_MOST_ANSWERS: Final = 400
# A delta with something in it, in an event of either API.
_CONTENT: Final = re.compile(
    rb'"(?:content|reasoning_content|reasoning|refusal|arguments|name)" *: *"[^"]'
    rb'|"type" *: *"response\.(?:output_text|refusal|function_call_arguments|reasoning_\w+)\.delta"'
)
# Options of a request that change which endpoints answer: its TTFT says nothing of other requests.
_ROUTES: Final = frozenset({"local_only", "reach", "preset", "policy", "classes", "speculate"})


class TtftBoard:
    """What was measured.

    Mutable: `_seen`, by model: when it was seen, how long it took, and whether it took longer; `_said`, by model: what
    was published last, and when.

    Args:
        clock: s.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, deque[tuple[float, float, bool]]] = {}
        self._said: dict[str, tuple[float, PublishedTtft]] = {}

    def stopwatch(self) -> Stopwatch:
        """Return what measures one request, which arrives now."""
        return Stopwatch(self, self._clock)

    def observe(self, model: str, took_s: float, *, censored: bool = False) -> None:
        """Add the TTFT of one answer; `censored`: the caller gave it up after this time."""
        seen = self._seen.pop(model, None) or deque(maxlen=_MOST_ANSWERS)
        self._seen[model] = seen  # as the newest
        seen.append((self._clock(), took_s, censored))
        if len(self._seen) > _MOST_MODELS:
            oldest = next(iter(self._seen))
            del self._seen[oldest]
            self._said.pop(oldest, None)

    def published(self, model: str) -> PublishedTtft:
        """Return what the server says of a model; computed once a second at most, however many clients ask."""
        now = self._clock()
        at, said = self._said.get(model, (-FRESH_S, None))
        if said is None or now - at >= FRESH_S:
            said = self._computed(model, now)
            if model in self._seen:
                self._said[model] = now, said
        return said

    def _computed(self, model: str, now: float) -> PublishedTtft:
        seen = [one for one in self._seen.get(model, ()) if now - one[0] <= MOST_AGE_S]
        count = sum(not censored for _, _, censored in seen)
        if not count:
            return PublishedTtft(model=model[:_LONGEST_NAME], count=0)
        times = AdaptiveRolling()
        for _, took_s, censored in seen:
            (times.observe_censored if censored else times.observe)(took_s)
        quantiles = times.snapshot().spaced(min(MOST_QUANTILES, 4 * count))
        return PublishedTtft(
            model=model,
            count=count,
            censored=len(seen) - count,
            newest_age_s=round(now - seen[-1][0], 3),
            oldest_age_s=round(now - seen[0][0], 3),
            quantiles_s=[float(f"{value:.5g}") for value in quantiles],
        )


class Stopwatch:
    """Measures one request. Mutable: `_model`, the request's while it is still to be measured."""

    def __init__(self, board: TtftBoard, clock: Callable[[], float]) -> None:
        self._board = board
        self._clock = clock
        self._began_at = clock()
        self._model: str | None = None

    def asked(self, model: object, options: object, *, stream: bool) -> None:
        """Note what is asked; only streams of the model's usual way are measured."""
        usual = not isinstance(options, dict) or _ROUTES.isdisjoint(options)
        if stream and usual and isinstance(model, str) and len(model) <= _LONGEST_NAME:
            self._model = model

    def sent(self, piece: bytes) -> None:
        """Note a piece of the answer."""
        if self._model is not None and _CONTENT.search(piece) is not None:
            self._end(censored=False)

    def given_up(self) -> None:
        """Note that the caller has left."""
        if self._model is not None:
            self._end(censored=True)

    def _end(self, *, censored: bool) -> None:
        assert self._model is not None
        self._board.observe(self._model, self._clock() - self._began_at, censored=censored)
        self._model = None


class TtftRoute:
    """The ASGI application."""

    def __init__(self, board: TtftBoard) -> None:
        self._board = board

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        reply = Reply(send, TTFT)
        named = parse_qs(scope["query_string"].decode("latin-1")).get("model", [])
        if len(named) != 1:
            message = "Name one model: /v1/disco/ttft?model=NAME."
            await reply.refuse(Refusal(400, message, param="model", code="missing_required_parameter"))
            return
        document = self._board.published(named[0]).model_dump_json()
        await reply.whole(200, document.encode())
