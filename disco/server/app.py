"""The server as an ASGI application around a client."""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from typing import Any, Final

import anyio
import openai
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from disco.client import AsyncDisco
from disco.endpoints.attached.messages import ANSWERS, HELLO
from disco.endpoints.llamacpp.batching.round_engine import RoundEngine
from disco.endpoints.split.wire import LAYERS, STREAM
from disco.errors import ConfigurationError
from disco.server.access_guards import Guards, check_exposure, check_key, check_origins, is_loopback
from disco.server.admission import AnswerLimiter
from disco.server.api_errors import INVALID, SERVER, Refusal, refusal_of
from disco.server.device.device_route import PATHS, DeviceAnswersRoute, DeviceProofRoute
from disco.server.http_reply import JSON, Reply
from disco.server.layers.layer_facts_route import LayerFactsRoute
from disco.server.layers.layer_host import LayerHost
from disco.server.layers.layer_metrics import LayerMetrics
from disco.server.layers.stream_route import StreamRoute, UpgradeRoute
from disco.server.prometheus import CONTENT_TYPE_LATEST, Metrics
from disco.server.relay import Relay
from disco.server.ttft_board import PUBLISHES, TTFT, TtftBoard, TtftRoute
from disco.server.verifier.facts_route import VERIFIER, FactsRoute
from disco.server.verifier.rounds_route import RELEASE, ROUNDS, ReleaseRoute, RoundsRoute
from disco.server.verifier.verifier_metrics import VerifierMetrics

__all__ = ["MAX_BODY_BYTES", "MAX_CONCURRENT", "make_app"]

MAX_BODY_BYTES: Final = 32 * 2**20
MAX_CONCURRENT: Final = 256
_ANSWERS: Final = ("/chat/completions", "/responses", "/completions", "/embeddings")
_LABELS: Final = frozenset(
    {
        "/health",
        "/metrics",
        "/v1/models",
        ROUNDS,
        VERIFIER,
        LAYERS,
        STREAM,
        TTFT,
        *PATHS,
        *("/v1" + path for path in _ANSWERS),
    }
)


def make_app(
    client: AsyncDisco | None,
    *,
    key: str | None = None,
    host: str = "127.0.0.1",
    max_body_bytes: int = MAX_BODY_BYTES,
    max_concurrent: int = MAX_CONCURRENT,
    allow_origins: Collection[str] = (),
    allow_hosts: Collection[str] = (),
    metrics: Metrics | None = None,
    verifier: RoundEngine | None = None,
    layers: LayerHost | None = None,
    attach_key: str | None = None,
) -> Starlette:
    """Return the application for an ASGI server.

    `app.state.limiter` holds the requests being answered; its `close()` cancels them.

    Args:
        client: gives the answers; the caller closes it. None: there is no model that answers, only `layers`.
        key: the key that requests must have as `Authorization: Bearer`; None lets in all users of this machine.
        host: the address that the server will listen on. On loopback, requests must name a loopback host.
        max_body_bytes: the longest body that is read, in bytes.
        max_concurrent: the most answers at the same time; further requests are refused with "try again".
        allow_origins: origins of web pages that may send requests, such as "http://localhost:3000".
        allow_hosts: further host names that requests may use on loopback, for a proxy that keeps its own name.
        metrics: what `/metrics` shows; its `answer` must be the client's `on_route`. None: no `/metrics`.
        verifier: checks what other devices draft (`/v1/disco/rounds`); None: no such paths. The caller loads and closes
            it. The client may write its own answers with it: see `EngineEndpoint`.
        layers: computes devices' rows (`/v1/disco/layers`); None: no such paths. The caller loads and closes it.
        attach_key: with it, other programs may use the client's local model itself (`/v1/disco/device`), whatever
            `key` is; None: no such paths. See `device.announcing`.

    Raises:
        ConfigurationError: `host` can be reached from other machines and there is no strong key, or an argument is
            invalid.
    """
    check_key(key)
    check_exposure(host, key)
    if max_body_bytes < 1 or max_concurrent < 1:
        raise ConfigurationError("max_body_bytes and max_concurrent must be at least 1.")
    limiter, board = AnswerLimiter(max_concurrent), TtftBoard()
    relays: dict[str, ASGIApp] = {
        "/v1" + path: _no_model
        if client is None
        else Relay(client, path, limiter=limiter, max_body_bytes=max_body_bytes, board=board)
        for path in _ANSWERS
    }
    if verifier is not None:
        counted = None if metrics is None else VerifierMetrics(metrics.registry, verifier.facts)
        relays[ROUNDS] = RoundsRoute(
            verifier, limiter=limiter, max_body_bytes=max_body_bytes, metrics=counted
        )
    attached = None if client is None or attach_key is None else client.router.local
    if attached is not None and attach_key is not None:
        relays[ANSWERS] = DeviceAnswersRoute(
            attached, attach_key, limiter=limiter, max_body_bytes=max_body_bytes
        )
    routes: list[BaseRoute] = [
        *(Route(path, relay, methods=["POST"]) for path, relay in relays.items()),
        Route("/v1/models", _Models(client), methods=["GET"]),
        Route("/v1/models/{name:path}", _Models(client), methods=["GET"]),
        Route(TTFT, TtftRoute(board), methods=["GET"]),
        Route("/health", _health, methods=["GET"]),
    ]
    if attached is not None and attach_key is not None:
        routes.append(Route(HELLO, DeviceProofRoute(attach_key), methods=["GET"]))
    if verifier is not None:
        routes.append(Route(RELEASE, ReleaseRoute(verifier), methods=["DELETE"]))
        routes.append(Route(VERIFIER, FactsRoute(verifier), methods=["GET"]))
    if layers is not None:
        of_layers = None if metrics is None else LayerMetrics(metrics.registry, layers)
        stream = StreamRoute(layers, limiter=limiter, metrics=of_layers)
        routes.append(Route(LAYERS, LayerFactsRoute(layers, max_body_bytes), methods=["GET"]))
        routes += [WebSocketRoute(STREAM, stream), Route(STREAM, UpgradeRoute(), methods=["GET"])]
    if metrics is not None:
        metrics.watch(lambda: limiter.busy)
        if client is not None:
            budgets = client.router.limiter
            metrics.watch_budgets(lambda: budgets.left(time.time()))
        routes.append(Route("/metrics", _MetricsPage(metrics), methods=["GET"]))
    names = (
        frozenset(name.lower() for name in (host.strip("[]"), *allow_hosts)) if is_loopback(host) else None
    )
    guards = Middleware(
        Guards,
        direct=relays,
        key=key,
        keyless=frozenset({"/health"}) if attached is None else PATHS | {"/health"},
        names=names,
        origins=check_origins(allow_origins),
        label=_label,
        metrics=metrics,
    )
    app = Starlette(routes=routes, middleware=[guards], exception_handlers={HTTPException: _no_such})
    app.router.redirect_slashes = False
    app.state.limiter = limiter
    return app


