"""One endpoint of a replay: how fast it is, what it costs, what it can do, and how many answers it works on at once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from disco.endpoints.simulation.simulated_script import Fault
from disco.errors import ConfigurationError
from disco.plan import Candidate, Reach
from disco.profiles import DeviceProfile, Empirical, LinearFit, ServerProfile
from disco.rates import Rates
from disco.replay.simulator.device_queue import SharedDevice

__all__ = ["DEFAULT_TPS", "PLANNED_QUANTILE", "Station", "check_stations", "key_of"]

DEFAULT_TPS = 50.0  # where a server's profile does not know how fast it writes
PLANNED_QUANTILE = 0.9  # of a drawn TTFT: a hand-over that is late is abandoned, so plan it slow

Timing = LinearFit | Empirical


@dataclass(frozen=True, slots=True)
class Station:
    """An endpoint with its queue, as queueing theory has it.

    Attributes:
        name: what plans, charges and records call it.
        reach: how far a prompt travels to it.
        rates: unified cost per token (USD).
        ttft: its time to first token. A line in the tokens it has to read: its time can be told in advance, and it
            reads on from a prompt whose prefill it has kept. Or a distribution: every attempt draws from it, whatever
            the length.
        decode_tps: what a plan takes its decode rate to be, tokens/s.
        tpot: its mean time per output token over requests, s; None: `1/decode_tps` always.
        context_tokens: prompt and answer together; None: no limit.
        continues: it can continue a half-written answer.
        parks: it can finish a prefill and keep it without writing; None: where its TTFT is a line.
        announces: it says when it begins to work on an attempt, so that waiting for its turn is no silence; None: it
            does where it is on this device and attempts have to wait.
        standby: it serves only where no other endpoint of its place may.
        rank: its place in the user's order of endpoints, from the smallest model (0) to the best.
        slots: answers it works on at once, others queue in order of arrival; None: it never queues.
        load_s: time to load its model; 0 where it needs none.
        idle_unload_s: it unloads its model after that long without work, and begins without; None: it is always loaded.
        fault: what goes wrong there, and how often.
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
    announces: bool | None = None
    standby: bool = False
    rank: int = 0
    slots: int | None = None
    load_s: float = 0.0
    idle_unload_s: float | None = None
    fault: Fault | None = None

    def __post_init__(self) -> None:
        if not self.decode_tps > 0:
            raise ConfigurationError(
                f"station {self.name!r} must write more than 0 tokens/s, not {self.decode_tps}"
            )
        if self.slots is not None and self.slots < 1:
            raise ConfigurationError(f"station {self.name!r} must have at least 1 slot, not {self.slots}")
        if not self.load_s >= 0:
            raise ConfigurationError(f"station {self.name!r} cannot load its model in {self.load_s} s")

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
        """A model on a machine of the user's, from its profile; see the attributes.

        Raises:
            ConfigurationError: it is to be unloaded, and the profile does not say how long loading takes.
        """
        if idle_unload_s is not None and profile.load_s is None:
            raise ConfigurationError(
                f"idle_unload_s unloads a model, and device {profile.name!r} does not say how long loading "
                "it takes; add load_s to its profile, or leave idle_unload_s out"
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
        """A model behind an API, from its profile; see the attributes."""
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

    @property
    def queues(self) -> bool:
        """Whether what one request does there can matter to the next."""
        return self.slots is not None or self.idle_unload_s is not None

    def device(self) -> SharedDevice | None:
        """Its queue and its model, at the beginning of a replay; None where requests know nothing of each other."""
        if not self.queues:
            return None
        return SharedDevice(slots=self.slots, load_s=self.load_s, idle_unload_s=self.idle_unload_s)

    def candidate(self, *, cold: bool = False) -> Candidate:
        """It as dispatch and session see it; `cold`: its model has to be loaded."""
        line = self.ttft if isinstance(self.ttft, LinearFit) else None
        if line is None:
            assert isinstance(self.ttft, Empirical)
            prefill_tps, overhead_s = float("inf"), float(self.ttft.quantile(PLANNED_QUANTILE))
        else:
            prefill_tps = 1.0 / line.k_s_per_token if line.k_s_per_token > 0 else float("inf")
            overhead_s = line.c_s
        return Candidate(
            name=self.name,
            reach=self.reach,
            rates=self.rates,
            prefill_tps=prefill_tps,
            overhead_s=overhead_s,
            load_s=self.load_s if cold else 0.0,
            decode_tps=self.decode_tps,
            continues=self.continues,
            parks=line is not None if self.parks is None else self.parks,
            announces=(self.queues and self.reach == "device") if self.announces is None else self.announces,
            context_tokens=self.context_tokens,
            standby=self.standby,
            rank=self.rank,
        )


def check_stations(stations: Sequence[Station]) -> tuple[Station, ...]:
    """The stations, if they can be told apart.

    Raises:
        ConfigurationError: there is none, or two have one name.
    """
    names = [station.name for station in stations]
    if not names:
        raise ConfigurationError("a replay needs at least one station")
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"two stations are called {name!r}; give each a name of its own")
    return tuple(stations)


def key_of(name: str) -> int:
    """A number that a station's streams of randomness are told apart by: it depends on nothing but its name."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
