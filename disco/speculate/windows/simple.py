"""Windows without a model of what a round costs."""

from __future__ import annotations

from disco.speculate.estimates import Smoothed
from disco.speculate.seen import Seen
from disco.speculate.windows.contract import HIGHEST, LOWEST

__all__ = ["Confidence", "Dynamic", "Static"]


class Static:
    """Always a window of `n` tokens; the paper's has 4."""

    __slots__ = ("_window", "stop_below")

    def __init__(self, n: int = 4) -> None:
        self._window = n
        self.stop_below = 0.0

    def choose(self, seen: Seen) -> int:  # noqa: ARG002 - the signature of a window
        """As `Window.choose`."""
        return self._window

    def judged(self, drafted: int, accepted: int) -> None:
        """As `Window.judged`; it learns nothing."""


class Dynamic:
    """One token more after a verdict while recent acceptance is above `high`, one less while it is below `low`.

    The paper calls it "Simple" in its Table 2. It does not say what recent acceptance is: here it is accepted over
    drafted tokens of recent rounds, a moving average over about five rounds. That share falls as the window grows,
    since all behind the first wrong token counts as refused, so that the window settles: at about 6 where each token
    is right with probability 0.8, at 4 with 0.7. By the censored estimate of that probability (`Seen.acceptance`),
    which does not depend on the window, anything above 0.75 would grow to the highest window at once. Between the
    bounds nothing brings the window back, so that with 0.9 chance takes it to the highest all the same, and with 0.5
    to the lowest. It never stops drafting.
    """

    __slots__ = ("_has_verdict", "_high", "_highest", "_low", "_recent", "_window", "stop_below")

    def __init__(
        self,
        start: int = 4,
        low: float = 0.25,
        high: float = 0.75,
        highest: int = HIGHEST,
    ) -> None:
        self._window = start
        self._low, self._high, self._highest = low, high, highest
        self._recent = Smoothed(cuts=False)
        self._has_verdict = False
        self.stop_below = 0.0

    def choose(self, seen: Seen) -> int:  # noqa: ARG002 - the signature of a window
        """Return the window, moved by at most one for each verdict since the last choice."""
        recent = self._recent.value
        if self._has_verdict and recent is not None:
            self._has_verdict = False
            if recent > self._high:
                self._window = min(self._window + 1, self._highest)
            elif recent < self._low:
                self._window = max(self._window - 1, LOWEST)
        return self._window

    def judged(self, drafted: int, accepted: int) -> None:
        """Learn a verdict, and let the next choice move."""
        if drafted > 0:
            self._recent.add(accepted / drafted)
            self._has_verdict = True


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
