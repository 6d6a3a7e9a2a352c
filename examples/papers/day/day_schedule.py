"""The hours of the day: which state the laptop is in, and how many requests come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from disco.power import PowerReadings
from disco.profiles import LengthsProfile
from disco.replay import Trace

__all__ = ["BATTERY_J", "DAY", "NOISE", "Phase", "kind_at", "phase_at", "readings_at", "trace_of"]

BATTERY_J: Final = 50 * 3600.0
"""A laptop's full battery: 50 Wh, in joules."""
NOISE: Final = 0.01
"""Standard deviation of a reading of the battery's charge."""
_HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Phase:
    """Some hours in one state.

    Attributes:
        kind: "plugged", "unplugged", "low", "asleep" (no requests; the program is suspended), "offline" or "metered".
        begins_h, ends_h: hours of the day.
        per_hour: requests per hour, on average.
        charge: the battery's charge at the beginning and at the end, 0 to 1, between which it runs evenly; None: not on
            battery.
    """

    kind: str
    begins_h: float
    ends_h: float
    per_hour: float
    charge: tuple[float, float] | None = None


DAY: Final = (
    Phase("asleep", 0, 7, 0),
    Phase("plugged", 7, 8, 6),
    Phase("metered", 8, 9, 8, (1.0, 0.9)),  # a train, over the phone
    Phase("unplugged", 9, 12, 15, (0.9, 0.6)),
    Phase("asleep", 12, 13, 0),
    Phase("unplugged", 13, 15.5, 15, (0.6, 0.22)),
    Phase("low", 15.5, 17, 12, (0.2, 0.05)),
    Phase("plugged", 17, 20, 10),
    Phase("offline", 20, 21.5, 10, (1.0, 0.8)),  # a flight
    Phase("unplugged", 21.5, 22.5, 6, (0.8, 0.7)),
    Phase("asleep", 22.5, 24, 0),
)
"""The shipped day: an assumption, not a measurement. 165 requests on average."""


def phase_at(day: tuple[Phase, ...], at_s: float) -> Phase:
    """Return the phase at a time since midnight, s."""
    hour = at_s / _HOUR_S
    return next((p for p in day if p.begins_h <= hour < p.ends_h), day[-1])


def kind_at(day: tuple[Phase, ...], at_s: NDArray[np.float64]) -> list[str]:
    """Return the kind of phase at each time since midnight, s."""
    return [phase_at(day, at).kind for at in at_s.tolist()]


def readings_at(day: tuple[Phase, ...], at_s: float, noise: float) -> PowerReadings:
    """Return what sensors would tell at a time since midnight, s, with `noise` on the battery's charge."""
    phase = phase_at(day, at_s)
    share = 1.0
    if phase.charge is not None:
        first, last = phase.charge
        passed = (at_s / _HOUR_S - phase.begins_h) / (phase.ends_h - phase.begins_h)
        share = first + (last - first) * passed
    return PowerReadings(
        on_battery=phase.charge is not None,
        battery_share=min(max(share + noise, 0.0), 1.0),
        metered=phase.kind == "metered",
    )


def trace_of(day: tuple[Phase, ...], lengths: LengthsProfile, seed: int) -> Trace:
    """Return a day's requests: Poisson arrivals at each phase's rate, lengths of a profile; times since midnight, s."""
    arrivals, prompts, answers = (np.random.default_rng([seed, column]) for column in range(3))
    times: list[NDArray[np.float64]] = []
    for phase in day:
        hours = phase.ends_h - phase.begins_h
        count = int(arrivals.poisson(phase.per_hour * hours))
        times.append(np.sort(arrivals.uniform(phase.begins_h, phase.ends_h, count)) * _HOUR_S)
    at_s = np.concatenate(times)
    return Trace.of(
        arrival_s=at_s,
        prompt_tokens=lengths.prompt().sample(prompts, at_s.size),
        output_tokens=lengths.output().sample(answers, at_s.size),
        name="a laptop's day",
        source=f"synthetic, seed {seed}: Poisson arrivals by the hour, lengths of {lengths.name}",
    )
