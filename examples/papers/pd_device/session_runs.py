"""Sessions in virtual time on the same requests, with and without the assist, token by token.

The station simulator runs the session of the live client.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from disco.candidate import Candidate
from disco.dispatch import Features
from disco.dispatch.assist_solver import best_share
from disco.plan import FOLLOW_TOKENS, Assist, CoolDown, Migration, Plan, Start
from disco.profiles import LinearFit
from disco.rates import Rates
from disco.replay import Trace
from disco.replay.stations import (
    KnownTimes,
    PlanFunction,
    Planner,
    Station,
    StationWorkload,
    resolve_stations,
    simulate_stations,
)
from disco.session.records.route_record import RouteRecord
from papers.pd_device.assist_play import AFTER_SEAM, Played
from papers.pd_device.assumptions import SLOWEST_S, DeviceSpeed
from papers.pd_device.paper_forms import PaperCase
from papers.pd_device.request_mix import Requests
from papers.pd_device.ttft_runs import (
    ASSIST,
    DEVICE,
    LOW_QUANTILE,
    SERVER,
    Server,
    Situation,
    cases_of,
)

__all__ = [
    "MOVE",
    "MOVE_UNREAD",
    "RACE",
    "SESSION_ARMS",
    "SESSION_SEAM",
    "SessionRow",
    "play_session",
    "run_sessions",
]

RACE: Final = "race"
MOVE_UNREAD: Final = "race, then the device, not reading along"
MOVE: Final = "race, then the device"
SESSION_SEAM: Final = "ours, session"
"""Name of `play_session` among the arms of the seam."""

_SERVER, _DEVICE = "server", "device"

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SessionRow:
    """The figures of one arm on one server and one device.

    Attributes:
        server, device, arm: their names.
        requests: number of requests.
        ttft_s: median, 90th and 99th percentile, s.
        mean_s: mean TTFT, s.
        moved: share of the answers that moved to the device.
        late_answers: share of the answers with a token that came after its time at the slowest pace.
        late_tokens: mean number of such tokens of an answer.
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
    late_answers: float
    late_tokens: float
    longest_gap_s: float
    server_tokens: float
    money: float


def _same(plan: Plan, features: Features, able: Sequence[Candidate]) -> Plan:
    del features, able
    return plan


class _Assisted:
    """Divides each answer as the solver says; an answer without an L is the server's alone."""

    __slots__ = ("_shares",)

    def __init__(self, situation: Situation) -> None:
        # As in a live client: one batch that is being read, and one that is not yet full.
        cases = cases_of(situation, batch_tokens=2 * FOLLOW_TOKENS)
        self._shares = [best_share(case).tokens for case in cases]

    def plan_row(
        self,
        row: int,
        features: Features,  # noqa: ARG002 - the solver has had them
        candidates: Sequence[Candidate],  # noqa: ARG002
        *,
        resting: Mapping[str, CoolDown],  # noqa: ARG002
        probing: Collection[str],  # noqa: ARG002
    ) -> Plan:
        tokens = self._shares[row]
        if tokens is None:
            return Plan((Start(_SERVER),))
        return Plan((Start(_SERVER), Start(_DEVICE)), assist=Assist(_SERVER, _DEVICE, tokens))


_RACE: Final = Plan((Start(_SERVER), Start(_DEVICE)))
_MOVE: Final = replace(_RACE, migrations={_SERVER: Migration(_DEVICE)})

