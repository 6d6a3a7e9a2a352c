"""One endpoint of a replay: its speed, price and abilities, and how many answers it works on at once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from disco.candidate import TTFT_QUANTILES, Candidate, Payer, Reach, place_of
from disco.endpoints.simulation.simulated_script import Fault
from disco.errors import ConfigurationError
from disco.profiles import DeviceProfile, Empirical, LinearFit, ServerProfile, fit_line
from disco.rates import Rates
from disco.replay.pairs.simulated_pair import Pair
from disco.replay.pairs.simulated_split import Split
from disco.replay.simulator.device_queue import SharedDevice

__all__ = ["DEFAULT_TPS", "PLANNED_QUANTILE", "Station", "Timing", "check_stations", "key_of"]

DEFAULT_TPS = 50.0  # tokens/s, if a server's profile has no decode rate
PLANNED_QUANTILE = 0.9  # of a drawn TTFT: plan it slow, because a migration that is late is abandoned

_LINE_POINTS = 33  # prompt lengths through which plans see the TTFT of a split model as a line

Timing = LinearFit | Empirical


@dataclass(frozen=True, slots=True)
class Station:
    """An endpoint with its queue, as in queueing theory.

    Attributes:
        name: the endpoint's name in plans, charges and records.
        reach: how far a prompt travels to it.
        rates: what a token costs.
        ttft: time to first token. A line in the tokens to read: the time can be computed in advance, and tokens whose
            prefill the endpoint has kept are not read again. Or a distribution: every attempt draws from it,
            independent of the length.
        decode_tps: the decode rate that plans assume, tokens/s.
        tpot: distribution over requests of the mean time per output token, s; None: always `1/decode_tps`.
        context_tokens: limit of prompt and answer together; None: no limit.
        continues: whether the endpoint can continue a half-written answer.
        parks: whether the endpoint can finish a prefill and keep it without writing; None: it can if `ttft` is a line.
        pauses: whether the endpoint can stop writing in mid-answer and go on later; None: it can if `ttft` is a line.
        follows: whether a parked attempt can be given more text to read (`Candidate.follows`).
        limits: whether the endpoint keeps to a limit on the tokens of an answer (`Candidate.limits`).
        announces: whether the endpoint reports when it begins to work on an attempt, so that waiting for a slot does
            not count as silence; None: it does if it is on this device and attempts have to wait.
        standby: the endpoint serves only where no other endpoint of its place may.
        rank: place in the user's order of endpoints, from the smallest model (0) to the best.
        silence_s, slow_start: what is known of the endpoint's silences (`Candidate`); None: nothing, so that no other
            endpoint starts because this one is silent.
        slots: answers that the endpoint works on at once, others queue in order of arrival; None: no queue.
        overlap_s: it reads one prompt at a time, as a server of one's own may: an attempt reads when those before it
            have written their first token, or ended. So many seconds of its TTFT (the network's) pass before that.
            None: prompts do not wait for each other.
        load_s: time to load the model; 0 if it needs none.
        idle_unload_s: the model is unloaded after this time without work, s, and is not loaded at the beginning; None:
            the model is always loaded.
        fault: what fails at the endpoint, and how often.
        model: the model that answers, whose earlier scores a judge compares with; needed where they are those of a
            client.
        pair: a drafter for it, where the station verifies drafts; None: it writes alone. With a drafter it can neither
            park nor pause, and the rate that plans assume is the predicted one.
        split: the parts of a model cut in two, of which `pair` is made; see `of_split`.
    """

    name: str
    reach: Reach
    rates: Rates
    ttft: Timing
    decode_tps: float = DEFAULT_TPS
    tpot: Empirical | None = None
    context_tokens: int | None = None
    continues: bool = True
    parks: bool | None = None
    pauses: bool | None = None
    follows: bool = False
    limits: bool = False
    announces: bool | None = None
    standby: bool = False
    rank: int = 0
    silence_s: float | None = None
    slow_start: float | None = None
    slots: int | None = None
    overlap_s: float | None = None
    load_s: float = 0.0
    idle_unload_s: float | None = None
    fault: Fault | None = None
    model: str = ""
    pair: Pair | None = None
    split: Split | None = None

    def __post_init__(self) -> None:
        if not self.decode_tps > 0:
            raise ConfigurationError(
                f"station {self.name!r} must write more than 0 tokens/s, not {self.decode_tps}"
            )
        if self.slots is not None and self.slots < 1:
            raise ConfigurationError(f"station {self.name!r} must have at least 1 slot, not {self.slots}")
        alone = self.slots is None and self.idle_unload_s is None
        if self.overlap_s is not None and not (self.overlap_s >= 0 and alone):
            raise ConfigurationError(
                f"station {self.name!r} has overlap_s = {self.overlap_s}: it is 0 s or more, and without slots and "
                "idle_unload_s"
            )
        if not self.load_s >= 0:
            raise ConfigurationError(
                f"station {self.name!r} has load_s = {self.load_s}; the time to load its model must be 0 s or more"
            )
        if self.pair is not None and (self.parks or self.pauses or self.follows):
            raise ConfigurationError(
                f"station {self.name!r} verifies drafts, so it cannot park, pause or follow"
            )
        if self.pair is not None and self.pair.draft_s is None:
            raise ConfigurationError(
                f"the pair of station {self.name!r} does not say how long drafting takes: draft_s"
            )

    @classmethod
    def of_device(
        cls,
        profile: DeviceProfile,
        rates: Rates,
        *,
        name: str = "device",
        reach: Reach = "device",
        idle_unload_s: float | None = None,
        slots: int | None = None,
        continues: bool = True,
        rank: int = 0,
        fault: Fault | None = None,
    ) -> Station:
        """Return a model on one of the user's machines, from its `profile`; see `stations.Station` for the others.

        Raises:
            ConfigurationError: the model is to be unloaded, and the profile does not say how long loading takes.
        """
        if idle_unload_s is not None and profile.load_s is None:
            raise ConfigurationError(
                f"idle_unload_s unloads a model, but the profile of device {profile.name!r} does not say how long "
                "loading takes; add load_s to the profile, or leave idle_unload_s out"
            )
        return cls(
            name=name,
            reach=reach,
            rates=rates,
            ttft=profile.line,
            decode_tps=profile.decode_tps,
            context_tokens=profile.context_tokens,
            continues=continues,
            rank=rank,
            slots=slots,
            load_s=profile.load_s or 0.0,
            idle_unload_s=idle_unload_s,
            fault=fault,
        )

    @classmethod
    def of_server(
        cls,
        profile: ServerProfile,
        rates: Rates,
        *,
        name: str = "server",
        reach: Reach = "any",
        continues: bool = True,
        rank: int = 0,
        fault: Fault | None = None,
    ) -> Station:
        """Return a model behind an API, from its `profile`; see `stations.Station` for the others."""
        return cls(
            name=name,
            reach=reach,
            rates=rates,
            ttft=profile.ttft(),
            decode_tps=profile.decode_tps or DEFAULT_TPS,
            tpot=profile.tpot(),
            continues=continues,
            rank=rank,
            fault=fault,
        )

    @classmethod
    def of_split(
        cls,
        split: Split,
        rates: Rates,
        *,
        name: str = "split",
        reach: Reach = "own",
        slots: int | None = 2,
        context_tokens: int = 4096,
        rank: int = 0,
        fault: Fault | None = None,
    ) -> Station:
        """Return a model cut in two, with what its drafts cost, from `split`; see `stations.Station` for the others.

        Its place is "server", as live: states leave this machine, from which a prompt can be read back.
        """
        lengths = np.linspace(1, context_tokens, _LINE_POINTS).astype(int)
        line = fit_line(lengths, [split.ttft_s(int(tokens)) for tokens in lengths], non_negative=True)
        return cls(
            name=name,
            reach=reach,
            rates=rates,
            ttft=line,
            decode_tps=1.0 / split.round_s(1),
            context_tokens=context_tokens,
            parks=False,
            pauses=False,
            limits=True,
            announces=False,
            rank=rank,
            slots=slots,
            fault=fault,
            pair=split.pair(name),
            split=split,
        )

    @property
    def queues(self) -> bool:
        """Whether one request at the endpoint can affect the next."""
        return self.slots is not None or self.idle_unload_s is not None or self.overlap_s is not None

    def device(self) -> SharedDevice | None:
        """Return the endpoint's queue at the beginning of a replay; None if requests do not affect each other."""
        if not self.queues:
            return None
        return SharedDevice(
            slots=self.slots if self.overlap_s is None else 1,
            load_s=self.load_s,
            idle_unload_s=self.idle_unload_s,
            overlap_s=self.overlap_s,
        )

    def candidate(self, *, cold: bool = False) -> Candidate:
        """Return the endpoint as dispatch and session see it; `cold`: its model has to be loaded."""
        line = self.ttft if isinstance(self.ttft, LinearFit) else None
        ttft_quantiles: tuple[float, ...] = ()
        if line is None:
            assert isinstance(self.ttft, Empirical)
            prefill_tps, overhead_s = float("inf"), self.ttft.quantile(PLANNED_QUANTILE)
            ttft_quantiles = self.ttft.spaced(TTFT_QUANTILES)
        else:
            prefill_tps = 1.0 / line.k_s_per_token if line.k_s_per_token > 0 else float("inf")
            overhead_s = line.c_s
        decode_tps, holds = self.decode_tps, line is not None
        parts: tuple[Payer, ...] = ()
        if self.pair is not None:
            decode_tps = 1.0 / self.pair.predicted_token_s(1.0 / decode_tps)
            parts = self.pair.payers(Payer(self.name, place_of(self.reach), self.rates))
            holds = False
        return Candidate(
            name=self.name,
            reach=self.reach,
            rates=self.rates,
            prefill_tps=prefill_tps,
            overhead_s=overhead_s,
            ttft_quantiles=ttft_quantiles,
            silence_s=self.silence_s,
            slow_start=self.slow_start,
            load_s=self.load_s if cold else 0.0,
            decode_tps=decode_tps,
            continues=self.continues,
            parks=holds if self.parks is None else self.parks,
            pauses=holds if self.pauses is None else self.pauses,
            follows=self.follows,
            limits=self.limits,
            announces=(self.queues and self.reach == "device") if self.announces is None else self.announces,
            context_tokens=self.context_tokens,
            standby=self.standby,
            rank=self.rank,
            parts=parts,
        )


def check_stations(stations: Sequence[Station]) -> tuple[Station, ...]:
    """Return the stations as a tuple, if their names are valid.

    Raises:
        ConfigurationError: there is no station, or two have the same name.
    """
    names = [station.name for station in stations]
    if not names:
        raise ConfigurationError("a replay needs at least one station")
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"two stations are called {name!r}; give each a different name")
    return tuple(stations)


def key_of(name: str) -> int:
    """Return a number that seeds a station's random streams; it depends only on the station's name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
