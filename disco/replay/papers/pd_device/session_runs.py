"""Sessions in virtual time on the same requests: what the live client does without an assist, token by token.

The station simulator runs the session of the live client. An arm is a function that plans a request; further arms, such
as the assist, are added to `SESSION_ARMS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from disco.dispatch import Features
from disco.plan import Candidate, Migration, Plan, Start
from disco.profiles import LinearFit
from disco.rates import Rates
from disco.replay.papers.pd_device.assumptions import SLOWEST_S, DeviceSpeed
from disco.replay.papers.pd_device.request_mix import Requests
from disco.replay.papers.pd_device.ttft_runs import DEVICE, SERVER, Server
from disco.replay.stations.station import Station, key_of
from disco.replay.stations.station_planning import PlanFunction
from disco.replay.stations.station_simulator import simulate_stations
from disco.replay.stations.station_workload import StationWorkload

__all__ = ["MOVE", "RACE", "SESSION_ARMS", "SessionRow", "run_sessions"]

RACE: Final = "race"
MOVE: Final = "race, then the device"

_SERVER, _DEVICE = "server", "device"


@dataclass(frozen=True, slots=True)
class SessionRow:
    """The figures of one arm on one server and one device.

    Attributes:
        server, device, arm: their names.
        requests: number of requests.
        ttft_s: median, 90th and 99th percentile, s.
        mean_s: mean TTFT, s.
        moved: share of the answers that moved to the device.
        late_tokens: mean number of tokens of an answer that came after their time at the slowest pace.
        longest_gap_s: 99th percentile over answers of the longest time between two tokens; a word is shown at once, s.
        server_tokens: tokens that the server wrote, relative to writing all answers.
        money: the server's bill, relative to writing all answers.
    """

    server: str
    device: str
    arm: str
    requests: int
    ttft_s: tuple[float, float, float]
    mean_s: float
    moved: float
    late_tokens: float
    longest_gap_s: float
    server_tokens: float
    money: float


def _alone(name: str) -> PlanFunction:
    def plan(features: Features, able: Sequence[Candidate]) -> Plan:
        del features, able
        return Plan((Start(name),))

    return plan


def _race(features: Features, able: Sequence[Candidate]) -> Plan:
    del features, able
    return Plan((Start(_SERVER), Start(_DEVICE)))


def _move(features: Features, able: Sequence[Candidate]) -> Plan:
    del features, able
    return Plan((Start(_SERVER), Start(_DEVICE)), migrations={_SERVER: Migration(_DEVICE)})


SESSION_ARMS: Final[Mapping[str, PlanFunction]] = {
    SERVER: _alone(_SERVER),
    DEVICE: _alone(_DEVICE),
    RACE: _race,
    MOVE: _move,
}


def run_sessions(
    server: Server, device: DeviceSpeed, requests: Requests, arm: str, *, seed: int = 0
) -> SessionRow:
    """Run every request as a session, and return what the reader and the server got.

    Args:
        server: its times are drawn as in `run_situation`.
        device: reads each prompt on its own, as if it had no other request.
        requests: what is asked; each request is apart from the others.
        arm: a key of `SESSION_ARMS`.
        seed: of the server's times.
    """
    line = LinearFit(k_s_per_token=device.read_s, c_s=device.overhead_s, r2=1.0, n=0)
    prompts, answers = requests.prompt_tokens, requests.answer_tokens
    ttft_s = server.draw(requests, seed)
    mean = LinearFit(k_s_per_token=0.0, c_s=float(ttft_s.mean()), r2=1.0, n=0)
    stations = (
        # Each request's time to first token is drawn before; the line is only what plans assume.
        Station(_SERVER, "any", server.rates, mean, 1 / server.tpot_s, parks=False),
        Station(_DEVICE, "device", Rates(), line, 1 / device.tpot_s),
    )
    n = len(requests)
    workload = StationWorkload(
        names=(_SERVER, _DEVICE),
        arrival_s=requests.arrival_s,
        prompt_tokens=prompts,
        answer_tokens=answers,
        ttft_s=np.column_stack([ttft_s, device.read_s * prompts + device.overhead_s]),
        tpot_s=np.broadcast_to([server.tpot_s, device.tpot_s], (n, 2)).copy(),
        faulty=np.zeros((n, 2), dtype=np.bool_),
        again=tuple((seed, key_of(name)) for name in (_SERVER, _DEVICE)),
    )
    out = simulate_stations(workload, stations, SESSION_ARMS[arm], pace_tps=1 / SLOWEST_S)
    gaps = np.split(out.reading.tbt_s, np.cumsum(out.answer_tokens - 1)[:-1])
    whole = server.rates.cost(int(prompts.sum()), int(answers.sum()))
    return SessionRow(
        server=server.name,
        device=device.name,
        arm=arm,
        requests=n,
        ttft_s=tuple(np.quantile(out.ttft_s, [0.5, 0.9, 0.99]).tolist()),
        mean_s=float(out.ttft_s.mean()),
        moved=float((out.migrations > 0).mean()),
        late_tokens=float(out.reading.late_tokens.mean()),
        longest_gap_s=float(np.quantile([one.max() for one in gaps if one.size], 0.99)),
        server_tokens=float(out.completion_tokens[:, 0].sum() / answers.sum()),
        money=float(out.cost_usd[:, 0].sum() / whole),
    )
