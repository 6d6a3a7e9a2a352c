"""Access checks of each request: the key, the host name in the request, and the web page that a browser shows."""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from time import perf_counter
from typing import Final

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from disco.errors import ConfigurationError
from disco.server.api_errors import Refusal
from disco.server.http_reply import Reply
from disco.server.prometheus import Metrics

__all__ = ["Guards", "check_exposure", "check_key", "check_origins", "is_loopback"]

# The messages with which the answer to a WebSocket may begin, and the status that a client sees then.
_FIRST: Final = {"websocket.accept": 101, "websocket.http.response.start": 0, "websocket.close": 403}
_GONE_S: Final = 2.0
SHORTEST_KEY = 16  # characters, if other machines can try keys
_KEY = re.compile(r"[!-~]+")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s*]+")
_MAKE_KEY = 'python -c "import secrets; print(secrets.token_urlsafe(32))"'


@lru_cache(maxsize=64)  # clients send one name again and again
def is_loopback(host: str) -> bool:
    """Return whether an address or name always means this machine. Other names are not resolved."""
    name = host.strip("[]").lower().rstrip(".")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")  # RFC 6761


def check_key(key: str | None) -> None:
    """Refuse a key that cannot be used.

    Raises:
        ConfigurationError: the key is empty, or has characters that no header can carry.
    """
    if key is not None and not _KEY.fullmatch(key):
        raise ConfigurationError(
            "The server's key is empty or has characters other than visible ASCII. Make one with: "
            f"{_MAKE_KEY}"
        )


def check_exposure(host: str, key: str | None) -> None:
    """Refuse to listen on a network without a strong key.

    Raises:
        ConfigurationError: `host` is not loopback, and there is no key or only a short one.
    """
    if is_loopback(host) or (key is not None and len(key) >= SHORTEST_KEY):
        return
    lack = "no key is set" if key is None else f"the key has fewer than {SHORTEST_KEY} characters"
    raise ConfigurationError(
        f"The address {host!r} can be reached from other machines, but {lack}. Put a key into the environment variable "
        f"DISCO_SERVER_KEY or a file named by --key-file ({_MAKE_KEY} makes one), or use 127.0.0.1."
    )


def check_origins(origins: Collection[str]) -> frozenset[str]:
    """Return the origins whose pages may send requests, in the form that browsers send.

    Raises:
        ConfigurationError: a text is not an origin, or means all origins.
    """
    for origin in origins:
        if not _ORIGIN.fullmatch(origin.lower()):
            raise ConfigurationError(
                f"{origin!r} is no origin. Write scheme, host and port as the browser does, without a path, such as "
                "http://localhost:3000. List every origin."
            )
    return frozenset(origin.lower() for origin in origins)


