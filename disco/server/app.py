"""The server as an ASGI application around a client."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from disco.client import AsyncDisco
from disco.endpoints.llamacpp.batching.round_engine import RoundEngine
from disco.endpoints.split.wire import LAYERS, STREAM
from disco.errors import ConfigurationError, cut
from disco.server.access_guards import Guards, check_exposure, check_key, check_origins, is_loopback
from disco.server.admission import AnswerLimiter
from disco.server.api_errors import INVALID, Refusal
from disco.server.http_reply import JSON, Reply
from disco.server.layers.layer_facts_route import LayerFactsRoute
from disco.server.layers.layer_host import LayerHost
from disco.server.layers.layer_metrics import LayerMetrics
from disco.server.layers.stream_route import StreamRoute, UpgradeRoute
from disco.server.live_page.live_board import LiveBoard
from disco.server.live_page.page_route import LIVE, PAGE, LiveRoute, PageRoute
from disco.server.models_route import MODEL, MODELS, ModelsRoute
from disco.server.named_models import NamedModels
from disco.server.prometheus import CONTENT_TYPE_LATEST, Metrics
from disco.server.relay import Relay
from disco.server.ttft_board import TTFT, TtftBoard, TtftRoute
from disco.server.upstream import share_nothing
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
        MODELS,
        PAGE,
        LIVE,
        ROUNDS,
        VERIFIER,
        LAYERS,
        STREAM,
        TTFT,
        *("/v1" + path for path in _ANSWERS),
    }
)


def make_app(
    client: AsyncDisco | NamedModels | None,
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
    page: LiveBoard | None = None,
) -> Starlette:
    """Return the application for an ASGI server.

    `app.state.limiter` holds the requests being answered; its `close()` cancels them.

    Args:
        client: gives the answers; the caller closes it. Or several models by name, with their clients. None: there is
            no model that answers, only `layers`. Their HTTP clients keep no cookies and follow no redirect to another
            host from now on.
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
        page: what the live page at `/` shows; its `answered` must be the clients' `on_route`. If it shows texts, there
            must be a `key`. None: no page.

    Raises:
        ConfigurationError: `host` can be reached from other machines and there is no strong key, or an argument is
            invalid.
    """
    check_key(key)
    check_exposure(host, key)
    if page is not None and page.text and key is None:
        raise ConfigurationError(
            "--page-text (LiveBoard(text=True)) shows prompts and answers to whoever opens the page, but no key is "
            "set. Set a key in DISCO_SERVER_KEY or --key-file, or leave --page-text out."
        )
    if max_body_bytes < 1 or max_concurrent < 1:
        raise ConfigurationError("max_body_bytes and max_concurrent must be at least 1.")
    models = NamedModels.of(client)
    for one in models.clients:
        share_nothing(one)
    limiter, board = AnswerLimiter(max_concurrent), TtftBoard()
    relays: dict[str, ASGIApp] = {
        "/v1" + path: _no_model
        if not models.clients
        else Relay(models, path, limiter=limiter, max_body_bytes=max_body_bytes, board=board, live=page)
        for path in _ANSWERS
    }
    if verifier is not None:
        counted = None if metrics is None else VerifierMetrics(metrics.registry, verifier.facts)
        relays[ROUNDS] = RoundsRoute(
            verifier, limiter=limiter, max_body_bytes=max_body_bytes, metrics=counted
        )
    routes: list[BaseRoute] = [
        *(Route(path, relay, methods=["POST"]) for path, relay in relays.items()),
        Route(MODELS, ModelsRoute(models), methods=["GET"]),
        Route("/v1/models/{name:path}", ModelsRoute(models), methods=["GET"]),
        Route(TTFT, TtftRoute(board), methods=["GET"]),
        Route("/health", _health, methods=["GET"]),
    ]
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
        metrics.watch_budgets(lambda: models.budgets_left(time.time()))
        routes.append(Route("/metrics", _MetricsPage(metrics), methods=["GET"]))
    keyless = {"/health"}
    if page is not None:
        routes += [
            Route(PAGE, PageRoute(), methods=["GET"]),
            Route(LIVE, LiveRoute(page, models), methods=["GET"]),
        ]
        keyless.add(PAGE)  # it holds no data, and asks for the key
    names = (
        frozenset(name.lower() for name in (host.strip("[]"), *allow_hosts)) if is_loopback(host) else None
    )
    guards = Middleware(
        Guards,
        direct=relays,
        key=key,
        keyless=frozenset(keyless),
        names=names,
        origins=check_origins(allow_origins),
        label=_label,
        metrics=metrics,
    )
    app = Starlette(routes=routes, middleware=[guards], exception_handlers={HTTPException: _no_such})
    app.router.redirect_slashes = False
    app.state.limiter = limiter
    return app


class _MetricsPage:
    """`/metrics`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        await Reply(send, "/metrics").whole(200, self._metrics.text(), kind=CONTENT_TYPE_LATEST)


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
    where = f"{request.method} {cut(request.url.path, 80)}"
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
    return MODEL if path.startswith(MODELS + "/") else "other"
