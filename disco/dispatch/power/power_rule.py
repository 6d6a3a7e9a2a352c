"""The rule of [power]: which conditions of this machine hold, with hysteresis, and what follows. Pure functions.

A condition begins at one threshold and ends at another, so that readings that vary between the two change nothing.
Whatever the readings do, no condition changes twice within `PowerSection.stay_s`. An unknown reading is no evidence:
the condition it decides ends, as soon as it may change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Literal, cast, get_args

from disco.candidate import Candidate, Payer
from disco.dispatch.power.power_section import PowerSection, Sparing
from disco.plan import CoolDown, Power
from disco.power import PowerReadings

__all__ = [
    "BYTES_PER_ANSWER_TOKEN",
    "BYTES_PER_PROMPT_TOKEN",
    "CLOCK_BAND",
    "LOAD_BAND",
    "LOW_BAND",
    "Condition",
    "PowerState",
    "power_of",
    "spared_by",
    "step",
    "with_offline",
    "with_traffic",
]

Condition = Literal["battery", "low", "throttled", "loaded", "metered"]
"""What may hold of this machine. That it has no route to a server is found out per server, at each request."""

# By how much a reading must be back before its condition ends.
LOW_BAND: Final = 0.05
CLOCK_BAND: Final = 0.1
LOAD_BAND: Final = 0.2

# On the wire, as measured in docs/how-to/power.md: some letters of JSON for a prompt's token, an event for an answer's.
BYTES_PER_PROMPT_TOKEN: Final = 4.0
BYTES_PER_ANSWER_TOKEN: Final = 250.0
_MB: Final = 1e6

# A battery that runs out is worse than heat, heat worse than other programs that wait, and these worse than traffic.
_ORDER: Final[tuple[Sparing, ...]] = ("low", "throttled", "loaded", "metered")


@dataclass(frozen=True, slots=True)
class PowerState:
    """Which conditions hold, and since when they do or do not.

    Attributes:
        holding: the conditions that hold.
        changed_at: when each condition last began or ended, s, on the caller's clock; without those that never did.
    """

    holding: frozenset[Condition] = frozenset()
    changed_at: Mapping[Condition, float] = field(default_factory=lambda: MappingProxyType({}))


def step(state: PowerState, readings: PowerReadings, section: PowerSection, now: float) -> PowerState:
    """Return the state after new readings; the same object where nothing changed.

    Args:
        state: the state so far.
        readings: what is known now.
        section: the preset's.
        now: when, s, on one clock for all calls.
    """
    changed: dict[Condition, float] = {}
    holding = set(state.holding)
    for condition in get_args(Condition):
        held = condition in state.holding
        holds = _holds(condition, readings, section, held=held)
        if holds is held:
            continue
        since = state.changed_at.get(condition)
        # A clock that goes back is treated as one that stands still.
        if since is not None and now - since < section.stay_s:
            continue
        changed[condition] = now
        holding.symmetric_difference_update({condition})
    if not changed:
        return state
    return PowerState(frozenset(holding), MappingProxyType({**state.changed_at, **changed}))


def _holds(condition: Condition, readings: PowerReadings, section: PowerSection, *, held: bool) -> bool:
    """Return whether the readings say that a condition holds; `held`: whether it did so far."""
    match condition:
        case "battery":
            return readings.on_battery is True
        case "low":
            share = readings.battery_share
            if share is None or readings.on_battery is False:
                return False
            return share <= section.low_share or (held and share < section.low_share + LOW_BAND)
        case "throttled":
            clock = readings.clock_share
            if clock is None:
                return False
            return clock <= section.throttled_clock or (held and clock < section.throttled_clock + CLOCK_BAND)
        case "loaded":
            load = readings.load_share
            if load is None:
                return False
            return load >= section.loaded_share or (held and load > section.loaded_share - LOAD_BAND)
        case "metered":
            return readings.metered is True


def power_of(state: PowerState, readings: PowerReadings, section: PowerSection) -> Power:
    """Return what follows from the conditions that hold.

    Args:
        state: which conditions hold.
        readings: noted in the result, for the record.
        section: the preset's.
    """
    holding = state.holding
    factor = (
        section.low_factor if "low" in holding else section.battery_factor if "battery" in holding else 1.0
    )
    return Power(
        conditions=tuple(sorted(holding)),
        energy_factor=factor,
        spared=next((c for c in _ORDER if c in holding and c in section.spare), None),
        traffic_usd_per_mb=section.metered_usd_per_mb if "metered" in holding else 0.0,
        on_battery=readings.on_battery,
        battery_share=_rounded(readings.battery_share),
        clock_share=_rounded(readings.clock_share),
        load_share=_rounded(readings.load_share),
        metered=readings.metered,
    )


def with_offline(power: Power | None, offline: Collection[str]) -> Power | None:
    """Add to a `power` that this machine has no route to some endpoints, of which `offline` has the names."""
    if power is None or not offline:
        return power
    return replace(power, conditions=tuple(sorted({*power.conditions, "offline"})))


def spared_by(power: Power | None, candidates: Iterable[Candidate]) -> dict[str, CoolDown]:
    """Return the endpoints that are left alone, by name, with the reason (`Dispatcher.plan`).

    Args:
        power: what followed from the conditions; None: nothing.
        candidates: every endpoint.
    """
    if power is None or power.spared is None:
        return {}
    reach = "device" if power.spares_device else "any"
    reason = cast("Sparing", power.spared)
    return {c.name: CoolDown(c.name, reason) for c in candidates if c.reach == reach}


def with_traffic(candidate: Candidate, usd_per_mb: float) -> Candidate:
    """Return an endpoint as plans see it where its traffic is paid for: each token costs its bytes as well.

    The ledger and the budgets count what the server charges, as before.

    Args:
        candidate: one on this device is returned as it is.
        usd_per_mb: what 10⁶ bytes to or from the server count as, USD.
    """
    if not usd_per_mb or candidate.reach != "any":
        return candidate
    rates = candidate.rates
    return replace(
        candidate,
        rates=replace(
            rates,
            cost_in=rates.cost_in + usd_per_mb * BYTES_PER_PROMPT_TOKEN / _MB,
            cost_out=rates.cost_out + usd_per_mb * BYTES_PER_ANSWER_TOKEN / _MB,
        ),
        parts=candidate.parts or (Payer(candidate.name, candidate.place, rates),),
    )


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 2)
