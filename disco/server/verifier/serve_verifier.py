"""`serve_verifier`: run a verify server on a socket, from the first request to an orderly end."""

from __future__ import annotations

from collections.abc import Callable, Collection

from disco.server.prometheus import Metrics
from disco.server.serving import PORT, run_app
from disco.server.verifier.round_engine import RoundEngine
from disco.server.verifier.verifier_app import MAX_ROUNDS, make_verifier_app

__all__ = ["serve_verifier"]


async def serve_verifier(
    engine: RoundEngine,
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    key: str | None = None,
    allow_origins: Collection[str] = (),
    allow_hosts: Collection[str] = (),
    max_body_bytes: int = 32 * 2**20,
    max_concurrent: int = MAX_ROUNDS,
    grace_s: float = 10.0,
    metrics: Metrics | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Load the model and answer rounds until SIGINT or SIGTERM. Runs under asyncio.

    Args:
        engine: answers the rounds; the caller closes it.
        host: see `serve`, also for the others.
        port: port to listen on; 0 picks a free one.
        key: the key that requests must have.
        allow_origins: origins of web pages that may send requests.
        allow_hosts: further names of this server.
        max_body_bytes: the longest body that is read, in bytes.
        max_concurrent: the most rounds at the same time, those that wait for the model included.
        grace_s: seconds after the signal for which rounds in progress may go on before they are cancelled.
        metrics: what `/metrics` shows.
        on_ready: called with the base URL once the server answers.

    Raises:
        ConfigurationError: the address cannot be used, or settings contradict each other.
        DiscoError: the model cannot be loaded.
    """
    app = make_verifier_app(
        engine,
        key=key,
        host=host,
        max_body_bytes=max_body_bytes,
        max_concurrent=max_concurrent,
        allow_origins=allow_origins,
        allow_hosts=allow_hosts,
        metrics=metrics,
    )

    async def warm_up(at: tuple[str, int]) -> None:
        del at
        await engine.warm_up()

    await run_app(app, host=host, port=port, key=key, grace_s=grace_s, warm_up=warm_up, on_ready=on_ready)
