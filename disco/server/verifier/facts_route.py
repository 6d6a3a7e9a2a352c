"""`GET /v1/disco/verifier`: what a verify server is, what a batch costs it, and its load.

{"model": "smollm2-135m", "vocabulary": "5a…", "context_tokens": 4096, "slots": 8,
 "verify_s": [[1, 0.009], [2, 0.015], [9, 0.044]], "waiting": 0, "busy": 3}
"""

from __future__ import annotations

import json
from typing import Final

from starlette.types import Receive, Scope, Send

from disco.endpoints.llamacpp.batching.round_engine import RoundEngine
from disco.server.http_reply import Reply

__all__ = ["VERIFIER", "FactsRoute"]

VERIFIER: Final = "/v1/disco/verifier"


class FactsRoute:
    """The ASGI application of the facts."""

    def __init__(self, engine: RoundEngine) -> None:
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await Reply(send, VERIFIER).whole(200, json.dumps(self._engine.facts().to_json()).encode())
