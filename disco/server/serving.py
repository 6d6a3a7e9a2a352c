"""`serve`: run the application on a socket, from the first request to an orderly end."""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import math
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from types import FrameType
from typing import Final

import anyio
import uvicorn

from disco.client import AsyncDisco
from disco.endpoints.llamacpp.batching.round_engine import RoundEngine
from disco.errors import ConfigurationError
from disco.server.access_guards import check_exposure, is_loopback
from disco.server.admission import AnswerLimiter
from disco.server.announcing import announcing
from disco.server.app import MAX_BODY_BYTES, MAX_CONCURRENT, make_app
from disco.server.http_protocol import HttpProtocol
from disco.server.layers.layer_host import LayerHost
from disco.server.live_page.live_board import LiveBoard
from disco.server.named_models import NamedModels
from disco.server.prometheus import Metrics

__all__ = ["PORT", "serve"]

PORT: Final = 8642
KEEP_ALIVE_S: Final = 75  # longer than clients keep idle connections, so that the client closes first
PING_S, PONG_S = 60.0, 600.0
LAST_S: Final = 5.0  # time that cancelling answers may take
BACKLOG: Final = 2048
_TICK_S: Final = 0.1
_LEARN_S: Final = 0.5  # how long the start waits for servers to list their models: a few round trips
_TURNS: Final = 10  # of the event loop, in which a connection that was just accepted comes to its task


