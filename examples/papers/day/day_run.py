"""Runs the day through the real sessions in virtual time, under each preset, with its [power] and without.

What replay shares with a live client: the sessions, the dispatcher, the rule of [power] and its hysteresis, the rates.
The readings come from the schedule, with noise. Both days of a pair have the same requests, draws and readings.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from disco.candidate import Candidate
from disco.cost import ExchangeRate, device_rates, server_rates
from disco.dispatch import Dispatcher, Features, Plan, Preset, eligible, load_preset
from disco.dispatch.power.power_rule import (
    BYTES_PER_ANSWER_TOKEN,
    BYTES_PER_PROMPT_TOKEN,
    PowerState,
    power_of,
    spared_by,
    step,
    with_traffic,
)
from disco.errors import ConfigurationError, NoEndpointError
from disco.plan import CoolDown, Power
from disco.profiles import DeviceProfile, LengthsProfile, Price, ServerProfile
from disco.rates import Rates
from disco.replay import Figure, figure
from disco.replay.stations import Station, StationOutcome, resolve_stations, simulate_stations
from papers.day.day_schedule import DAY, NOISE, Phase, kind_at, phase_at, readings_at, trace_of

__all__ = ["PRESETS", "DayResult", "PhaseFigures", "run_day"]

PRESETS: Final = ("balanced", "cheap", "server-first", "fast")
ALL: Final = "all"
DEVICE, SERVER = "device", "server"
FLOPS_PER_JOULE: Final = 2e10
"""What a laptop's processor computes per joule, about: what the presets' exchange rates assume, too."""


@dataclass(frozen=True, slots=True)
class PhaseFigures:
    """What the requests of one kind of phase came to, a mean over seeds with its interval for each figure.

    Attributes:
        requests, failed: number a day; failed ones could be served by nobody.
        energy_j: the device's, by the FLOPs of what it computed.
        battery_j: of it, what came out of the battery.
        server_usd: what the server charged.
        traffic_mb: to and from the server, estimated from tokens, 10⁶ bytes.
        ttft_mean_s, ttft_p99_s: of the answered requests; P99 is a day's own, so of few requests about their maximum.
        device_share: share of the answered requests whose first word the device wrote.
    """

    requests: Figure
    failed: Figure
    energy_j: Figure
    battery_j: Figure
    server_usd: Figure
    traffic_mb: Figure
    ttft_mean_s: Figure
    ttft_p99_s: Figure
    device_share: Figure


@dataclass(frozen=True, slots=True)
class DayResult:
    """One preset's day.

    Attributes:
        preset: its name.
        device, server: names of the profiles.
        seeds: number of days.
        without, with_power: by kind of phase, and "all" of them, the figures without [power] and with it.
        saved: by figure of "all", what [power] took away, by day: without minus with.
        changes: how often a condition began or ended, a day.
        crossings: how often one would have without hysteresis: each time that a reading crosses its threshold.
    """

    preset: str
    device: str
    server: str
    seeds: int
    without: Mapping[str, PhaseFigures]
    with_power: Mapping[str, PhaseFigures]
    saved: Mapping[str, Figure]
    changes: Figure
    crossings: Figure


class _PoweredDay:
    """Plans the requests of one day.

    Mutable: `_state`, `_bare` (without hysteresis), `_power` and `_offline`, of the latest request; `changes`,
    `crossings`.

    Args:
        preset: with its [power], which may be off.
        day: the schedule.
        profile: the device's.
        dispatcher: plans under the preset.
        seed: of the readings' noise.
    """

    def __init__(
        self,
        preset: Preset,
        day: tuple[Phase, ...],
        profile: DeviceProfile,
        dispatcher: Dispatcher,
        seed: int,
    ) -> None:
        self._preset = preset
        self._day = day
        self._profile = profile
        self._dispatcher = dispatcher
        self._noise = np.random.default_rng([seed, 7])
        self._state = PowerState()
        self._bare = PowerState()
        self._power: Power | None = None
        self._offline = False
        self._rates: dict[float, Rates] = {}
        self.changes = 0
        self.crossings = 0

    def setting(self, at: float, candidates: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """Return the endpoints as the machine's state makes them; see `station_simulator.Setting`."""
        self._offline = phase_at(self._day, at).kind == "offline"
        readings = readings_at(self._day, at, float(self._noise.normal(0.0, NOISE)))
        section = self._preset.power
        if not section.enabled:
            return candidates
        state = step(self._state, readings, section, at)
        self.changes += len(state.holding ^ self._state.holding)
        self._state = state
        # The same thresholds without band and stay: from the empty state, every reading decides anew.
        bare = step(PowerState(), readings, section, at)
        self.crossings += len(bare.holding ^ self._bare.holding)
        self._bare = bare
        power = self._power = power_of(state, readings, section)
        return tuple(
            replace(c, rates=self.device_rates(power.energy_factor))
            if c.place == "device"
            else with_traffic(c, power.traffic_usd_per_mb)
            for c in candidates
        )

    def device_rates(self, factor: float) -> Rates:
        """Return what the device's energy costs, at so many times the preset's exchange rate."""
        rates = self._rates.get(factor)
        if rates is None:
            rate = ExchangeRate(usd_per_mflop=self._preset.cost.exchange_rate * factor)
            rates = self._rates[factor] = device_rates(self._profile, rate)
        return rates

    def plan_row(
        self,
        row: int,  # noqa: ARG002 - as live, only the request and the machine's state count
        features: Features,
        candidates: Sequence[Candidate],
        *,
        resting: Mapping[str, CoolDown],
        probing: Collection[str],
    ) -> Plan:
        """See `stations.Planner`."""
        if self._offline:
            resting = {**resting, SERVER: CoolDown(SERVER, "offline")}
            if all(c.name in resting for c in eligible(features, candidates, {})):
                raise NoEndpointError("No endpoint that can be reached may serve this request.")
        plan = self._dispatcher.plan(
            features,
            candidates,
            {},
            resting=resting,
            probing=probing,
            spared=spared_by(self._power, candidates),
        )
        return replace(plan, power=self._power)


