"""Windows without a model of what a round costs."""

from __future__ import annotations

from disco.speculate.seen import Seen
from disco.speculate.windows.contract import HIGHEST, LOWEST

__all__ = ["Confidence", "Dynamic", "Static"]


class Static:
    """Always the same window; the paper's has 4 tokens."""

    __slots__ = ("_window", "stop_below")

    def __init__(self, n: int = 4) -> None:
        self._window = n
        self.stop_below = 0.0

    def choose(self, seen: Seen) -> int:  # noqa: ARG002 - the signature of a window
        """Return the window."""
        return self._window

    def judged(self, drafted: int, accepted: int) -> None:
        """Learn nothing."""


class Dynamic:
    """One token more after a verdict while recent acceptance is above `high`, one less while it is below `low`.

    The paper calls it "Simple" in its Table 2, and gives no bounds; these are the ones of its adaptive window. It
    never stops drafting.
    """

    __slots__ = ("_has_verdict", "_high", "_highest", "_low", "_window", "stop_below")

    def __init__(
        self,
        start: int = 4,
        low: float = 0.25,
        high: float = 0.75,
        highest: int = HIGHEST,
    ) -> None:
        self._window = start
        self._low, self._high, self._highest = low, high, highest
        self._has_verdict = False
        self.stop_below = 0.0

    def choose(self, seen: Seen) -> int:
        """Return the window, moved by at most one for each verdict since the last choice."""
        if self._has_verdict:
            self._has_verdict = False
            if seen.acceptance > self._high:
                self._window = min(self._window + 1, self._highest)
            elif seen.acceptance < self._low:
                self._window = max(self._window - 1, LOWEST)
        return self._window

    def judged(self, drafted: int, accepted: int) -> None:  # noqa: ARG002 - the signature of a window
        """Let the next choice move."""
        self._has_verdict = self._has_verdict or drafted > 0


class Confidence:
    """The drafter stops by itself, at a token of which it is not sure; `most` tokens at the latest.

    Source: HAT, with its threshold of 0.6; the token below the threshold is sent, too.
    """

    __slots__ = ("_most", "stop_below")

    def __init__(self, eta: float = 0.6, most: int = HIGHEST) -> None:
        self._most = most
        self.stop_below = eta

    def choose(self, seen: Seen) -> int:  # noqa: ARG002 - the signature of a window
        """Return the most tokens."""
        return self._most

    def judged(self, drafted: int, accepted: int) -> None:
        """Learn nothing."""
