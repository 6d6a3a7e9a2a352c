"""Scenario (device, server, prices, reader) on which a trace is replayed, and arms: the policies that are compared.

`resolve` makes all random draws that a trace needs, before any policy sees the trace. So every policy, both evaluators
and every budget get the same draws (common random numbers), and differences come from the policies alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from disco.candidate import Candidate
from disco.cost import ExchangeRate, Rates, device_rates, server_rates
from disco.dispatch.policies.policy import Delays
from disco.dispatch.regime import Regime, regime
from disco.endpoints.simulation.simulated_script import Fault
from disco.errors import ConfigurationError
from disco.plan import Order, ReleaseUnit
from disco.profiles import DeviceProfile, Empirical, Lengths, Price, PriceTables, ServerProfile, load_prices
from disco.replay.pairs.simulated_pair import Pair
from disco.replay.stations.station import DEFAULT_TPS, Station
from disco.replay.stations.station_workload import first_token_times, token_times
from disco.replay.workload.trace import Gaps, Trace

__all__ = ["DEVICE", "SERVER", "Arm", "Draws", "Scenario", "Workload", "draws", "resolve", "scenario_for"]

DEVICE = "device"
SERVER = "server"

DEFAULT_SERVER_TPS = DEFAULT_TPS  # tokens/s, if neither trace nor profile has the server's decode rate
# Features of a recording that `resolve` uses; NaN where they do not apply.
TTFT_OVER = (
    "ttft_over_s"  # the server's first token took longer than this: the server lost a race and was stopped
)
DEVICE_TTFT_OVER = "device_ttft_over_s"  # the same for the device
DEVICE_CACHED = (
    "device_cached_tokens"  # tokens of the prompt that the device still held from earlier requests
)
STARTS = ("device_start_s", "server_start_s")  # seconds after the request; NaN: no start was planned

# Separate random streams: the seed of a synthetic trace (streams 0, 1, 2) may also resolve it.
_TTFT_STREAM, _TPOT_STREAM = 21, 22

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Draws = tuple[np.random.Generator, np.random.Generator]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Two endpoints, their prices, and a reader.

    Attributes:
        name: for tables and plots, such as "pixel7pro-bloom-1.1b × deepseek-v3-2025".
        device: prefill and decode rates, load time.
        device_rates, server_rates: unified cost per token (USD).
        ttft: the server's time to first token: what policies plan on, and what unknown times are drawn from.
        tpot: the server's distribution over requests of the mean time per output token, s; None: always
            `1/server_tps`.
        server_tps: the server's decode rate that plans assume, tokens/s.
        lengths: prompt lengths that policies plan on; None: those of the trace itself.
        max_tokens: limit of every answer; None: no limit.
        pace_tps: the reader's pace, tokens/s; None: text is passed on when it arrives.
        release: what text leaves by, where there is a pace: "word" or "sentence".
        device_slots: answers the device works on at once, others queue; None: no queue (as in the paper).
        idle_unload_s: the device unloads its model after this time without work, s; None: it is always loaded.
        device_continues, server_continues: whether the endpoint can continue a half-written answer.
        device_fault, server_fault: what fails at the endpoint, and how often.
        server_name: name of the server's profile, for tables.
        labelled: the regime as labelled by an experiment; None: the regime that follows from the prices.
        pair: the device's model as a drafter for the server, which then has to verify; for arms with `drafts`. A
            drafter called "device" has the device's rates and, unless it says otherwise, its speeds; see `with_pair`.
    """

    name: str
    device: DeviceProfile
    device_rates: Rates
    server_rates: Rates
    ttft: Empirical
    tpot: Empirical | None = None
    server_tps: float = DEFAULT_SERVER_TPS
    lengths: Lengths | None = None
    max_tokens: int | None = None
    pace_tps: float | None = 4.8
    release: ReleaseUnit = "word"
    device_slots: int | None = None
    idle_unload_s: float | None = None
    device_continues: bool = True
    server_continues: bool = True
    device_fault: Fault | None = None
    server_fault: Fault | None = None
    server_name: str = "server"
    labelled: Regime | None = None
    pair: Pair | None = None

    @property
    def regime(self) -> Regime:
        """The regime: which side's work is limited by the budget."""
        return self.labelled or regime(self.device_rates, self.server_rates)

    @property
    def constrained(self) -> Literal["device", "server"]:
        """The side that the budget limits."""
        return "device" if self.regime == "device-constrained" else "server"

    def stations(self, *, drafts: bool = False) -> tuple[Station, Station]:
        """Return device and server, for a replay of any number of endpoints.

        Args:
            drafts: the server verifies what the device drafts.

        Raises:
            ConfigurationError: the model is to be unloaded, and the device's profile has no load time; or `drafts`
                without a pair.
        """
        device = Station.of_device(
            self.device,
            self.device_rates,
            name=DEVICE,
            slots=self.device_slots,
            idle_unload_s=self.idle_unload_s,
            continues=self.device_continues,
            fault=self.device_fault,
        )
        server = Station(
            name=SERVER,
            reach="any",
            rates=self.server_rates,
            ttft=self.ttft,
            decode_tps=self.server_tps,
            tpot=self.tpot,
            continues=self.server_continues,
            fault=self.server_fault,
            pair=self._drafting() if drafts else None,
        )
        return device, server

    def with_pair(self, pair: Pair) -> Scenario:
        """Return the same scenario with a server that verifies, whose time per token is that of the pair."""
        return replace(self, pair=pair, server_tps=1.0 / pair.alone_s, tpot=None)

    def _drafting(self) -> Pair:
        pair = self.pair
        if pair is None:
            raise ConfigurationError(
                f"the scenario {self.name!r} has no pair of drafter and server; give it one (--pair)"
            )
        if pair.drafter != DEVICE:
            return pair
        read_tps = self.device.prefill_tps if pair.read_tps is None else pair.read_tps
        draft_s = 1.0 / self.device.decode_tps if pair.draft_s is None else pair.draft_s
        return replace(pair, rates=self.device_rates, read_tps=read_tps, draft_s=draft_s)

    def candidates(self) -> tuple[Candidate, Candidate]:
        """Return device and server as dispatch and session see them, with the model loaded."""
        device, server = self.stations()
        return device.candidate(), server.candidate()

    def planning_lengths(self, prompt_tokens: Ints) -> Lengths:
        """Return the prompt lengths that policies plan on.

        Args:
            prompt_tokens: those of the trace, int64, shape (n,).
        """
        return self.lengths if self.lengths is not None else Lengths.from_samples(prompt_tokens)


