"""What the routes of a verify server need of the model behind them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from disco.speculate.messages import Round, Verdict, VerifierFacts

__all__ = ["RoundEngine"]


class RoundEngine(Protocol):
    """Answers rounds. Its methods run in the event loop."""

    def round(self, round_: Round, /) -> AsyncGenerator[Verdict, None]:
        """Yield the verdict on one round; with `alone`, one after another as the model goes on.

        Closing the generator, or cancelling its caller, stops the work for this round promptly.

        Raises:
            `round_refusals.AnswerLost`: the round has no opening, and its answer is not here.
            `ModelChanged`: the opening is for another model.
            `Superseded`: the same round was asked for again, on another connection.
            EndpointFailure: the round cannot be answered; by its kind, the caller's fault, a full queue, or a crash.
        """
        ...

    def release(self, key: str, /) -> None:
        """Forget an answer that nobody will ask for again. Idempotent; does not wait."""
        ...

    def facts(self) -> VerifierFacts:
        """Return what the engine says of itself, its load included."""
        ...

    async def warm_up(self) -> None:
        """Load the model and measure the cost of a batch.

        Raises:
            DiscoError: the model cannot be loaded.
        """
        ...

    async def aclose(self) -> None:
        """Stop all work and free the model. Idempotent."""
        ...
