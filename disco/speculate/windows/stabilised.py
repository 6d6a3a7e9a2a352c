"""Makes any window steady: clamp, moving average, hysteresis, and a way back from the target alone."""

from __future__ import annotations

from typing import Final

from disco.speculate.seen import Seen
from disco.speculate.windows.contract import HIGHEST, LOWEST, Window

__all__ = ["Stabilised"]

_WEIGHT: Final = 0.4
_FIRST_PROBE: Final = 8
_LAST_PROBE: Final = 64


class Stabilised:
    """A window whose choices are clamped and smoothed, with a mode: drafting, or the target alone.

    The paper clamps to [1, 12], smooths with 0.4 and lets a window of 1 mean the target alone, entered only after two
    steps near it. Where it is silent, this is decided here: 0.4 is the weight of the new value; "near" is a smoothed
    value that rounds to the lowest; the way back takes as many steps as the way in. While the target goes on alone
    nothing is drafted, and acceptance and draft time go stale. So every 8th choice in that mode is a probe: a window
    of `probe` tokens. Each probe in vain doubles the steps to the next one, up to 64.
    """

    __slots__ = (
        "_alone",
        "_highest",
        "_inner",
        "_lowest",
        "_probe",
        "_smoothed",
        "_steps",
        "_until_probe",
        "_wait",
        "_weight",
        "_within",
        "stop_below",
    )

    def __init__(
        self,
        inner: Window,
        *,
        lowest: int = LOWEST,
        highest: int = HIGHEST,
        weight: float = _WEIGHT,
        steps: int = 2,
        probe: int = 4,
    ) -> None:
        """Wrap a window.

        Args:
            inner: the window.
            lowest: the least window; a smoothed window that rounds to it means the target alone. 1 as in the paper, 0
                where a window of one token is to be possible.
            highest: the largest window.
            weight: of the new value in the moving average.
            steps: so many choices in a row must ask for the other mode (k of the paper).
            probe: tokens of a probe.
        """
        self._inner = inner
        self.stop_below = inner.stop_below
        self._lowest, self._highest, self._weight, self._steps = lowest, highest, weight, steps
        self._probe = max(min(probe, highest), lowest + 1)
        self._smoothed: float | None = None
        self._alone = False
        self._within = 0  # choices in a row that ask for the other mode
        self._wait = _FIRST_PROBE
        self._until_probe = _FIRST_PROBE

    @property
    def is_alone(self) -> bool:
        """Whether the target goes on alone, probes apart."""
        return self._alone

    def choose(self, seen: Seen) -> int:
        """Return the window; 0 for a step of the target alone."""
        asked = min(max(self._inner.choose(seen), self._lowest), self._highest)
        before = self._smoothed
        smoothed = asked if before is None else before + self._weight * (asked - before)
        self._smoothed = smoothed
        window = int(smoothed + 0.5)
        wants_alone = window <= self._lowest
        self._within = self._within + 1 if wants_alone != self._alone else 0
        if self._within >= self._steps:
            self._alone = wants_alone
            self._within = 0
            self._wait = self._until_probe = _FIRST_PROBE
        if not self._alone:
            return max(window, self._lowest, 1)
        self._until_probe -= 1
        if self._until_probe > 0:
            return 0
        self._wait = min(2 * self._wait, _LAST_PROBE)
        self._until_probe = self._wait
        return self._probe

    def judged(self, drafted: int, accepted: int) -> None:
        """Pass the verdict on."""
        self._inner.judged(drafted, accepted)
