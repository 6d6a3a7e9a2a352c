"""The same answers twice: by `LiveSession` on simulated endpoints in virtual time, and by the replay of stations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import trio.testing

from disco.client.live_driver import LiveSession
from disco.dispatch import Preset
from disco.endpoints.contract import Endpoint
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile, log_probabilities, prose
from disco.judging import HistoryStore
from disco.profiles import Empirical, LinearFit
from disco.rates import Rates
from disco.replay.stations import AsLive, KnownTimes, Station, resolve_stations, simulate_stations
from disco.replay.stations.as_live import LiveAnswers
from disco.replay.stations.station_simulator import answer_lengths
from disco.replay.stations.station_workload import StationWorkload
from disco.replay.workload.trace import Trace
from disco.request import Request, Timeouts
from disco.session.machine import Session
from disco.session.records.billing import settle_accounts
from disco.session.records.record_writer import make_record
from disco.session.records.route_record import RouteRecord

# A token of the simulated text that begins with a line break may be cut in two, and then counts as two.
LONGEST = next(number for number, packet in enumerate(prose(400)) if "\n" in packet[0].text)
# What an endpoint reports of the text at a seam, and the date: a replay has neither.
UNTOLD = frozenset(("seam", "sent_chars", "written_chars", "created_s"))
FRAME_S = 0.017  # text leaves by frames of a screen: a rounding error may put it into the next one
BEGAN_S = 1.7e9  # Unix time of the first second
NO_CLOCKS = Timeouts(connect_s=None, first_content_s=None, gap_s=None, total_s=None)


Made = Callable[[StationWorkload, int], Endpoint]
"""Makes the endpoint of a request, by its number."""


@dataclass(frozen=True)
class Side:
    """One endpoint: what a station and a simulated endpoint have in common."""

    name: str
    rank: int = 0
    prefill_tps: float = math.inf  # a device's; below infinity it is one
    ttft_s: float = 0.1
    decode_tps: float = 40.0
    usd_per_token: float = 0.0
    mean_logp: float | None = None

    @property
    def is_device(self) -> bool:
        return self.prefill_tps < math.inf

    @property
    def station(self) -> Station:
        line = LinearFit(1.0 / self.prefill_tps, self.ttft_s, r2=1.0, n=2)
        return Station(
            self.name,
            "device" if self.is_device else "any",
            Rates(self.usd_per_token / 4, self.usd_per_token),
            line if self.is_device else Empirical.from_samples([self.ttft_s]),
            self.decode_tps,
            follows=self.is_device,
            limits=True,
            announces=self.is_device,
            rank=self.rank,
        )

    def endpoint(self, tokens: int) -> SimulatedEndpoint:
        profile = SimulatedProfile(
            ttft_s=0.0 if self.is_device else self.ttft_s,
            overhead_s=self.ttft_s if self.is_device else 0.0,
            prefill_tps=self.prefill_tps,
            decode_tps=self.decode_tps,
            answer="".join(packet[0].text for packet in prose(tokens)[:tokens]),
            mean_logp=self.mean_logp,
            seed=self.rank,
        )
        return SimulatedEndpoint(self.name, profile, place="device" if self.is_device else "server")


@dataclass(frozen=True)
class Asked:
    """One request: when it comes, its prompt's length (at least 4), and how long the answer of each endpoint is."""

    arrival_s: float
    prompt_tokens: int
    answer_tokens: Mapping[str, int]


def request_of(number: int, asked: Asked, max_tokens: int | None) -> Request:
    words = [f"q{number}"] + ["word"] * (asked.prompt_tokens - 4)
    params = {} if max_tokens is None else {"max_tokens": max_tokens}
    return Request([{"role": "user", "content": " ".join(words)}], "m", params)


def workload_of(
    sides: Sequence[Side],
    asked: Sequence[Asked],
    max_tokens: int | None,
    stations: Sequence[Station] | None = None,
) -> StationWorkload:
    known = {}
    for side in sides:
        logp = None
        if side.mean_logp is not None:
            logp = [
                log_probabilities(side.endpoint(1).profile, request_of(i, one, max_tokens), 0, 400)
                for i, one in enumerate(asked)
            ]
        tokens = [one.answer_tokens[side.name] for one in asked]
        known[side.name] = KnownTimes(answer_tokens=tokens, logp=logp)
    trace = Trace.of(
        arrival_s=[one.arrival_s for one in asked],
        prompt_tokens=[one.prompt_tokens for one in asked],
        output_tokens=[1] * len(asked),
    )
    stations = stations or [side.station for side in sides]
    return resolve_stations(trace, stations, seed=0, max_tokens=max_tokens, known=known)


