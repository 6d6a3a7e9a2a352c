"""Windows by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any, Final

from disco.errors import ConfigurationError, nearest
from disco.speculate.messages import LONGEST_DRAFT
from disco.speculate.windows.adaptive import Adaptive, network_of
from disco.speculate.windows.contract import HIGHEST, Window
from disco.speculate.windows.network import Network
from disco.speculate.windows.optimal import Optimal, Paying
from disco.speculate.windows.simple import Confidence, Dynamic, Static
from disco.speculate.windows.stabilised import Stabilised

__all__ = ["WINDOWS", "window_of"]


def _static(*, n: int = 4) -> Window:
    return Static(_whole("n", n, 0))


def _dynamic(*, start: int = 4, low: float = 0.25, high: float = 0.75, highest: int = HIGHEST) -> Window:
    top = _whole("highest", highest)
    if not 0 <= low < high <= 1:
        raise ConfigurationError(f"low and high must rise within 0 to 1, not be {low} and {high}")
    return Dynamic(min(_whole("start", start), top), low, high, top)


def _confidence(*, eta: float = 0.6, most: int = HIGHEST) -> Window:
    return Confidence(_share("eta", eta), _whole("most", most))


def _adaptive(
    *, weights: str | Path | Network | None = None, highest: int = HIGHEST, stabilised: bool = True
) -> Window:
    network = (
        weights if isinstance(weights, Network) else network_of(None if weights is None else Path(weights))
    )
    top = _whole("highest", highest, 2)
    window = Adaptive(network, top)
    return Stabilised(window, highest=top) if stabilised else window


def _optimal(
    *, highest: int = HIGHEST, parallel: int = 1, min_gain: float = 0.0, stabilised: bool = True
) -> Window:
    top = _whole("highest", highest)
    window = Optimal(top, _whole("parallel", parallel), _share("min_gain", min_gain))
    # Here a window of one token is a choice like any other, so 0 means the target alone.
    return Stabilised(window, lowest=0, highest=top) if stabilised else window


WINDOWS: Final[Mapping[str, Callable[..., Window]]] = {
    "static": _static,
    "dynamic": _dynamic,
    "confidence": _confidence,
    "adaptive": _adaptive,
    "optimal": _optimal,
}
"""What makes a window, by its name."""
_KNOWN: Final = {name: tuple(signature(make).parameters) for name, make in WINDOWS.items()}


def window_of(name: str, **settings: Any) -> Window:
    """Make a window, for one answer or for one pair of drafter and target.

    Args:
        name: "static", "dynamic", "confidence", "adaptive" or "optimal".
        settings: of that window. static: `n`. dynamic: `start`, `low`, `high`, `highest`. confidence: `eta`, `most`.
            adaptive: `weights` (a JSON file; default: the shipped one), `highest`, `stabilised`. optimal: `highest`,
            `parallel` (windows in flight), `min_gain`, `stabilised`. Any window takes `min_gain`: it drafts only
            where that is predicted to save more than this share of the target's own time per token; and then also
            `parallel`.

    Raises:
        ConfigurationError: there is no such window or setting, or a value is out of range.
    """
    make = WINDOWS.get(name)
    if make is None:
        raise ConfigurationError(f"there is no window {name!r}. {nearest(name, WINDOWS)}")
    known = _KNOWN[name]
    if "min_gain" in settings and "min_gain" not in known:
        parallel = _whole("parallel", settings.pop("parallel", 1))
        min_gain = _share("min_gain", settings.pop("min_gain"))
        paying = Paying(window_of(name, **settings), parallel, min_gain)
        return Stabilised(paying, lowest=0, highest=LONGEST_DRAFT)
    for setting in settings:
        if setting not in known:
            raise ConfigurationError(
                f"the window {name!r} has no setting {setting!r}. {nearest(setting, known)}"
            )
    return make(**settings)


def _whole(name: str, value: Any, lowest: int = 1) -> int:
    if type(value) is not int or not lowest <= value <= LONGEST_DRAFT:
        raise ConfigurationError(
            f"{name} must be a whole number from {lowest} to {LONGEST_DRAFT}, not {value!r}"
        )
    return value


def _share(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or not 0 <= value < 1:
        raise ConfigurationError(f"{name} must be a number from 0 to below 1, not {value!r}")
    return float(value)
