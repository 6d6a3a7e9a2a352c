"""The pace that a preset sets."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from disco.plan import ReleaseUnit

__all__ = ["Pace"]


@dataclass(frozen=True, slots=True)
class Pace:
    """The rate at which text is released, and how long it may be held.

    Attributes:
        tps: reading pace r_c, in tokens/s: the slowest rate at which text is shown while there is some.
        max_hold_s: the longest time that text is held while nothing is banked for a migration, s; with sentences, the
            longest time that a listener waits for the end of a sentence that has begun.
        release: what text leaves by.
    """

    tps: float
    max_hold_s: float = 0.3
    release: ReleaseUnit = "word"

    def __post_init__(self) -> None:
        if not (self.tps > 0 and isfinite(self.tps)):
            raise ValueError(f"tps must be positive and finite, not {self.tps}; use pace None for no pacing")
        if not self.max_hold_s > 0:
            raise ValueError(
                f"max_hold_s must be positive, not {self.max_hold_s}; use pace None for no pacing"
            )