async def serve(
    client: AsyncDisco | NamedModels | None,
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
    verifier: RoundEngine | None = None,
    layers: LayerHost | None = None,
    page: LiveBoard | None = None,
    attachable: bool = False,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Warm up the client and answer requests until SIGINT or SIGTERM. Runs under asyncio.

    Cancelling the call cancels the answers in progress, as a second signal does.

    Args:
        client: gives the answers; the caller closes it. Or several models by name. None: only `layers` are served.
        host: address or name to listen on; see `make_app` for the access rules that follow from it.
        port: port to listen on; 0 picks a free one.
        key: see `make_app`, also for the next four, and for `metrics`, `verifier` and `layers`.
        allow_origins: origins of web pages that may send requests.
        allow_hosts: further names of this server.
        max_body_bytes: the longest body that is read, in bytes.
        max_concurrent: the most answers at the same time.
        grace_s: seconds after the signal for which answers in progress may go on before they are cancelled, those of
            attached programs, too. A second signal cancels them at once.
        metrics: what `/metrics` shows.
        verifier: see `make_app`.
        layers: see `make_app`; loaded here.
        page: see `make_app`.
        attachable: whether other programs of this user may use the host of the client's local model, where this process
            has started one; they are told by a file (docs/how-to/attach.md).
        on_ready: called with the base URL once the server answers.

    Raises:
        ConfigurationError: the address cannot be used, settings contradict each other, or the extra `split` is not
            installed and `layers` need it.
        DiscoError: a model cannot be loaded.
    """
    if layers is not None and importlib.util.find_spec("websockets") is None:
        raise ConfigurationError(
            "A layer server needs the package 'websockets': pip install \"disco-llm[server,split]\""
        )
    models = NamedModels.of(client)
    device = models.attachable if attachable else None
    app = make_app(
        models,
        key=key,
        host=host,
        max_body_bytes=max_body_bytes,
        max_concurrent=max_concurrent,
        allow_origins=allow_origins,
        allow_hosts=allow_hosts,
        metrics=metrics,
        verifier=verifier,
        layers=layers,
        page=page,
    )

    def ready() -> None:
        if on_ready is not None:
            on_ready(f"http://{_shown(host)}:{port}/v1")

    warming: list[asyncio.Task[None]] = []
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_end, warming)
        sockets = [stack.enter_context(each) for each in _listen(host, port)]
        for each in sockets:  # the addresses that the name resolved to
            check_exposure(each.getsockname()[0].partition("%")[0], key)
        port = sockets[0].getsockname()[1]
        for one in models.clients:
            _refuse_itself(one, host, port)
        await _warm_up(models.clients, warming)
        if layers is not None:
            await layers.warm_up()
        config = uvicorn.Config(
            app,
            http=HttpProtocol,
            # A dead device is found by pings that nobody answers. A slow one may take minutes to send a message, and
            # its pong comes behind it.
            ws="none" if layers is None else "websockets-sansio",
            ws_max_size=max_body_bytes,
            ws_per_message_deflate=False,
            ws_ping_interval=PING_S,
            ws_ping_timeout=PONG_S,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=math.ceil(grace_s + LAST_S),
        )
        announced = stack.enter_context(ExitStack())

        def ready_and_announced() -> None:
            if device is not None:
                announced.enter_context(announcing(device, port=port))
            ready()

        async def others() -> bool:
            return device is not None and await device.count_answers() > 0

        server = _Server(config, app.state.limiter, grace_s, ready_and_announced, announced.close, others)
        try:
            await server.serve(sockets)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), anyio.move_on_after(LAST_S):
                await server.break_off(sockets)
            raise


class _Server(uvicorn.Server):
    """Uvicorn's server with a different shutdown. Mutable: `_hurry`, and the base class's fields."""

    def __init__(
        self,
        config: uvicorn.Config,
        limiter: AnswerLimiter,
        grace_s: float,
        on_ready: Callable[[], None],
        on_exit: Callable[[], None],
        others: Callable[[], Awaitable[bool]],
    ) -> None:
        super().__init__(config)
        self._limiter = limiter
        self._grace_s = grace_s
        self._on_ready = on_ready
        self._on_exit = on_exit
        self._others = others
        self._hurry = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # The base class would raise the signal again at the end, so that the client would not be closed.
        del sig, frame
        self.force_exit = self._hurry
        self._hurry = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_exit()
        # No connection is accepted any more, and those that were are given to their protocols. Where asyncio's server
        # is closed before, a connection is left open (an assertion in `Server._attach`, Python 3.11).
        loop = asyncio.get_running_loop()
        for each in sockets or ():
            with suppress(NotImplementedError):  # Windows
                if each.fileno() >= 0:
                    loop.remove_reader(each.fileno())
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        async with anyio.create_task_group() as tasks:
            within_grace = anyio.CancelScope()
            tasks.start_soon(self._end_after_grace, within_grace)
            await super().shutdown(sockets)
            with within_grace:  # the host ends with this server, and with it the answers of attached programs
                while await self._others():  # noqa: ASYNC110 - another process
                    await anyio.sleep(_TICK_S)
            tasks.cancel_scope.cancel()

    async def break_off(self, sockets: list[socket.socket]) -> None:
        """End at once, with an error to every client that is being answered."""
        self._hurry = True
        if self.started:
            await self.shutdown(sockets)

    async def _end_after_grace(self, within_grace: anyio.CancelScope) -> None:
        until = anyio.current_time() + self._grace_s
        while True:
            if self._hurry or anyio.current_time() >= until:
                self._limiter.close()
                within_grace.cancel()
            # The base class closes idle connections once, and misses one that is just being accepted. It would
            # then wait for that connection's keep-alive time.
            for connection in list(self.server_state.connections):
                if not connection.transport.is_closing():
                    connection.shutdown()
            await anyio.sleep(_TICK_S)


def _listen(host: str, port: int) -> list[socket.socket]:
    """Return a listening socket for every address that `host` means, all on one port.

    Raises:
        ConfigurationError: an address cannot be used; the message says what to do.
    """
    opened: list[socket.socket] = []
    try:
        try:
            found = socket.getaddrinfo(
                host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except socket.gaierror as error:
            raise ConfigurationError(
                f"The host {host!r} is not known. Use 127.0.0.1 for this machine."
            ) from error
        for family, kind, protocol, _, address in dict.fromkeys(found):
            one = socket.socket(family, kind, protocol)
            opened.append(one)
            _settings(one, family)
            # A port picked for the first address is used for all addresses.
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
    if sys.platform == "win32":  # with reuse, another program could take over the port
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
        return f"This user may not listen on port {port}. Choose one above 1023 with --port."
    if error.errno == errno.EADDRNOTAVAIL:
        return (
            f"{host} is not an address of this machine. Choose another with --host; 127.0.0.1 always works."
        )
    return f"Cannot listen on {host}, port {port}: {error.strerror or error}."


async def _warm_up(clients: Sequence[AsyncDisco], tasks: list[asyncio.Task[None]]) -> None:
    """Load the models of this machine, and begin to learn of the servers, all at once.

    What a server does not say in a moment is learnt while others are answered.

    Args:
        clients: whose endpoints.
        tasks: gets the tasks, some of which may go on after this call; the caller ends them.

    Raises:
        DiscoError: a model cannot be loaded.
    """
    loaded = [asyncio.Event() for _ in clients]

    async def warm(client: AsyncDisco, here: asyncio.Event) -> None:
        await client.router.warm_up(client.server, None, client.default_options, on_local=here.set)

    async def all_loaded() -> None:
        for here in loaded:
            await here.wait()

    tasks += [asyncio.create_task(warm(*each)) for each in zip(clients, loaded, strict=True)]
    waiting = asyncio.create_task(all_loaded())
    tasks.append(waiting)
    while not waiting.done():  # of several models, one that cannot be loaded is told of at once
        await asyncio.wait([t for t in tasks if not t.done()], return_when=asyncio.FIRST_COMPLETED)
        _raise_first(tasks)
    await asyncio.wait(tasks, timeout=_LEARN_S)
    _raise_first(tasks)


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    with anyio.CancelScope(shield=True):
        await asyncio.gather(*tasks, return_exceptions=True)


def _raise_first(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done():
            task.result()


def _refuse_itself(client: AsyncDisco, host: str, port: int) -> None:
    """Refuse to be its own server: each request would be sent to itself without end.

    Raises:
        ConfigurationError: the server behind disco, or a tier, is this server.
    """
    unset = "Set OPENAI_BASE_URL (or base_url in the file of --config) to the API to use, or unset it."
    behind = client.base_url
    others = [] if client.server is None else [("The server behind disco", (behind.host, behind.port), unset)]
    others += [
        (f"The tier {tier.name!r}", tier.address, "Give the tier another address.")
        for tier in client.router.endpoints.tiers
        if isinstance(tier.address, tuple)
    ]
    for what, (their_host, their_port), remedy in others:
        same_host = their_host == host or (is_loopback(their_host) and is_loopback(host))
        if same_host and their_port == port:
            raise ConfigurationError(f"{what}, {their_host}:{their_port}, is this server itself. {remedy}")


def _shown(host: str) -> str:
    """Return the host in the form for a URL."""
    name = host.strip("[]")
    if name in ("", "0.0.0.0", "::"):  # noqa: S104 - compared, not listened on
        return "127.0.0.1"
    return f"[{name}]" if ":" in name else name
