"""What a window is."""

from __future__ import annotations

from typing import Final, Protocol

from disco.speculate.seen import Seen

__all__ = ["HIGHEST", "LOWEST", "Window"]

LOWEST: Final = 1
HIGHEST: Final = 12
"""The bounds to which the paper clamps its windows."""


class Window(Protocol):
    """Chooses how many tokens to draft. An object belongs to one answer, or to one pair of drafter and target.

    Attributes:
        stop_below: drafting stops, that token included, once the drafter's top probability is below this; 0.0: never.
    """

    stop_below: float

    def choose(self, seen: Seen) -> int:
        """Return how many tokens to draft next, given what was `seen`; 0 for a step of the target alone."""

    def judged(self, drafted: int, accepted: int) -> None:
        """Learn the verdict on a round: of its `drafted` tokens, `accepted` were right."""
