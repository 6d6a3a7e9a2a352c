"""How many tokens to draft for the next round: five rules, and what makes any of them steady."""

from disco.speculate.seen import Seen, VerifyCurve
from disco.speculate.windows.catalog import WINDOWS, window_of
from disco.speculate.windows.contract import Window

__all__ = ["WINDOWS", "Seen", "VerifyCurve", "Window", "window_of"]