class _Models:
    """`/v1/models` and `/v1/models/{name}`: the server's models and the one on this machine."""

    def __init__(self, client: AsyncDisco | None) -> None:
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        name = scope["path_params"].get("name")
        if name == "":
            raise HTTPException(404)  # "/v1/models/" is not a path of the API
        reply = Reply(send, _label(scope["path"]))
        try:
            if self._client is None:
                answer = _none_of(name)
            else:
                answer = await (_all(self._client) if name is None else _one(self._client, name))
        except Exception as error:  # noqa: BLE001 - reported to the HTTP client, whatever the error
            await reply.refuse(refusal_of(error))
        else:
            await reply.whole(200, json.dumps(answer).encode(), [PUBLISHES])


class _MetricsPage:
    """`/metrics`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await Reply(send, "/metrics").whole(200, self._metrics.text(), kind=CONTENT_TYPE_LATEST)


async def _all(client: AsyncDisco) -> dict[str, Any]:
    mine = [model.model_dump(mode="json", exclude_unset=True) for model in client.local_models()]
    if not _asks_server(client):
        return {"object": "list", "data": mine}
    try:
        raw = await client.models.with_raw_response.list()
        theirs = _document(raw.content)
        if not isinstance(theirs.get("data"), list):
            raise _garbled()
    except (openai.APIConnectionError, Refusal):
        # The model on this machine also works without a server.
        if not mine:
            raise
        theirs = {"object": "list", "data": []}
    return {**theirs, "data": [*mine, *theirs["data"]]}


async def _one(client: AsyncDisco, name: str) -> dict[str, Any]:
    for model in client.local_models():
        if model.id == name:
            return model.model_dump(mode="json", exclude_unset=True)
    unknown = _unknown(name)
    if not _asks_server(client):
        raise unknown
    try:
        raw = await client.models.with_raw_response.retrieve(name)
    except ValueError:  # the SDK refuses dots in a path
        raise unknown from None
    return _document(raw.content)


def _asks_server(client: AsyncDisco) -> bool:
    return client.server is not None and client.router.may_ask(client.server, client.default_options)


def _none_of(name: str | None) -> dict[str, Any]:
    """Return the models of a server that has none that answers."""
    if name is not None:
        raise _unknown(name)
    return {"object": "list", "data": []}


def _unknown(name: str) -> Refusal:
    message = f"The model {name[:80]!r} does not exist here."
    return Refusal(404, message, param="model", code="model_not_found")


async def _no_model(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse to answer: there is no model that could."""
    del receive, send
    await anyio.lowlevel.checkpoint()
    raise Refusal(
        400,
        f"{scope['path']} needs a model that answers, and this server has only some layers of one, for devices that "
        "have the others. Start `disco serve` with --local MODEL, or set OPENAI_API_KEY for it.",
        code="no_eligible_endpoint",
    )


async def _health(request: Request) -> Response:
    """Report that the server runs. The response contains no other data, so it needs no key."""
    del request
    await anyio.lowlevel.checkpoint()
    return Response(b'{"status":"ok"}', media_type=JSON)


async def _no_such(request: Request, error: Exception) -> Response:
    """Return the API's error for an unknown path or a method that the path does not accept."""
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path[:80]}"
    if error.status_code == 405:
        refusal = Refusal(405, f"Not allowed: {where}.", kind=INVALID, code="method_not_supported")
    else:
        refusal = Refusal(error.status_code, f"Invalid URL ({where}).", code="unknown_url")
    await anyio.lowlevel.checkpoint()
    headers = dict(error.headers or {})
    return Response(refusal.body(), refusal.status, headers=headers, media_type=JSON)


def _label(path: str) -> str:
    """Return the path's name in metrics and in the log: paths made up by clients must not become labels."""
    if path in _LABELS:
        return path
    if path.startswith(ROUNDS + "/"):
        return RELEASE  # a key must be in no log
    return "/v1/models/{name}" if path.startswith("/v1/models/") else "other"


def _document(data: bytes) -> dict[str, Any]:
    """Parse the JSON object that the server behind disco answered.

    Raises:
        Refusal: the answer is not a JSON object.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise _garbled() from None
    if not isinstance(document, dict):
        raise _garbled()
    return document


def _garbled() -> Refusal:
    message = "The server behind disco sent an answer that does not follow the API."
    return Refusal(502, message, kind=SERVER, code="bad_response")
