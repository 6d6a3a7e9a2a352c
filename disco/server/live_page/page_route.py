"""`GET /`: the page, which holds no data. `GET /v1/disco/live`: what it shows."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

import anyio
from starlette.types import Receive, Scope, Send

from disco.server.http_reply import Reply
from disco.server.live_page.endpoint_states import model_states
from disco.server.live_page.live_board import LiveBoard
from disco.server.named_models import NamedModels

__all__ = ["LIVE", "PAGE", "LiveRoute", "PageRoute"]

PAGE: Final = "/"
LIVE: Final = "/v1/disco/live"
FRESH_S: Final = 0.2  # what is the same for all watchers is computed once in this time, however many watch
_FILE: Final = Path(__file__).with_name("page.html")
_INLINE: Final = re.compile(rb"<(script|style)>(.*?)</\1>", re.DOTALL)


class PageRoute:
    """The ASGI application of the page. It loads nothing from elsewhere, and nothing else may be in it or around it."""

    def __init__(self) -> None:
        self._page = _FILE.read_bytes()
        self._headers = [
            ("content-security-policy", _policy(self._page)),
            ("cache-control", "no-store"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            ("referrer-policy", "no-referrer"),
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        reply = Reply(send, PAGE)
        await reply.whole(200, self._page, self._headers, kind="text/html; charset=utf-8")


class LiveRoute:
    """The ASGI application of the page's data. A page asks again and again; `?after=N` leaves out what it has.

    Mutable: `_states` and `_states_at`, what was computed last of models, endpoints and budgets, and when.

    Args:
        board: the answers.
        models: those of the server.
    """

    def __init__(self, board: LiveBoard, models: NamedModels) -> None:
        self._board = board
        self._models = models
        self._states: list[dict[str, Any]] = []
        self._states_at = float("-inf")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        given = parse_qs(scope["query_string"].decode("latin-1")).get("after", ["0"])[-1]
        after = int(given) if given.isascii() and given.isdigit() and len(given) < 16 else 0
        now = anyio.current_time()
        if now - self._states_at >= FRESH_S:
            self._states = model_states(self._models, self._board, now, time.time())
            self._states_at = now
        document = {**self._board.snapshot(after, now), "models": self._states}
        body = json.dumps(document).encode()
        await Reply(send, LIVE).whole(200, body, [("cache-control", "no-store")])


def _policy(page: bytes) -> str:
    """Return the content security policy of a page: of code and styles, only those in it."""
    allowed: dict[str, list[str]] = {"script": [], "style": []}
    for kind, text in _INLINE.findall(page):
        digest = base64.b64encode(hashlib.sha256(text).digest()).decode()
        allowed[kind.decode()].append(f"'sha256-{digest}'")
    return "; ".join(
        [
            "default-src 'none'",
            *(f"{kind}-src {' '.join(hashes)}" for kind, hashes in allowed.items()),
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        ]
    )
