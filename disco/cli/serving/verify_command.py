"""`disco serve --verify`: check what other devices draft."""

from __future__ import annotations

import argparse
from contextlib import aclosing
from typing import Final

from disco.cli.console import Screen
from disco.cli.serving.serve_setup import announce, callers_key, logging_at
from disco.speculate.messages import VerifierFacts

__all__ = ["run_verify"]

_MIB: Final = 2**20


async def run_verify(screen: Screen, arguments: argparse.Namespace) -> int:
    """Serve rounds until SIGINT or SIGTERM.

    Raises:
        ConfigurationError: the arguments are invalid.
    """
    from disco.endpoints.llamacpp.batching import VerifyEngine  # noqa: PLC0415 - `disco --help` needs no model
    from disco.server import Metrics  # noqa: PLC0415 - needs the extra
    from disco.server.verifier import serve_verifier  # noqa: PLC0415 - as above

    key = callers_key(arguments.key_file)
    engine = VerifyEngine(
        arguments.verify,
        slots=arguments.slots,
        context_tokens=arguments.context,
        threads=arguments.threads,
    )

    def ready(base_url: str) -> None:
        announce(screen, base_url, _lines(engine.facts()), with_key=key is not None)

    with logging_at(arguments.log_level):
        async with aclosing(engine):
            await serve_verifier(
                engine,
                host=arguments.host,
                port=arguments.port,
                key=key,
                allow_origins=arguments.allow_origin,
                allow_hosts=arguments.allow_host,
                max_body_bytes=int(arguments.max_body * _MIB),
                max_concurrent=arguments.max_concurrent,
                grace_s=arguments.grace,
                metrics=Metrics(),
                on_ready=ready,
            )
    return 0


def _lines(facts: VerifierFacts) -> list[str]:
    """Return what is served, in words."""
    slots = f"{facts.slots} {'slot' if facts.slots == 1 else 'slots'} of {facts.context_tokens} tokens"
    lines = [f"verify model: {facts.model}; {slots}"]
    if facts.verify_s:
        points = (
            f"{rows} {'token' if rows == 1 else 'tokens'} {1000 * s:.3g} ms" for rows, s in facts.verify_s
        )
        lines.append(f"one batch: {', '.join(points)}")
    return lines