def run_day(
    device: DeviceProfile,
    server: ServerProfile,
    price: Price,
    lengths: LengthsProfile,
    *,
    presets: Sequence[str] = PRESETS,
    day: tuple[Phase, ...] = DAY,
    seeds: int = 20,
    max_tokens: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[DayResult]:
    """Run the day under each preset.

    Args:
        device: the laptop's model; needs `flops`.
        server: the server.
        price: what it charges.
        lengths: of prompts and answers.
        presets: names of presets, or their files.
        day: the schedule.
        seeds: number of days, each with draws of its own; at least 1.
        max_tokens: limit of every answer; None: none.
        progress: called with the days done and their total.

    Raises:
        ConfigurationError: the device profile has no FLOPs, or a preset has a policy that this replay does not run.
    """
    if device.flops is None:
        raise ConfigurationError(
            f"device profile {device.name!r} has no [flops], from which its energy is computed; add it, or measure "
            "this machine with `disco profile`"
        )
    chosen = [load_preset(name) for name in presets]
    for preset in chosen:
        if preset.dispatch.policy in ("cascade", "assist"):
            raise ConfigurationError(
                f"the preset {preset.name!r} judges or divides answers, which `python -m papers.day` does not run; "
                "choose another one"
            )
    total, done = 2 * seeds * len(chosen), 0
    results = []
    for preset in chosen:
        days: tuple[list[_Day], list[_Day]] = ([], [])
        for seed in range(seeds):
            for into, planned in zip(days, (_without_power(preset), preset), strict=True):
                into.append(_one_day(planned, day, device, server, price, lengths, seed, max_tokens))
                done += 1
                if progress is not None:
                    progress(done, total)
        results.append(_result(preset.name, device, server, days))
    return results


def _without_power(preset: Preset) -> Preset:
    return preset.model_copy(update={"power": preset.power.model_copy(update={"enabled": False})})


@dataclass(frozen=True, slots=True)
class _Day:
    """One day's figures, by kind of phase."""

    by_kind: Mapping[str, Mapping[str, float]]
    changes: int
    crossings: int


def _one_day(
    preset: Preset,
    day: tuple[Phase, ...],
    device: DeviceProfile,
    server: ServerProfile,
    price: Price,
    lengths: LengthsProfile,
    seed: int,
    max_tokens: int | None,
) -> _Day:
    dispatcher = Dispatcher(
        preset, lengths=lengths.prompt(), ttft=server.ttft(), rng=np.random.default_rng([seed, 5])
    )
    planner = _PoweredDay(preset, day, device, dispatcher, seed)
    stations = (
        Station.of_device(device, planner.device_rates(1.0), slots=1),
        Station.of_server(server, server_rates(price), rank=1),
    )
    trace = trace_of(day, lengths, seed)
    workload = resolve_stations(trace, stations, seed=seed, max_tokens=max_tokens)
    pace = preset.playback.pace_tps
    outcome = simulate_stations(
        workload,
        stations,
        planner,
        pace_tps=None if pace == "off" else float(pace),
        policy=preset.name,
        setting=planner.setting,
    )
    kinds = np.array(kind_at(day, trace.arrival_s))
    charged = np.array([phase_at(day, at).charge is not None for at in trace.arrival_s.tolist()])
    columns = _columns(outcome, device, charged)
    names = [*dict.fromkeys(p.kind for p in day if p.per_hour), ALL]
    by_kind = {name: _figures(columns, kinds == name if name != ALL else kinds != "") for name in names}
    return _Day(by_kind, planner.changes, planner.crossings)


def _columns(
    outcome: StationOutcome, device: DeviceProfile, on_battery: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Return what each request came to; shape (n,) each."""
    assert device.flops is not None
    here, there = outcome.names.index(DEVICE), outcome.names.index(SERVER)
    read = outcome.prompt_tokens[:, here] - outcome.cached_tokens[:, here]
    prefill = np.array([device.flops.prefill_at(float(tokens)) for tokens in outcome.request_tokens.tolist()])
    energy_j = (read * prefill + outcome.completion_tokens[:, here] * device.flops.decode) / FLOPS_PER_JOULE
    sent = outcome.prompt_tokens[:, there] * BYTES_PER_PROMPT_TOKEN
    got = outcome.completion_tokens[:, there] * BYTES_PER_ANSWER_TOKEN
    return {
        "failed": outcome.failed.astype(np.float64),
        "energy_j": energy_j,
        "battery_j": np.where(on_battery, energy_j, 0.0),
        "server_usd": outcome.cost_usd[:, there],
        "traffic_mb": (sent + got) / 1e6,
        "ttft_s": outcome.ttft_s,
        "device": (outcome.winner == here).astype(np.float64),
    }


def _figures(
    columns: Mapping[str, np.ndarray[tuple[int], np.dtype[np.float64]]],
    rows: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> dict[str, float]:
    ttft_s = columns["ttft_s"][rows]
    answered = ~np.isnan(ttft_s)
    some = bool(answered.any())
    sums = ("failed", "energy_j", "battery_j", "server_usd", "traffic_mb")
    return {
        "requests": float(rows.sum()),
        **{name: float(columns[name][rows].sum()) for name in sums},
        "ttft_mean_s": float(ttft_s[answered].mean()) if some else float("nan"),
        "ttft_p99_s": float(np.quantile(ttft_s[answered], 0.99)) if some else float("nan"),
        "device_share": float(columns["device"][rows][answered].mean()) if some else float("nan"),
    }


def _result(
    preset: str, device: DeviceProfile, server: ServerProfile, days: tuple[list[_Day], list[_Day]]
) -> DayResult:
    without, powered = days
    both = list(zip(without, powered, strict=True))
    saved = {
        name: figure([a.by_kind[ALL][name] - b.by_kind[ALL][name] for a, b in both])
        for name in ("energy_j", "battery_j", "server_usd", "traffic_mb", "ttft_mean_s", "ttft_p99_s")
    }
    return DayResult(
        preset=preset,
        device=device.name,
        server=server.name,
        seeds=len(without),
        without=_over_seeds(without),
        with_power=_over_seeds(powered),
        saved=saved,
        changes=figure([one.changes for one in powered]),
        crossings=figure([one.crossings for one in powered]),
    )


def _over_seeds(days: Sequence[_Day]) -> dict[str, PhaseFigures]:
    return {
        kind: PhaseFigures(
            **{
                name: figure(
                    [v for one in days if not np.isnan(v := one.by_kind[kind][name])] or [float("nan")]
                )
                for name in days[0].by_kind[kind]
            }
        )
        for kind in days[0].by_kind
    }
