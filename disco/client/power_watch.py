"""Keeps the readings of this machine fresh for a client, and applies its presets' rule of [power] to them.

Readings are taken at most every few seconds, in a worker thread. A request waits for them only where they are old, and
for a moment at most; where they come late, it is planned with what was known before.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Literal, cast

import anyio
import anyio.to_thread

from disco.client.endpoint_catalog.observed.statistics import make_room
from disco.dispatch.power.power_rule import PowerState, power_of, step
from disco.dispatch.power.power_section import PowerSection
from disco.endpoints.background_tasks import BackgroundTasks
from disco.errors import ConfigurationError
from disco.notices import warn
from disco.plan import Power
from disco.power import UNKNOWN, MachineSensors, PowerReadings, Sensors, has_sensors

__all__ = ["EVERY_S", "OLD_S", "WAIT_S", "PowerSource", "PowerWatch"]

PowerSource = Sensors | Callable[[], PowerReadings] | Literal[False] | None
"""What `AsyncDisco(power=...)` takes."""

EVERY_S: Final = 5.0  # readings are that fresh while requests come
OLD_S: Final = 30.0  # older ones are waited for
WAIT_S: Final = 0.05  # that long
VARIABLE: Final = "DISCO_POWER"

_Clocks = tuple[float, float]  # monotonic time, and Unix time, s


class PowerWatch:
    """The state of one client's machine.

    Mutable: `_readings`, `_read_at`, `_ends` (set when the reading that is under way has ended), `_passed_s` and
    `_passed_at` (a clock that goes on while the machine sleeps), `_states`, `_has_failed`.

    Args:
        source: see `AsyncDisco`. None: psutil, where it is installed, unless the environment variable `DISCO_POWER` is
            "off". False: nothing is read. Sensors are read in a thread; a function is called in the event loop for each
            request.
        host: runs what is read in the background.
        knows_own_load: returns whether all models on this machine run in this program now: else their work looks like
            other programs' load, which is then taken as not known.
        now: returns (monotonic time, Unix time), s. Both count: one of them may stand still while the machine sleeps.

    Raises:
        ConfigurationError: the source is none of these.
    """

    def __init__(
        self,
        source: PowerSource,
        host: BackgroundTasks,
        *,
        knows_own_load: Callable[[], bool] = lambda: True,
        now: Callable[[], _Clocks] = lambda: (time.monotonic(), time.time()),
    ) -> None:
        self._sensors: Sensors | None = None
        self._function: Callable[[], PowerReadings] | None = None
        if source is None:
            is_off = os.environ.get(VARIABLE) == "off"
            self._sensors = MachineSensors() if has_sensors() and not is_off else None
        elif hasattr(source, "read"):
            self._sensors = cast("Sensors", source)
        elif callable(source):
            self._function = source
        elif source is not False:
            raise ConfigurationError(
                f"power is {source!r}. Give False, an object with a method read() that returns disco.PowerReadings, a "
                "function that returns them, or leave power out."
            )
        self._knows_own_load = knows_own_load if source is None else lambda: True
        self._host = host
        self._now = now
        self._readings = UNKNOWN
        self._read_at = (-math.inf, -math.inf)
        self._ends: anyio.Event | None = None
        self._passed_s, self._passed_at = 0.0, now()
        self._has_failed = False
        self._states: dict[PowerSection, PowerState] = {}

    @property
    def is_on(self) -> bool:
        """Whether anything is read."""
        return self._sensors is not None or self._function is not None

    async def look(self, section: PowerSection) -> Power | None:
        """Return what the machine's state changes for a request under this section; None where nothing is asked."""
        if not self.is_on or not section.enabled:
            return None
        if section.asks_network and isinstance(self._sensors, MachineSensors):
            self._sensors.asks_network = True
        if self._function is not None:
            self._take(self._function)
        else:
            await self._refresh()
        state = self._states.get(section)
        if state is None:
            make_room(self._states)
            state = PowerState()
        state = self._states[section] = step(state, self._readings, section, self._clock())
        return power_of(state, self._readings, section)

    def _clock(self) -> float:
        """Return how long this object has existed, s, the machine's sleep included where a clock shows it."""
        now = self._now()
        self._passed_s += max(0.0, _since(self._passed_at, now))
        self._passed_at = now
        return self._passed_s

    async def _refresh(self) -> None:
        age_s = _since(self._read_at, self._now())
        if age_s < EVERY_S:
            return
        if self._ends is None:
            await self._host.begin()
        if self._ends is None:
            self._ends = anyio.Event()
            await self._host.start(self._read, self._ends)
        if age_s >= OLD_S:
            with anyio.move_on_after(WAIT_S):
                await self._ends.wait()

    async def _read(self, ends: anyio.Event) -> None:
        sensors = self._sensors
        assert sensors is not None
        try:
            await anyio.to_thread.run_sync(self._take, sensors.read, abandon_on_cancel=True)
        finally:
            self._ends = None
            ends.set()

    def _take(self, read: Callable[[], PowerReadings]) -> None:
        """Take readings; a fault of what reads them costs a warning, and nothing is known."""
        try:
            readings = read()
            if not isinstance(readings, PowerReadings):
                raise TypeError(f"readings are disco.PowerReadings, not {type(readings).__name__}")
        except Exception as error:  # noqa: BLE001 - an application's code, or a driver's
            readings = UNKNOWN
            if not self._has_failed:
                self._has_failed = True
                warn(f"The state of this machine cannot be read: {type(error).__name__}.")
        if not self._knows_own_load():
            readings = replace(readings, load_share=None)
        self._readings, self._read_at = readings, self._now()


def _since(then: _Clocks, now: _Clocks) -> float:
    """Return the time between two points, s, on the clock that went on for longer: one may stand still in sleep."""
    return max(b - a for a, b in zip(then, now, strict=True))
