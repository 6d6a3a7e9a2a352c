"""`serve`: the application on a socket, from the first request to an orderly end."""

from __future__ import annotations

import errno
import math
import os
import socket
import sys
from collections.abc import Callable, Collection
from contextlib import ExitStack
from types import FrameType
from typing import Final

import anyio
import uvicorn

from disco.client import AsyncDisco
from disco.errors import ConfigurationError
from disco.server.access_guards import check_exposure, is_loopback
from disco.server.admission import AnswerLimiter
from disco.server.app import MAX_BODY_BYTES, MAX_CONCURRENT, make_app
from disco.server.prometheus import Metrics

__all__ = ["PORT", "serve"]

PORT: Final = 8642
KEEP_ALIVE_S: Final = (
    75  # longer than clients keep idle connections, so that the one who closes is the client
)
LAST_S: Final = 5.0  # what breaking off answers may take
BACKLOG: Final = 2048
_TICK_S: Final = 0.1


async def serve(
    client: AsyncDisco,
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    key: str | None = None,
    allow_origins: Collection[str] = (),
    allow_hosts: Collection[str] = (),
    max_body_bytes: int = MAX_BODY_BYTES,
    max_concurrent: int = MAX_CONCURRENT,
    grace_s: float = 10.0,
    metrics: Metrics | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Warm the client up and answer until SIGINT or SIGTERM. Runs under asyncio.

    Cancelling it breaks off the answers in progress, as a second signal does.

    Args:
        client: who answers; stays the caller's to close.
        host: address or name to listen on; see `make_app` for who may ask then.
        port: to listen on; 0 picks a free one.
        key: see `make_app`, also for the next four, and for `metrics`.
        allow_origins: web pages that may ask.
        allow_hosts: further names of this server's.
        max_body_bytes: the longest body that is read.
        max_concurrent: answers at once.
        grace_s: how long answers in progress may go on after the signal before they are broken off. A second
            signal breaks them off at once.
        metrics: what `/metrics` shows.
        on_ready: called with the base URL once it answers.

    Raises:
        ConfigurationError: the address is not to be had, or settings contradict each other.
        DiscoError: the local model cannot be loaded.
    """
    app = make_app(
        client,
        key=key,
        host=host,
        max_body_bytes=max_body_bytes,
        max_concurrent=max_concurrent,
        allow_origins=allow_origins,
        allow_hosts=allow_hosts,
        metrics=metrics,
    )

    def ready() -> None:
        if on_ready is not None:
            on_ready(f"http://{_shown(host)}:{port}/v1")

    with ExitStack() as stack:
        sockets = [stack.enter_context(each) for each in _listen(host, port)]
        for each in sockets:  # what the name really meant
            check_exposure(each.getsockname()[0].partition("%")[0], key)
        port = sockets[0].getsockname()[1]
        _refuse_itself(client, host, port)
        await client.warm_up()
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=math.ceil(grace_s + LAST_S),
        )
        server = _Server(config, app.state.limiter, grace_s, ready)
        try:
            await server.serve(sockets)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), anyio.move_on_after(LAST_S):
                await server.break_off(sockets)
            raise


class _Server(uvicorn.Server):
    """Uvicorn's, with an end of ours. Mutable: `_hurry`, and what the base class has."""

    def __init__(
        self, config: uvicorn.Config, limiter: AnswerLimiter, grace_s: float, on_ready: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._limiter = limiter
        self._grace_s = grace_s
        self._on_ready = on_ready
        self._hurry = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # The base class raises the signal again at the end, which would keep the client from being closed.
        del sig, frame
        self.force_exit = self._hurry
        self._hurry = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_after_grace)
            await super().shutdown(sockets)
            tasks.cancel_scope.cancel()

    async def break_off(self, sockets: list[socket.socket]) -> None:
        """End at once, and tell those who are being answered."""
        self._hurry = True
        if self.started:
            await self.shutdown(sockets)

    async def _end_after_grace(self) -> None:
        until = anyio.current_time() + self._grace_s
        while True:
            if self._hurry or anyio.current_time() >= until:
                self._limiter.close()
            # The base class tells them once, and misses one that was just being accepted: it would wait for that
            # one's keep-alive to run out.
            for connection in list(self.server_state.connections):
                if not connection.transport.is_closing():
                    connection.shutdown()
            await anyio.sleep(_TICK_S)


def _listen(host: str, port: int) -> list[socket.socket]:
    """A listening socket for every address `host` means, all on one port.

    Raises:
        ConfigurationError: one of them is not to be had; the message says what to do.
    """
    opened: list[socket.socket] = []
    try:
        try:
            found = socket.getaddrinfo(
                host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except socket.gaierror as error:
            raise ConfigurationError(f"The host {host!r} is not known; 127.0.0.1 is this machine.") from error
        for family, kind, protocol, _, address in dict.fromkeys(found):
            one = socket.socket(family, kind, protocol)
            opened.append(one)
            _settings(one, family)
            # A port that was picked for the first address is everybody's.
            chosen = opened[0].getsockname()[1] if port == 0 and len(opened) > 1 else port
            one.bind((address[0], chosen, *address[2:]))
            one.listen(BACKLOG)
    except BaseException as error:
        for one in opened:
            one.close()
        if isinstance(error, OSError):
            raise ConfigurationError(_why_not(error, host, port)) from error
        raise
    return opened


def _settings(one: socket.socket, family: int) -> None:
    if sys.platform == "win32":  # there, reuse would let another program take the port over
        one.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
    elif os.name == "posix":
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    one.setblocking(False)


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} on {host} is in use. Choose another with --port, or let 0 pick a free one."
    if error.errno == errno.EACCES:
        return f"Port {port} may not be listened on by this user. Choose one above 1023 with --port."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine. Choose another with --host; 127.0.0.1 is always one."
    return f"{host}, port {port}, cannot be listened on: {error.strerror or error}."


def _refuse_itself(client: AsyncDisco, host: str, port: int) -> None:
    """Answers that ask for themselves would go round for ever.

    Raises:
        ConfigurationError: the server behind this one is this one.
    """
    behind = client.base_url
    if client.server is None or behind.port != port:
        return
    if behind.host == host or (is_loopback(behind.host) and is_loopback(host)):
        raise ConfigurationError(
            f"The server behind disco, {behind.host}:{behind.port}, is this one. Set OPENAI_BASE_URL to the API "
            "that is to be asked, or unset it."
        )


def _shown(host: str) -> str:
    """The host as one would type it into a URL."""
    name = host.strip("[]")
    if name in ("", "0.0.0.0", "::"):  # noqa: S104 - recognised, not listened on
        return "127.0.0.1"
    return f"[{name}]" if ":" in name else name
