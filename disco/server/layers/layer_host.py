"""What the routes of a layer server need of the model behind them; `LayerEngine` is one."""

from __future__ import annotations

from typing import Protocol

from disco.endpoints.llamacpp.layers.chunk import Chunk, Outcome
from disco.speculate.layer_facts import LayerFacts

__all__ = ["LayerHost", "LayerLink"]


class LayerLink(Protocol):
    """One device's connection; see `LayerConnection`."""

    def ask(self, chunk: Chunk, /) -> None:
        """Have a chunk computed; its outcome comes by `take`."""

    def release(self, sequence: int, /) -> None:
        """Forget a sequence; `Released` comes by `take`."""

    async def take(self) -> list[Outcome]:
        """Return what has come, at least one outcome. Empty: there will be no more."""
        ...

    def close(self) -> None:
        """Leave. Idempotent."""


class LayerHost(Protocol):
    """Computes devices' rows. Its methods run in the event loop."""

    @property
    def passes(self) -> int:
        """How many passes were computed so far."""
        ...

    def facts(self, session: str | None = None, /) -> LayerFacts:
        """Return what it says of itself; with a session's name, with the load of others only."""
        ...

    def connect(self, session: str, /) -> LayerLink:
        """Begin a session or take it up again. The caller closes it."""
        ...

    async def warm_up(self) -> None:
        """Load the model and measure the cost of a pass.

        Raises:
            DiscoError: the model cannot be loaded.
        """

    async def aclose(self) -> None:
        """Stop all work and free the model. Idempotent."""