def scenario_for(
    device: DeviceProfile,
    server: ServerProfile,
    *,
    exchange_rate: ExchangeRate,
    prices: PriceTables | None = None,
    price: Price | None = None,
    trace: Trace | None = None,
    lengths: Lengths | None = None,
    max_tokens: int | None = None,
    pace_tps: float | None = 4.8,
) -> Scenario:
    """Return a scenario made from profiles.

    Args:
        device: profile of the device.
        server: profile of the server.
        exchange_rate: λ.
        prices: tables with the server's price; None: the user's and the shipped ones.
        price: the server's price; takes precedence over `prices`.
        trace: if most of its requests have a TTFT of the server, policies plan on those instead of the profile's.
        lengths: prompt lengths that policies plan on; None: the trace's.
        max_tokens: see `Scenario`.
        pace_tps: see `Scenario`.

    Raises:
        ConfigurationError: the server has no price, or the device has no energy or FLOPs that the exchange rate prices.
    """
    if price is None:
        if server.price is None:
            raise ConfigurationError(
                f"server {server.name!r} names no price; give one in USD per million tokens, in and out"
            )
        price = (prices or load_prices()).price(server.price)
    ttft = server.ttft()
    if trace is not None:
        seen = trace.ttft_s[~np.isnan(trace.ttft_s)]
        if seen.size * 2 > len(trace):
            ttft = Empirical.from_samples(seen)
    return Scenario(
        name=f"{device.name} × {server.name}",
        device=device,
        device_rates=device_rates(device, exchange_rate),
        server_rates=server_rates(price),
        ttft=ttft,
        tpot=server.tpot(),
        server_tps=server.decode_tps or DEFAULT_SERVER_TPS,
        lengths=lengths,
        max_tokens=max_tokens,
        pace_tps=pace_tps,
        server_name=server.name,
    )


@dataclass(frozen=True, slots=True)
class Arm:
    """One policy with its numbers, as one line of a comparison.

    Attributes:
        policy: a name that presets know, "auto" included; "oracle" (knows every TTFT in advance; a bound that no live
            client can reach); or "recorded" (starts each side when a live client did, `Workload.starts`).
        budget: share b of all prompt tokens that the constrained endpoint may process.
        tail: share α kept for slow servers.
        migrate: answers may migrate to the cheaper side.
        order: when the source of a migration stops; see `disco.plan.Order`.
        drafts: the server's answers are drafted on the device (`Scenario.pair`).
    """

    policy: str
    budget: float = 0.5
    tail: float = 0.05
    migrate: bool = False
    order: Order = "auto"
    drafts: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.budget <= 1.0:
            raise ConfigurationError(f"budget must be a share between 0 and 1, not {self.budget}")
        if not 0.0 <= self.tail < 1.0:
            raise ConfigurationError(f"tail must be a share in [0, 1), not {self.tail}")

    def at(self, budget: float) -> Arm:
        """Return the same arm with another budget, a share of all prompt tokens."""
        return replace(self, budget=budget)

    @property
    def label(self) -> str:
        """Policy, and whether it migrates and drafts; the budget is shown separately."""
        more = [name for name, has in (("migration", self.migrate), ("drafts", self.drafts)) if has]
        return " + ".join([self.policy, *more])


