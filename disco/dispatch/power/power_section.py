"""The preset's section [power]."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from disco.dispatch.preset_section import Section

__all__ = ["PowerSection", "Sparing"]

Sparing = Literal["low", "throttled", "loaded", "metered"]
"""A condition of this machine for which endpoints can be left alone."""


class PowerSection(Section):
    """[power]: what the state of this machine changes. docs/how-to/power.md has the rule.

    Attributes:
        enabled: whether it changes anything.
        battery_factor: on battery, the exchange rate is multiplied by this, at least 1.
        low_share: at this share of its charge or less, the battery is low, 0 to 1; 0: only when it is empty.
        low_factor: on a low battery, the exchange rate is multiplied by this instead, at least 1.
        throttled_clock: at this share of its maximum or less, the clock of the working processor is throttled, 0 to 1.
        loaded_share: from this share of all cores on that other programs keep busy, the machine is loaded, 0 to 1.
        metered_usd_per_mb: on a metered network, what plans count a megabyte to or from a server as, USD, at least 0.
            The ledger and the budgets do not count it.
        spare: under which conditions some endpoints answer only where no other one may: with "low", "throttled" and
            "loaded" those on this machine, with "metered" those elsewhere but on the user's own machines, unless those
            on this machine are spared.
        stay_s: a condition that has begun or ended does not change again within this time, s, at least 0.
    """

    enabled: bool = True
    battery_factor: float = Field(default=100.0, ge=1.0)
    low_share: float = Field(default=0.2, ge=0.0, le=1.0)
    low_factor: float = Field(default=2500.0, ge=1.0)
    throttled_clock: float = Field(default=0.6, ge=0.0, le=1.0)
    loaded_share: float = Field(default=0.9, ge=0.0, le=1.0)
    metered_usd_per_mb: float = Field(default=0.0, ge=0.0)
    spare: tuple[Sparing, ...] = ("low", "throttled", "loaded")
    stay_s: float = Field(default=60.0, ge=0.0)

    @property
    def asks_network(self) -> bool:
        """Whether it matters that the network is metered: to find that out, a program of the system is started."""
        return self.enabled and ("metered" in self.spare or self.metered_usd_per_mb > 0)