def record_of(session: Session, preset: Preset, created_s: float | None = None) -> RouteRecord:
    rate, ledger = preset.cost.exchange_rate, settle_accounts(session)
    return make_record(session, ledger, preset=preset.name, exchange_rate=rate, created_s=created_s)


async def _live(
    sides: Sequence[Side],
    asked: Sequence[Asked],
    workload: StationWorkload,
    as_live: AsLive,
    stations: Sequence[Station],
    endpoints: Mapping[str, Made],
) -> list[RouteRecord | None]:
    answers = LiveAnswers.of(as_live, workload, stations, answer_lengths(workload))
    candidates = tuple(station.candidate() for station in stations)
    records: list[RouteRecord | None] = [None] * len(asked)
    begin = anyio.current_time()

    async def answer(row: int, one: Asked) -> None:
        await anyio.sleep_until(begin + one.arrival_s)
        session = answers.session(row, candidates, None, NO_CLOCKS, anyio.current_time())
        if session is None:
            return
        made: dict[str, Endpoint] = {
            side.name: endpoints[side.name](workload, row)
            if side.name in endpoints
            else side.endpoint(one.answer_tokens[side.name])
            for side in sides
        }

        def done(closed: Session) -> None:
            answers.answered(closed, settle_accounts(closed), anyio.current_time())
            records[row] = record_of(closed, as_live.preset, BEGAN_S + one.arrival_s)

        await LiveSession(session, made, request_of(row, one, workload.max_tokens), on_done=done).run()

    async with anyio.create_task_group() as group:
        for row, one in enumerate(asked):
            group.start_soon(answer, row, one)
    return records


def live(
    preset: Preset,
    sides: Sequence[Side],
    asked: Sequence[Asked],
    *,
    max_tokens: int | None = None,
    histories: HistoryStore | None = None,
    stations: Sequence[Station] | None = None,
    endpoints: Mapping[str, Made] | None = None,
) -> list[RouteRecord | None]:
    """The records of these answers as lived; None where nothing may serve the request."""
    stations = stations or [side.station for side in sides]
    workload = workload_of(sides, asked, max_tokens, stations)
    clock = trio.testing.MockClock(autojump_threshold=0)
    run = partial(_live, sides, asked, workload, AsLive(preset, histories), stations, endpoints or {})
    return anyio.run(run, backend="trio", backend_options={"clock": clock})


def both(
    preset: Preset,
    sides: Sequence[Side],
    asked: Sequence[Asked],
    *,
    max_tokens: int | None = None,
    histories: HistoryStore | None = None,
    stations: Sequence[Station] | None = None,
    endpoints: Mapping[str, Made] | None = None,
) -> tuple[list[dict[str, Any] | None], list[dict[str, Any] | None]]:
    """The records of these answers as lived, and as replayed."""
    made = live(
        preset,
        sides,
        asked,
        max_tokens=max_tokens,
        histories=histories,
        stations=stations,
        endpoints=endpoints,
    )
    lived = [None if one is None else one.to_dict(timelines=True) for one in made]
    stations = stations or [side.station for side in sides]
    workload = workload_of(sides, asked, max_tokens, stations)
    as_live = AsLive(preset, histories)
    replayed: list[dict[str, Any] | None] = [None] * len(asked)

    def note(row: int, record: RouteRecord) -> None:
        replayed[row] = record.to_dict(timelines=True)

    simulate_stations(
        workload,
        stations,
        as_live,
        timeouts=NO_CLOCKS,
        on_record=note,
    )
    return lived, replayed


def differences(one: Any, other: Any, at: str = "") -> list[str]:
    """Where two records differ by more than the rounding of a time."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = dict.fromkeys(key for key in (*one, *other) if key not in UNTOLD)
        return [d for key in keys for d in differences(one.get(key), other.get(key), f"{at}.{key}")]
    if isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{at}[{i}]")]
    if isinstance(one, float) and isinstance(other, float):
        within = FRAME_S if ".released[" in at else 2.1e-6
        return [] if math.isclose(one, other, rel_tol=1e-9, abs_tol=within) else [f"{at}: {one} and {other}"]
    return [] if one == other else [f"{at}: {one} and {other}"]
