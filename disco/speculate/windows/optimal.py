"""Windows by prediction: the one with the lowest time per token, and any other one where it pays."""

from __future__ import annotations

from disco.speculate.predict import best_window, token_s
from disco.speculate.seen import Seen
from disco.speculate.windows.contract import HIGHEST, Window

__all__ = ["Optimal", "Paying"]


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


class Paying:
    """Any window, where it is predicted to save more than `min_gain` of the time per token of the target alone."""

    __slots__ = ("_inner", "_min_gain", "_parallel", "stop_below")

    def __init__(self, inner: Window, parallel: int, min_gain: float) -> None:
        self._inner, self._parallel, self._min_gain = inner, parallel, min_gain
        self.stop_below = inner.stop_below

    def choose(self, seen: Seen) -> int:
        """Return the inner window's choice; 0 where it does not pay."""
        window = self._inner.choose(seen)
        pays = token_s(window, seen, self._parallel) < (1 - self._min_gain) * token_s(0, seen)
        return window if pays else 0

    def judged(self, drafted: int, accepted: int) -> None:
        """Pass the verdict on."""
        self._inner.judged(drafted, accepted)
