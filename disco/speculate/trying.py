"""Whether an answer is worth a drafter's reading its prompt."""

from __future__ import annotations

from typing import Final

from disco.speculate.estimates import Estimates
from disco.speculate.seen import Seen
from disco.speculate.windows.contract import Window

__all__ = ["Trying"]

_FIRST_PAUSE: Final = 1
_LONGEST_PAUSE: Final = 16


class Trying:
    """Decides for the answers of one pair, one after the other. Mutable: all.

    To read a prompt costs the device as much as drafting. So where no window is predicted to pay, it is done only now
    and then, to find out whether that has changed: after 1 answer without, 2, 4, and so on to 16.
    """

    __slots__ = ("_left", "_pause")

    def __init__(self) -> None:
        self._left = 0  # answers before drafting is tried again
        self._pause = _FIRST_PAUSE

    def tries(self, estimates: Estimates, window: Window) -> bool:
        """Return whether to let the drafter read the next answer's prompt.

        Args:
            estimates: of the pair.
            window: a new one, as for the answer. It must choose 0 where drafting does not pay.
        """
        seen = Seen()
        estimates.fill(seen)
        window.choose(seen)  # a smoothed window takes two steps to go on alone
        if window.choose(seen) > 0:
            self._left, self._pause = 0, _FIRST_PAUSE
            return True
        if self._left > 0:
            self._left -= 1
            return False
        self._left, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        return True