SESSION_ARMS: Final[Mapping[str, Plan | None]] = {
    SERVER: Plan((Start(_SERVER),)),
    DEVICE: Plan((Start(_DEVICE),)),
    RACE: _RACE,
    MOVE_UNREAD: replace(_MOVE, order="make_before_break"),
    MOVE: _MOVE,
    ASSIST: None,
}
"""The plan of every request; None: the solver makes it."""


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
    prompts, answers = requests.prompt_tokens, requests.answer_tokens
    ttft_s = server.draw(requests, seed)
    stations, workload = _played_on(server, device, requests, ttft_s, seed, follows=arm != MOVE_UNREAD)
    one = SESSION_ARMS[arm]
    plan: Planner | PlanFunction
    if one is None:
        plan = _Assisted(Situation(server, device, requests, ttft_s, None, LOW_QUANTILE))
    else:
        plan = partial(_same, one)
    out = simulate_stations(workload, stations, plan, pace_tps=1 / SLOWEST_S)
    gaps = np.split(out.reading.tbt_s, np.cumsum(out.answer_tokens - 1)[:-1])
    whole = server.rates.cost(int(prompts.sum()), int(answers.sum()))
    return SessionRow(
        server=server.name,
        device=device.name,
        arm=arm,
        requests=len(requests),
        ttft_s=tuple(np.quantile(out.ttft_s, [0.5, 0.9, 0.99]).tolist()),
        mean_s=float(out.ttft_s.mean()),
        moved=float((out.migrations > 0).mean()),
        late_answers=float((out.reading.late_tokens > 0).mean()),
        late_tokens=float(out.reading.late_tokens.mean()),
        longest_gap_s=float(np.quantile([one.max() for one in gaps if one.size], 0.99)),
        server_tokens=float(out.completion_tokens[:, 0].sum() / answers.sum()),
        money=float(out.cost_usd[:, 0].sum() / whole),
    )


def play_session(case: PaperCase, tokens: int) -> Played:
    """Play one request as a session with an assist of L = `tokens`: an arm of the seam beside `SEAM_ARMS`.

    The device's prompt is the kept part, as behind the lexical refiner; the answer is longer than L.
    """
    cloud, kept = case.cloud, round(case.kept * case.prompt_tokens)
    server = Server(_SERVER, None, cloud.tpot_s, Rates())
    one = Requests(np.zeros(1), np.array([kept]), np.array([tokens + AFTER_SEAM]))
    ttft_s = np.array([cloud.token_s(case.prompt_tokens)])
    stations, workload = _played_on(server, case.device, one, ttft_s, 0)
    plan = Plan((Start(_SERVER), Start(_DEVICE)), assist=Assist(_SERVER, _DEVICE, tokens))
    records: list[RouteRecord] = []
    simulate_stations(
        workload,
        stations,
        partial(_same, plan),
        pace_tps=1 / SLOWEST_S,
        on_record=lambda _, record: records.append(record),
    )
    (record,) = records
    shown_s = tuple(at for at, many in record.released for _ in range(many))
    seam = record.migrations[0].cut_tokens
    pace = (shown_s[seam - 1] - shown_s[0]) / (seam - shown_s[:seam].count(shown_s[seam - 1]))
    return Played(shown_s, seam, pace, pace)


def _played_on(
    server: Server,
    device: DeviceSpeed,
    requests: Requests,
    ttft_s: Floats,
    seed: int,
    *,
    follows: bool = True,
) -> tuple[tuple[Station, Station], StationWorkload]:
    """Return server and device as stations, and the workload with these times of the server."""
    line = LinearFit(k_s_per_token=device.read_s, c_s=device.overhead_s, r2=1.0, n=0)
    mean = LinearFit(k_s_per_token=0.0, c_s=float(ttft_s.mean()), r2=1.0, n=0)
    stations = (
        # Each request's time to first token is drawn before; the line is only what plans assume.
        Station(_SERVER, "any", server.rates, mean, 1 / server.tpot_s, parks=False, limits=True),
        Station(_DEVICE, "device", Rates(), line, 1 / device.tpot_s, follows=follows),
    )
    trace = Trace.of(
        arrival_s=requests.arrival_s,
        prompt_tokens=requests.prompt_tokens,
        output_tokens=requests.answer_tokens,
        name="requests",
    )
    known = {_SERVER: KnownTimes(ttft_s=ttft_s)}
    return stations, resolve_stations(trace, stations, seed=seed, known=known)