@dataclass(frozen=True, slots=True)
class Workload:
    """A trace with all draws made, as input of both evaluators. All columns have shape (n,).

    Attributes:
        arrival_s: times of arrival, s.
        prompt_tokens: tokens.
        answer_tokens: length of the answer after the limit, at least 1.
        server_ttft_s: s.
        device_ttft_s: s, with the model loaded and the device idle.
        server_tpot_s, device_tpot_s: s per token after the first.
        max_tokens: limit of every answer; None: no limit.
        gaps: the server's times between tokens, if the trace has them.
        starts: recorded starts of each side, if the trace is a recording; the arm "recorded" uses them.
        device_cached_tokens: tokens of the prompt that the device need not read, from a recording; charged as cached
            (`Rates.cached_share`). None: none.
    """

    arrival_s: Floats
    prompt_tokens: Ints
    answer_tokens: Ints
    server_ttft_s: Floats
    device_ttft_s: Floats
    server_tpot_s: Floats
    device_tpot_s: Floats
    max_tokens: int | None = None
    gaps: Gaps | None = None
    starts: Delays | None = None
    device_cached_tokens: Ints | None = None

    def __len__(self) -> int:
        return int(self.arrival_s.size)

    def take(self, start: int, stop: int) -> Workload:
        """Return requests `start` to `stop`."""
        stop = min(stop, len(self))
        columns: dict[str, Any] = {name: getattr(self, name)[start:stop] for name in _WORKLOAD_COLUMNS}
        return replace(
            self,
            **columns,
            gaps=None if self.gaps is None else self.gaps.take(start, stop),
            starts=None if self.starts is None else Delays(*(s[start:stop] for s in self.starts)),
            device_cached_tokens=(
                None if self.device_cached_tokens is None else self.device_cached_tokens[start:stop]
            ),
        )


_WORKLOAD_COLUMNS = (
    "arrival_s",
    "prompt_tokens",
    "answer_tokens",
    "server_ttft_s",
    "device_ttft_s",
    "server_tpot_s",
    "device_tpot_s",
)


def draws(seed: int) -> Draws:
    """Return the random streams of a seed: for the server's TTFT, and for its time per token."""
    ttft_rng, tpot_rng = (np.random.default_rng([seed, stream]) for stream in (_TTFT_STREAM, _TPOT_STREAM))
    return ttft_rng, tpot_rng


def resolve(trace: Trace, scenario: Scenario, *, seed: int, rngs: Draws | None = None) -> Workload:
    """Draw the values that the trace does not have; values that it has are kept.

    The draws depend only on the seed and on the request's place in the trace, one stream per column.

    Args:
        trace: the whole trace, or the next piece.
        scenario: gives the distributions and rates.
        seed: seed of the draws.
        rngs: `draws(seed)`, if a trace comes in pieces: each piece continues where the one before it stopped, and
            together they get the same draws as the whole trace; None: start from the beginning.
    """
    ttft_rng, tpot_rng = draws(seed) if rngs is None else rngs
    prompt_tokens = trace.prompt_tokens
    answer_tokens = np.maximum(trace.output_tokens, 1)
    if scenario.max_tokens is not None:
        answer_tokens = np.minimum(answer_tokens, scenario.max_tokens)
    device, over_s = scenario.device, trace.features.get
    return Workload(
        arrival_s=trace.arrival_s,
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        server_ttft_s=first_token_times(
            scenario.ttft, prompt_tokens, ttft_rng, trace.ttft_s, over_s(TTFT_OVER)
        ),
        device_ttft_s=first_token_times(
            device.line, prompt_tokens, ttft_rng, trace.device_ttft_s, over_s(DEVICE_TTFT_OVER)
        ),
        server_tpot_s=token_times(scenario.tpot, scenario.server_tps, tpot_rng, trace.tpot_s),
        device_tpot_s=token_times(None, device.decode_tps, tpot_rng, trace.device_tpot_s),
        max_tokens=scenario.max_tokens,
        gaps=trace.gaps,
        starts=_recorded_starts(trace),
        device_cached_tokens=_recorded_cache(trace),
    )


def _recorded_cache(trace: Trace) -> Ints | None:
    cached = trace.features.get(DEVICE_CACHED)
    if cached is None:
        return None
    known: Ints = np.nan_to_num(cached, nan=0.0).astype(np.int64)
    return np.minimum(known, trace.prompt_tokens)


def _recorded_starts(trace: Trace) -> Delays | None:
    device_s, server_s = (trace.features.get(name) for name in STARTS)
    if device_s is None or server_s is None:
        return None
    return Delays(*(np.where(np.isnan(s), np.inf, s).astype(np.float64) for s in (device_s, server_s)))
