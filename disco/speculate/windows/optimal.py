"""The window with the lowest predicted time per token."""

from __future__ import annotations

from disco.speculate.predict import best_window, token_s
from disco.speculate.seen import Seen
from disco.speculate.windows.contract import HIGHEST

__all__ = ["Optimal"]


class Optimal:
    """The argmin of `predict.token_s` over 0 to `highest`, from measured times alone: nothing is trained.

    It drafts only where that saves more than `min_gain` of the time per token of the target alone.
    """

    __slots__ = ("_highest", "_min_gain", "_parallel", "stop_below")

    def __init__(self, highest: int = HIGHEST, parallel: int = 1, min_gain: float = 0.0) -> None:
        self._highest, self._parallel, self._min_gain = highest, parallel, min_gain
        self.stop_below = 0.0

    def choose(self, seen: Seen) -> int:
        """Return the window; 0 where the target alone is as fast."""
        window, seconds = best_window(seen, self._highest, self._parallel)
        return window if seconds < (1 - self._min_gain) * token_s(0, seen) else 0

    def judged(self, drafted: int, accepted: int) -> None:
        """Learn nothing: `Seen` has it."""
