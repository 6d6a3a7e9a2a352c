"""The verify server as an ASGI application around an engine.

Beside the rounds (`rounds_route`) it says what it is:

    GET /v1/disco/verifier
    {"model": "smollm2-135m", "vocabulary": "5a…", "context_tokens": 4096, "slots": 8,
     "verify_s": [[1, 0.009], [2, 0.015], [9, 0.044]], "waiting": 0, "busy": 3}

and `GET /v1/models` lists the model, so that clients of the API see what runs here. It writes no chat completions: a
second copy of the model would be needed, or a way round the batch.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from disco.server.api_errors import Refusal
from disco.server.assembly import assemble, make_limiter
from disco.server.http_reply import Reply
from disco.server.prometheus import Metrics
from disco.server.verifier.round_engine import RoundEngine
from disco.server.verifier.rounds_route import ROUNDS, RoundsRoute
from disco.server.verifier.verifier_metrics import VerifierMetrics

__all__ = ["MAX_ROUNDS", "make_verifier_app"]

MAX_ROUNDS: Final = 1024
VERIFIER: Final = "/v1/disco/verifier"
_MODELS: Final = "/v1/models"
_LABELS: Final = frozenset({"/health", "/metrics", ROUNDS, VERIFIER, _MODELS})
_HINT: Final = (
    f"This is a verify server: it has POST {ROUNDS}, GET {VERIFIER}, {_MODELS}, /health and /metrics. For chat "
    "completions, run `disco serve` without --verify."
)


def make_verifier_app(
    engine: RoundEngine,
    *,
    key: str | None = None,
    host: str = "127.0.0.1",
    max_body_bytes: int = 32 * 2**20,
    max_concurrent: int = MAX_ROUNDS,
    allow_origins: Collection[str] = (),
    allow_hosts: Collection[str] = (),
    metrics: Metrics | None = None,
) -> Starlette:
    """Return the application for an ASGI server.

    Args:
        engine: answers the rounds; the caller closes it.
        key: see `make_app`, also for the others.
        host: the address that the server will listen on.
        max_body_bytes: the longest body that is read, in bytes.
        max_concurrent: the most rounds at the same time, those that wait for the model included.
        allow_origins: origins of web pages that may send requests.
        allow_hosts: further host names that requests may use on loopback.
        metrics: what `/metrics` shows; those of the rounds are added. None: no `/metrics`.

    Raises:
        ConfigurationError: see `make_app`.
    """
    limiter = make_limiter(key=key, host=host, max_body_bytes=max_body_bytes, max_concurrent=max_concurrent)
    counted = None
    if metrics is not None:
        counted = VerifierMetrics(metrics.registry)
        counted.watch(engine.facts)
    rounds = RoundsRoute(engine, limiter=limiter, max_body_bytes=max_body_bytes, metrics=counted)
    routes = [
        Route(ROUNDS, rounds, methods=["POST"]),
        Route(VERIFIER, _Facts(engine), methods=["GET"]),
        Route(_MODELS, _Models(engine), methods=["GET"]),
        Route(_MODELS + "/{name:path}", _Models(engine), methods=["GET"]),
    ]
    return assemble(
        routes,
        direct={ROUNDS: rounds},
        limiter=limiter,
        key=key,
        host=host,
        allow_origins=allow_origins,
        allow_hosts=allow_hosts,
        label=_label,
        metrics=metrics,
        hint=_HINT,
    )


class _Facts:
    """`/v1/disco/verifier`."""

    def __init__(self, engine: RoundEngine) -> None:
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await Reply(send, VERIFIER).whole(200, json.dumps(self._engine.facts().to_json()).encode())


class _Models:
    """`/v1/models` and `/v1/models/{name}`: the one model."""

    def __init__(self, engine: RoundEngine) -> None:
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        name = scope["path_params"].get("name")
        if name == "":
            raise HTTPException(404)  # "/v1/models/" is not a path of the API
        model = {
            "id": self._engine.facts().model,
            "object": "model",
            "created": 0,
            "owned_by": "this-machine",
        }
        answer: dict[str, Any] = model if name is not None else {"object": "list", "data": [model]}
        reply = Reply(send, _label(scope["path"]))
        if name not in (None, model["id"]):
            message = f"The model {name[:80]!r} does not exist here."
            await reply.refuse(Refusal(404, message, param="model", code="model_not_found"))
        else:
            await reply.whole(200, json.dumps(answer).encode())


def _label(path: str) -> str:
    """Return the path's name in metrics and in the log: paths made up by clients must not become labels."""
    if path in _LABELS:
        return path
    return "/v1/models/{name}" if path.startswith("/v1/models/") else "other"
