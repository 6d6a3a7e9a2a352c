"""The paper's adaptive window control (AWC): a small network chooses."""

from __future__ import annotations

from functools import cache
from math import isfinite
from pathlib import Path
from typing import Final

from disco._resources import resource_text
from disco.errors import ConfigurationError
from disco.speculate.seen import Seen
from disco.speculate.windows.contract import HIGHEST
from disco.speculate.windows.network import Network, inputs_of

__all__ = ["Adaptive", "network_of"]

_SHIPPED: Final = "data/awc.json"


class Adaptive:
    """What the network asks for, 0 to `highest`. `Stabilised` makes the paper's window of it."""

    __slots__ = ("_highest", "_network", "stop_below")

    def __init__(self, network: Network | None = None, highest: int = HIGHEST) -> None:
        """Use a network, or the one that is installed with disco.

        Raises:
            ConfigurationError: none is installed, or it cannot be read.
        """
        self._network = network or network_of(None)
        self._highest = highest
        self.stop_below = 0.0

    def raw(self, seen: Seen) -> float:
        """Return what the network asks for, not rounded, 0 to `highest`."""
        asked = float(self._network(inputs_of(seen)))
        return min(max(asked, 0.0), float(self._highest)) if isfinite(asked) else 0.0

    def choose(self, seen: Seen) -> int:
        """Return the window, rounded."""
        return round(self.raw(seen))

    def judged(self, drafted: int, accepted: int) -> None:
        """Learn nothing: `Seen` has it."""


@cache
def network_of(path: Path | None) -> Network:
    """Read a network from a file, or the one that is installed with disco.

    Raises:
        ConfigurationError: the file is missing, or is not such a network.
    """
    if path is None:
        try:
            text = resource_text("disco.speculate", _SHIPPED)
        except FileNotFoundError:
            raise ConfigurationError(
                f"the adaptive window's weights (disco/speculate/{_SHIPPED}) are not installed; give `weights`, "
                "a file made by training, or choose the window 'optimal', which needs none"
            ) from None
    else:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"the adaptive window's weights {path} cannot be read: {type(error).__name__}"
            ) from error
    return Network.from_json(text)
