"""Who may ask: the key, the name the server was called by, and the page a browser is on."""

from __future__ import annotations

import hmac
import ipaddress
import re
import uuid
from collections.abc import Callable, Collection
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from disco.errors import ConfigurationError
from disco.server.api_errors import Refusal
from disco.server.http_reply import Reply
from disco.server.prometheus import Metrics

__all__ = ["Guards", "check_exposure", "check_key", "check_origins", "is_loopback"]

SHORTEST_KEY = 16  # characters, where others than this machine's users can guess at it
_KEY = re.compile(r"[!-~]+")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s*]+")
_MAKE_KEY = 'python -c "import secrets; print(secrets.token_urlsafe(32))"'


def is_loopback(host: str) -> bool:
    """Whether an address or name can only mean this machine. Other names are not looked up."""
    name = host.strip("[]").lower().rstrip(".")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")  # RFC 6761


def check_key(key: str | None) -> None:
    """Refuse a key that cannot be one.

    Raises:
        ConfigurationError: it is empty, or has characters that no header can carry.
    """
    if key is not None and not _KEY.fullmatch(key):
        raise ConfigurationError(
            "The server's key is empty or has characters other than visible ASCII. Make one with: "
            f"{_MAKE_KEY}"
        )


def check_exposure(host: str, key: str | None) -> None:
    """Refuse to answer to a network without a key worth the name.

    Raises:
        ConfigurationError: `host` is not loopback and there is no key, or a short one.
    """
    if is_loopback(host) or (key is not None and len(key) >= SHORTEST_KEY):
        return
    lack = "no key is set" if key is None else f"the key has fewer than {SHORTEST_KEY} characters"
    raise ConfigurationError(
        f"The address {host!r} can be reached from other machines, but {lack}. Put a key into the environment variable "
        f"DISCO_SERVER_KEY or a file named by --key-file ({_MAKE_KEY} makes one), or stay on 127.0.0.1."
    )


def check_origins(origins: Collection[str]) -> frozenset[str]:
    """The origins whose pages may ask, as browsers write them.

    Raises:
        ConfigurationError: one is no origin, or means all.
    """
    for origin in origins:
        if not _ORIGIN.fullmatch(origin.lower()):
            raise ConfigurationError(
                f"{origin!r} is no origin. Write scheme, host and port as the browser does, without a path, such as "
                "http://localhost:3000; each page's origin is named by itself."
            )
    return frozenset(origin.lower() for origin in origins)


class Guards:
    """ASGI middleware: lets through whom it should, names every answer, and counts.

    Args:
        app: what is guarded.
        key: that every request has to bring (`Authorization: Bearer`), except for `/health`; None for none.
        names: hosts that requests may name; None for any. On loopback, a web page that has its own name
            resolve to 127.0.0.1 is caught by this.
        origins: see `check_origins`.
        label: the path as metrics and the log call it.
        metrics: told of every request.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        key: str | None,
        names: frozenset[str] | None,
        origins: frozenset[str],
        label: Callable[[str], str],
        metrics: Metrics | None,
    ) -> None:
        self._app = app
        self._key = None if key is None else key.encode()
        self._names = names
        self._origins = origins
        self._label = label
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_at = perf_counter()
        path = self._label(scope["path"])
        headers: dict[bytes, bytes] = dict(scope["headers"])
        origin = headers.get(b"origin")
        status = 499  # the client left before there was one

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = self._signed(message["headers"], origin)
            await send(message)

        try:
            preflight = scope["method"] == "OPTIONS" and b"access-control-request-method" in headers
            # A browser asks without the key whether it may send it.
            self._check(headers, keyless=preflight or scope["path"] == "/health")
            if preflight:
                await Reply(sending, path).begin(204, _preflight(headers))
                await sending({"type": "http.response.body", "body": b""})
            else:
                await self._app(scope, receive, sending)
        except Refusal as refusal:
            await Reply(sending, path).refuse(refusal)
        finally:
            if self._metrics is not None:
                self._metrics.request(path, status, perf_counter() - began_at)

    def _check(self, headers: dict[bytes, bytes], *, keyless: bool) -> None:
        if b"transfer-encoding" in headers and b"content-length" in headers:
            # A proxy may go by the other of the two, and take part of this body for the next request (RFC 9112, 6.1).
            message = "A request has either Content-Length or Transfer-Encoding, not both."
            raise Refusal(400, message, code="unclear_length", headers={"connection": "close"})
        if self._names is not None:
            name = _host(headers.get(b"host", b"").decode("latin-1"))
            if not is_loopback(name) and name not in self._names:
                message = "This server answers to loopback names only; call it 127.0.0.1 or localhost."
                raise Refusal(403, message, code="host_not_allowed")
        origin = headers.get(b"origin")
        # A page of another origin; one that only wants a picture or a script here sends no Origin, but this.
        crosses = headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin")
        if (crosses and origin is None) or (
            origin is not None and origin.decode("latin-1").lower() not in self._origins
        ):
            message = (
                "Pages of this origin may not ask this server. Its owner can allow them (--allow-origin)."
            )
            raise Refusal(403, message, code="origin_not_allowed")
        if self._key is None or keyless:
            return
        scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._key):
            raise Refusal(
                401,
                "Incorrect API key provided: this server takes the key its owner has set.",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )

    def _signed(self, given: list[tuple[bytes, bytes]], origin: bytes | None) -> list[tuple[bytes, bytes]]:
        headers = list(given)
        if not any(name == b"x-request-id" for name, _ in headers):
            headers.append((b"x-request-id", b"req_" + uuid.uuid4().hex.encode()))
        if self._origins:
            headers.append((b"vary", b"Origin"))
            if origin is not None and origin.decode("latin-1").lower() in self._origins:
                headers.append((b"access-control-allow-origin", origin))
                headers.append((b"access-control-expose-headers", b"x-request-id, retry-after"))
        return headers


def _preflight(headers: dict[bytes, bytes]) -> list[tuple[str, str]]:
    """What a page of an allowed origin may send; its browser asks before it does."""
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
    """The name in a Host header, without its port."""
    name = header.lower()
    if name.startswith("["):
        return name.partition("]")[0] + "]"
    return name.partition(":")[0].rstrip(".")
