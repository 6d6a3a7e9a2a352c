"""Reads this machine's state through psutil; where psutil is not installed, nothing is known.

psutil is imported at the first reading, in whatever thread reads. A reading takes a few milliseconds at most, files of
the kernel mostly. Where that is wanted, the network is asked for, once a minute (`network.py`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Protocol

from disco.power.network import is_metered
from disco.power.readings import UNKNOWN, PowerReadings

__all__ = ["MachineSensors", "Sensors", "has_sensors"]

SHORTEST_S: Final = (
    0.5  # of a time over which load is measured: the kernel counts in steps of 10 ms for each core
)
LONGEST_S: Final = 60.0  # what a mean over a longer time says is over
WORKING_SHARE: Final = (
    0.5  # of all cores: from this share of busy ones on, the clock is that of a processor at work
)
NETWORK_EVERY_S: Final = 60.0
SUPPLIES: Final = Path("/sys/class/power_supply")  # where Linux lists batteries; psutil reads them there


class Sensors(Protocol):
    """Reads the state of a machine; an application with better knowledge gives its own."""

    def read(self) -> PowerReadings:
        """Return what is known now. Called in a worker thread, one call at a time; may block for a moment."""
        ...


def has_sensors() -> bool:
    """Return whether psutil is installed; it is not imported."""
    return find_spec("psutil") is not None


class MachineSensors:
    """This machine, through psutil.

    Mutable: `asks_network` (whether it is found out if the network is metered, which starts a program), `_last` (the
    counters of the last reading), `_network` (when the network was asked, and the answer).

    Args:
        psutil: the module; None: it is imported at the first reading.
        metered: returns whether the network is metered.
        clock: returns the time, s.
        supplies: where Linux lists batteries.
    """

    def __init__(
        self,
        *,
        psutil: Any = None,
        metered: Callable[[], bool | None] = is_metered,
        clock: Callable[[], float] = time.monotonic,
        supplies: Path = SUPPLIES,
    ) -> None:
        self._psutil = psutil
        self._metered = metered
        self._clock = clock
        self._supplies = supplies
        self._last: tuple[float, float, float] | None = None  # when, s; CPU seconds of all; of this program
        self.asks_network = False
        self._network: tuple[float, bool | None] = (-math.inf, None)

    def read(self) -> PowerReadings:
        """Return what is known now; what the platform does not tell is None."""
        if self._psutil is None:
            try:
                import psutil  # noqa: PLC0415 - an optional package, imported off the event loop
            except ImportError:
                return UNKNOWN
            self._psutil = psutil
        now = self._clock()
        on_battery, share = self._battery()
        busy, others = self._load(now)
        return PowerReadings(
            on_battery=on_battery,
            battery_share=share,
            clock_share=self._clock_share() if busy is not None and busy >= WORKING_SHARE else None,
            load_share=others,
            metered=self._is_metered(now) if self.asks_network else None,
        )

    def _battery(self) -> tuple[bool | None, float | None]:
        """Return whether the machine runs on its battery, and the battery's charge.

        A machine without a battery is on none, with no charge. Where psutil tells the battery of a mouse, nothing is
        known.
        """
        read = getattr(self._psutil, "sensors_battery", None)  # missing on some platforms
        if read is None:
            return None, None
        try:
            battery = read()
        except (OSError, RuntimeError, ValueError, TypeError):  # drivers report all kinds of nonsense
            return None, None
        if battery is None:
            return False, None
        if _is_of_another_device(self._supplies):
            return None, None
        plugged, percent = battery.power_plugged, battery.percent
        share = None if percent is None or not math.isfinite(percent) else min(max(percent / 100, 0.0), 1.0)
        return None if plugged is None else not plugged, share

    def _load(self, now: float) -> tuple[float | None, float | None]:
        """Return the shares of all cores that were busy since the last reading: with all, and with other programs."""
        psutil = self._psutil
        cores = psutil.cpu_count() or 1
        times = psutil.cpu_times()
        # A guest's time is part of the user's; waiting for a disk is not work.
        busy_s = sum(
            getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal")
        )
        own_s = _own_seconds(psutil)
        last, self._last = self._last, (now, busy_s, own_s)
        if last is not None and SHORTEST_S <= now - last[0] <= LONGEST_S:
            span_s = (now - last[0]) * cores
            busy = min(max((busy_s - last[1]) / span_s, 0.0), 1.0)
            return busy, min(max((busy_s - last[1] - (own_s - last[2])) / span_s, 0.0), 1.0)
        if last is not None and now - last[0] < SHORTEST_S:
            self._last = last  # too soon: the next reading looks back as far as this one would have
            return None, None
        # After a long rest the system's own mean over the last minute is known, in which this program did nothing.
        try:
            mean = psutil.getloadavg()[0] / cores
        except (AttributeError, OSError):
            return None, None
        if last is None:  # this program has just begun, and may have been busy
            return None, None
        return min(mean, 1.0), min(mean, 1.0)

    def _clock_share(self) -> float | None:
        """Return the clock of the fastest core relative to its maximum: the others may be idle, and slow for that."""
        try:
            cores = self._psutil.cpu_freq(percpu=True)
        except (AttributeError, OSError, NotImplementedError, RuntimeError):
            return None
        shares = [core.current / core.max for core in cores or () if core.max and core.current]
        return float(min(max(shares), 1.0)) if shares else None

    def _is_metered(self, now: float) -> bool | None:
        asked_at, known = self._network
        if now - asked_at >= NETWORK_EVERY_S:
            known = self._metered()
            self._network = now, known
        return known


def _is_of_another_device(supplies: Path) -> bool:
    """Return whether the battery that psutil tells on Linux is that of a mouse, a keyboard or the like.

    psutil tells the first one by name, whosever it is. The kernel gives such a battery the scope "Device".
    """
    try:
        names = [path.name for path in supplies.iterdir()]
        batteries = [name for name in names if name.startswith("BAT") or "battery" in name.lower()]
        return bool(batteries) and (supplies / min(batteries) / "scope").read_text().strip() == "Device"
    except (OSError, ValueError):  # no such folder, as on other platforms, or a battery without a scope
        return False


def _own_seconds(psutil: Any) -> float:
    """Return the CPU seconds of this program and the programs it started, which compute for it."""
    try:
        me = psutil.Process()
        used = me.cpu_times()
        total = (
            used.user + used.system + getattr(used, "children_user", 0) + getattr(used, "children_system", 0)
        )
        for child in me.children():
            try:
                spent = child.cpu_times()
            except psutil.Error:  # it has just ended
                continue
            total += spent.user + spent.system
    except psutil.Error:
        return 0.0
    return float(total)