class Guards:
    """ASGI middleware: refuses requests and WebSockets without access, gives every answer an id, and counts requests.

    Args:
        app: the application to guard.
        direct: by path, the applications that get POST requests without the application's routing in between.
        key: the key that every request must have (`Authorization: Bearer`); None: no key needed.
        keyless: paths that need no key here: they tell nothing, or check another key themselves.
        names: hosts that requests may name; None: any host. On loopback, this stops a web page whose own name
            resolves to 127.0.0.1 (DNS rebinding).
        origins: see `check_origins`.
        label: returns the path's name in metrics and in the log.
        metrics: counts every request.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        direct: Mapping[str, ASGIApp],
        key: str | None,
        keyless: frozenset[str],
        names: frozenset[str] | None,
        origins: frozenset[str],
        label: Callable[[str], str],
        metrics: Metrics | None,
    ) -> None:
        self._app = app
        self._direct = direct
        self._key = None if key is None else key.encode()
        self._keyless = keyless
        self._names = names
        self._origins = origins
        self._label = label
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_at = perf_counter()
        path = self._label(scope["path"])
        headers: dict[bytes, bytes] = dict(scope["headers"])
        origin = headers.get(b"origin")
        status = 499  # reported if the client leaves before the response begins

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = self._signed(message["headers"], origin)
            await send(message)

        try:
            preflight = scope["method"] == "OPTIONS" and b"access-control-request-method" in headers
            # A preflight has no key: the browser asks first whether it may send the key.
            self._check(headers, keyless=preflight or scope["path"] in self._keyless)
            if preflight:
                await Reply(sending, path).begin(204, _preflight(headers))
                await sending({"type": "http.response.body", "body": b""})
            else:
                direct = self._direct.get(scope["path"]) if scope["method"] == "POST" else None
                await (direct or self._app)(scope, receive, sending)
        except Refusal as refusal:
            await Reply(sending, path).refuse(refusal)
        finally:
            if self._metrics is not None:
                self._metrics.request(path, status, perf_counter() - began_at)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a WebSocket in, or answer it with an ordinary response; it is counted when it begins."""
        began_at = perf_counter()
        path = self._label(scope["path"])
        headers: dict[bytes, bytes] = dict(scope["headers"])
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if not status and message["type"] in _FIRST:
                status = message.get("status", _FIRST[message["type"]])
                if message["type"] != "websocket.close":
                    message["headers"] = self._signed(
                        list(message.get("headers", ())), headers.get(b"origin")
                    )
                if self._metrics is not None:
                    self._metrics.request(path, status, perf_counter() - began_at)
            await send(message)

        async def denying(message: Message) -> None:
            await sending({**message, "type": message["type"].replace("http.", "websocket.http.", 1)})

        try:
            self._check(headers, keyless=False)
            await self._app(scope, receive, sending)
        except Refusal as refusal:
            if status:  # the WebSocket is open
                raise
            if "websocket.http.response" in scope.get("extensions", {}):
                await Reply(denying, path).refuse(refusal)
                await _gone(receive)
            else:
                await sending({"type": "websocket.close", "code": 1008})

    def _check(self, headers: dict[bytes, bytes], *, keyless: bool) -> None:
        if b"transfer-encoding" in headers and b"content-length" in headers:
            # A proxy may use the other header, and read part of this body as the next request (RFC 9112, 6.1).
            message = "A request must have either Content-Length or Transfer-Encoding, not both."
            raise Refusal(400, message, code="unclear_length", headers={"connection": "close"})
        if self._names is not None:
            name = _host(headers.get(b"host", b"").decode("latin-1"))
            if not is_loopback(name) and name not in self._names:
                message = "This server answers to loopback names only. Use 127.0.0.1 or localhost."
                raise Refusal(403, message, code="host_not_allowed")
        origin = headers.get(b"origin")
        # A page of another origin. A request of such a page for an image or a script has this header but no Origin.
        crosses = headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin")
        if (crosses and origin is None) or (
            origin is not None and origin.decode("latin-1").lower() not in self._origins
        ):
            message = (
                "Pages of this origin may not use this server. Its owner can allow them (--allow-origin)."
            )
            raise Refusal(403, message, code="origin_not_allowed")
        if self._key is None or keyless:
            return
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._key):
            raise Refusal(
                401,
                "Incorrect API key provided: use the key that the owner of this server has set.",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )

    def _signed(self, given: list[tuple[bytes, bytes]], origin: bytes | None) -> list[tuple[bytes, bytes]]:
        headers = list(given)
        if not any(name == b"x-request-id" for name, _ in headers):
            headers.append((b"x-request-id", b"req_" + os.urandom(16).hex().encode()))
        if self._origins:
            headers.append((b"vary", b"Origin"))
            if origin is not None and origin.decode("latin-1").lower() in self._origins:
                headers.append((b"access-control-allow-origin", origin))
                headers.append((b"access-control-expose-headers", b"x-request-id, retry-after"))
        return headers


async def _gone(receive: Receive) -> None:
    """Wait until the connection behind a refused WebSocket is closed.

    Uvicorn logs an error if its application returns before. It tells of the end twice: when the response is sent, and
    when the connection is closed.
    """
    ends = 0
    with anyio.move_on_after(_GONE_S):
        while ends < 2:
            ends += (await receive())["type"] == "websocket.disconnect"


def _preflight(headers: dict[bytes, bytes]) -> list[tuple[str, str]]:
    """Return the headers that tell the browser of an allowed page what the page may send."""
    wanted = headers.get(b"access-control-request-headers", b"authorization, content-type")
    allowed = [
        ("access-control-allow-methods", "GET, POST"),
        ("access-control-allow-headers", wanted.decode("latin-1")),
        ("access-control-max-age", "600"),
    ]
    if headers.get(b"access-control-request-private-network") == b"true":
        allowed.append(("access-control-allow-private-network", "true"))
    return allowed


def _host(header: str) -> str:
    """Return the name in a Host header, without the port."""
    name = header.lower()
    if name.startswith("["):
        return name.partition("]")[0] + "]"
    return name.partition(":")[0].rstrip(".")
