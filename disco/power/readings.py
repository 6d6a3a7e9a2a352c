"""What is known about this machine at one moment: numbers only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

__all__ = ["UNKNOWN", "PowerReadings"]

_SHARES = ("battery_share", "clock_share", "load_share")


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerReadings:
    """Battery, clock, load and network. None: not known, which never counts as a reason to change a plan.

    Attributes:
        on_battery: whether the machine runs on its battery.
        battery_share: how full the battery is, 0 to 1.
        clock_share: the clock of the processor relative to its maximum, 0 to 1, *while it works*: an idle processor
            lowers its clock by itself.
        load_share: the share of all cores, 0 to 1, that other programs keep busy; the local model's own work does not
            count.
        metered: whether the network is paid for by what is sent and received.

    Raises:
        ValueError: a share outside 0 to 1.
    """

    on_battery: bool | None = None
    battery_share: float | None = None
    clock_share: float | None = None
    load_share: float | None = None
    metered: bool | None = None

    def __post_init__(self) -> None:
        for name in _SHARES:
            share = getattr(self, name)
            if share is not None and not (math.isfinite(share) and 0 <= share <= 1):
                raise ValueError(f"{name} must be 0 to 1, or None where it is not known; not {share!r}")


UNKNOWN: Final = PowerReadings()
"""Nothing is known."""
