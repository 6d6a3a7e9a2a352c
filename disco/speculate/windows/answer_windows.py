"""The window of an answer: one of the rules, within what the user allows; the same live and in a replay."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from disco.speculate.seen import Seen
from disco.speculate.windows.catalog import window_of
from disco.speculate.windows.contract import Window

__all__ = ["AtLeastOne", "window_for"]


class AtLeastOne:
    """A window that always drafts: where `inner` would let the target go on alone, one token."""

    def __init__(self, inner: Window) -> None:
        self._inner = inner
        self.stop_below = inner.stop_below

    def choose(self, seen: Seen) -> int:
        """Return the window, 1 at least."""
        return max(1, self._inner.choose(seen))

    def judged(self, drafted: int, accepted: int) -> None:
        """Pass the verdict on."""
        self._inner.judged(drafted, accepted)


def window_for(
    window: str | int, *, most: int, parallel: int, min_gain: float | None, eta: float | None = None
) -> Callable[[], Window]:
    """Return a function that makes the window of an answer.

    Args:
        window: a fixed number of drafted tokens, or the name of a rule.
        most: drafted tokens of a round that a rule may choose at most.
        parallel: windows in flight.
        min_gain: the share of the time per token of the target alone that drafting has to save; None: draft always.
        eta: of the rule "confidence": the draft ends at a token that is less sure; None: the paper's.

    Raises:
        ConfigurationError: the rule is not known, or lacks what it needs.
    """
    name: str
    settings: dict[str, Any]
    if isinstance(window, int):
        name, settings = "static", {"n": window}
    else:
        name, settings = window, {"most" if window == "confidence" else "highest": most}
    if name == "confidence" and eta is not None:
        settings["eta"] = eta
    if min_gain is not None:
        return _checked(partial(window_of, name, **settings, min_gain=min_gain, parallel=parallel))
    if name == "optimal":
        settings |= {"parallel": parallel}
    make = _checked(partial(window_of, name, **settings))
    return lambda: AtLeastOne(make())


def _checked(make: Callable[..., Any]) -> Callable[[], Window]:
    make()  # so that a mistake shows here
    return make
