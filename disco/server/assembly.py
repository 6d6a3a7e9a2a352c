"""What every application of this server has: the guards, `/health`, `/metrics`, and errors in the API's form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from disco.errors import ConfigurationError
from disco.server.access_guards import Guards, check_exposure, check_key, check_origins, is_loopback
from disco.server.admission import AnswerLimiter
from disco.server.api_errors import INVALID, Refusal
from disco.server.http_reply import JSON, Reply
from disco.server.prometheus import CONTENT_TYPE_LATEST, Metrics

__all__ = ["assemble", "make_limiter"]


def make_limiter(*, key: str | None, host: str, max_body_bytes: int, max_concurrent: int) -> AnswerLimiter:
    """Check what every application is given, and return the limiter of its requests.

    Raises:
        ConfigurationError: `host` can be reached from other machines and there is no strong key, or an argument is
            invalid.
    """
    check_key(key)
    check_exposure(host, key)
    if max_body_bytes < 1 or max_concurrent < 1:
        raise ConfigurationError("max_body_bytes and max_concurrent must be at least 1.")
    return AnswerLimiter(max_concurrent)


def assemble(
    routes: Sequence[Route],
    *,
    direct: Mapping[str, ASGIApp],
    limiter: AnswerLimiter,
    key: str | None,
    host: str,
    allow_origins: Collection[str],
    allow_hosts: Collection[str],
    label: Callable[[str], str],
    metrics: Metrics | None,
    hint: str = "",
) -> Starlette:
    """Return the application of these routes, with `/health`, and with `/metrics` if there are metrics.

    `app.state.limiter` is the limiter.

    Args:
        routes: of the application itself.
        direct: by path, the applications that get POST requests without the routing in between.
        limiter: holds the requests being answered.
        key: see `make_app`, also for the next three.
        host: the address that the server will listen on.
        allow_origins: origins of web pages that may send requests.
        allow_hosts: further host names that requests may use on loopback.
        label: returns the path's name in metrics and in the log.
        metrics: what `/metrics` shows.
        hint: a sentence for those who ask for a path that is not there.

    Raises:
        ConfigurationError: an origin is none.
    """
    routes = [*routes, Route("/health", _health, methods=["GET"])]
    if metrics is not None:
        metrics.watch(lambda: limiter.busy)
        routes.append(Route("/metrics", _MetricsPage(metrics), methods=["GET"]))
    names = (
        frozenset(name.lower() for name in (host.strip("[]"), *allow_hosts)) if is_loopback(host) else None
    )
    guards = Middleware(
        Guards,
        direct=direct,
        key=key,
        names=names,
        origins=check_origins(allow_origins),
        label=label,
        metrics=metrics,
    )
    app = Starlette(
        routes=routes, middleware=[guards], exception_handlers={HTTPException: _unknown_path(hint)}
    )
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


async def _health(request: Request) -> Response:
    """Report that the server runs. The response contains no other data, so it needs no key."""
    del request
    await anyio.lowlevel.checkpoint()
    return Response(b'{"status":"ok"}', media_type=JSON)


def _unknown_path(hint: str) -> Callable[[Request, Exception], Awaitable[Response]]:
    """Return what answers requests for an unknown path, or with a method that the path does not accept."""

    async def no_such(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        where = f"{request.method} {request.url.path[:80]}"
        if error.status_code == 405:
            refusal = Refusal(405, f"Not allowed: {where}.", kind=INVALID, code="method_not_supported")
        else:
            message = f"Invalid URL ({where}).{' ' if hint else ''}{hint}"
            refusal = Refusal(error.status_code, message, code="unknown_url")
        await anyio.lowlevel.checkpoint()
        headers = dict(error.headers or {})
        return Response(refusal.body(), refusal.status, headers=headers, media_type=JSON)

    return no_such
