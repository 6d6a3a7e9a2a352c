"""The window of a live answer: one of `speculate.windows`, within what the user allows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from disco.speculate.predict import token_s
from disco.speculate.seen import Seen
from disco.speculate.windows import Window, window_of
from disco.speculate.windows.stabilised import Stabilised

__all__ = ["AtLeastOne", "Worthwhile", "window_for"]


class Worthwhile:
    """A window that is used only where it is predicted to save enough of the time per token.

    Args:
        inner: the window.
        most: drafted tokens of a round at most.
        parallel: windows in flight.
        min_gain: the share of the time per token of the target alone that drafting has to save.
    """

    def __init__(self, inner: Window, most: int, parallel: int, min_gain: float) -> None:
        self._inner, self._most = inner, most
        self._parallel, self._share = parallel, 1 - min_gain
        self.stop_below = inner.stop_below

    def choose(self, seen: Seen) -> int:
        """Return the window; 0 where it does not save enough."""
        window = min(self._inner.choose(seen), self._most)
        return window if token_s(window, seen, self._parallel) < self._share * token_s(0, seen) else 0

    def judged(self, drafted: int, accepted: int) -> None:
        """Pass the verdict on."""
        self._inner.judged(drafted, accepted)


class AtLeastOne:
    """A window that always drafts.

    Args:
        inner: the window.
        most: drafted tokens of a round at most.
    """

    def __init__(self, inner: Window, most: int) -> None:
        self._inner, self._most = inner, most
        self.stop_below = inner.stop_below

    def choose(self, seen: Seen) -> int:
        """Return the window, 1 at least."""
        return max(1, min(self._inner.choose(seen), self._most))

    def judged(self, drafted: int, accepted: int) -> None:
        """Pass the verdict on."""
        self._inner.judged(drafted, accepted)


def window_for(
    window: str | int, *, most: int, parallel: int, min_gain: float | None
) -> Callable[[], Window]:
    """Return a function that makes the window of an answer.

    Args:
        window: a fixed number of drafted tokens, or the name of a rule.
        most: drafted tokens of a round at most.
        parallel: windows in flight.
        min_gain: see `Worthwhile`; None: draft always.

    Raises:
        ConfigurationError: the rule is not known, or lacks what it needs.
    """
    make: Callable[[], Window]
    if isinstance(window, int):
        make = partial(window_of, "static", n=window)
    elif window == "optimal":
        make = partial(window_of, window, highest=most, parallel=parallel, min_gain=min_gain or 0.0)
        if min_gain is not None:
            return make  # it has the same rule in itself
    elif window == "confidence":
        make = partial(window_of, window, most=most)
    else:
        make = partial(window_of, window, highest=most)
    make()  # so that a mistake shows here
    if min_gain is None:
        return lambda: AtLeastOne(make(), most)
    # While nothing is drafted, probes show whether it would pay by now.
    return lambda: Stabilised(
        Worthwhile(make(), most, parallel, min_gain), lowest=0, highest=most, weight=1.0
    )
