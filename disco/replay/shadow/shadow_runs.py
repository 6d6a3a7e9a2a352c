"""Both plans of every answer, played through the live session code in virtual time with the times of that answer.

The plans are those that were made live. Session, migration rule, playback and ledger are the live ones, too. What a
policy would have learnt from its own answers is not played: each plan is as it was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from disco.candidate import Candidate
from disco.endpoints.simulation.simulated_script import Scripted
from disco.errors import EndpointFailure, FailureKind
from disco.playback import Pace, Playback
from disco.profiles import LinearFit
from disco.rates import Rates
from disco.replay.shadow.shadow_recording import Seen, ShadowedAnswer, ShadowRecording, names_of
from disco.replay.shadow.shadow_times import EndpointTimes
from disco.replay.simulator.virtual_driver import Player
from disco.replay.stations.station import Station, key_of
from disco.replay.stations.station_scripts import Answers, AnswerScripts
from disco.replay.stations.station_workload import StationWorkload
from disco.request import Timeouts
from disco.session.attempt.attempt_state import AttemptOutcome, AttemptState
from disco.session.effects import StartAttempt
from disco.session.machine import Session, SessionConfig
from disco.session.records.billing import settle_accounts
from disco.session.records.shadow_record import BASES, LENGTH_LEVELS, Basis, PlanRecord
from disco.session.switching.answer_lengths import AnswerLengths

__all__ = ["Played", "ShadowRuns", "play_shadows"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_NO_CLOCKS = Timeouts(connect_s=None, first_content_s=None, gap_s=None, total_s=None)
_SAME_S = 1e-5  # records round to microseconds
_STOPPED = (AttemptOutcome.LOST, AttemptOutcome.PARKED)
_STREAM, _AGAIN = 31, 32  # of the draws; with the seed and the endpoint's name


@dataclass(frozen=True, slots=True)
class Played:
    """What one plan of one answer comes to, with one set of draws.

    Attributes:
        ttft_s: the first token as generated, s.
        cost_usd: at the real rates.
        winner: name of the endpoint that wrote it.
        writers: all that wrote, in order.
        starts: how many endpoints were asked from the beginning.
        started: names of the endpoints that were asked from the beginning.
        moved: the answer migrated.
        basis: where `ttft_s` comes from.
        is_least: it was later than that: the winner was stopped then, and no longer time of it is known.
    """

    ttft_s: float
    cost_usd: float
    winner: str
    writers: tuple[str, ...]
    starts: int
    started: frozenset[str]
    moved: bool
    basis: Basis
    is_least: bool = False


@dataclass(frozen=True, slots=True)
class ShadowRuns:
    """The runs of a recording's answers.

    Attributes:
        answers: in order.
        real, other: for each answer, its runs under each plan, one for each draw; the same draws for both where the
            plans have the same starts.
        times: by endpoint.
    """

    answers: tuple[ShadowedAnswer, ...]
    real: tuple[tuple[Played, ...], ...]
    other: tuple[tuple[Played, ...], ...]
    times: Mapping[str, EndpointTimes]


def play_shadows(
    recording: ShadowRecording,
    *,
    draws: int,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> ShadowRuns:
    """Play both plans of every answer.

    Each draw has distributions of its own, from as many answers drawn at random, so that the spread over draws says how
    well the times are known.

    Args:
        recording: the answers.
        draws: how often times that are not known are drawn, at least 1.
        seed: of the draws.
        progress: called with the number of draws done, and of all.
    """
    answers = recording.answers
    names = names_of(answers)
    last = {name: candidate for answer in answers for name, candidate in answer.candidates.items()}
    shown = {name: [seen for of, seen in recording.seen if of == name] for name in names}
    times = {name: EndpointTimes.of(last[name], shown[name]) for name in names}
    real: list[list[Played]] = [[] for _ in answers]
    other: list[list[Played]] = [[] for _ in answers]
    for draw in range(draws):
        drawn = {
            name: EndpointTimes.again(
                last[name], shown[name], np.random.default_rng([seed, _AGAIN, draw, key_of(name)])
            )
            for name in names
        }
        scripts = _scripts(answers, names, last, drawn, draw=draw, draws=draws, seed=seed)
        for row, answer in enumerate(answers):
            other[row].append(_play(answer, answer.plan, scripts, row, times, at_other_rates=True))
            if answer.real == answer.plan:
                real[row].append(other[row][-1])
            elif draw and answer.real.starts != answer.plan.starts:
                real[row].append(
                    real[row][0]
                )  # nothing is corrected by it: it only shows how right the runs are
            else:
                real[row].append(_play(answer, answer.real, scripts, row, times, at_other_rates=False))
        if progress is not None:
            progress(draw + 1, draws)
    return ShadowRuns(answers, tuple(map(tuple, real)), tuple(map(tuple, other)), times)


@lru_cache(maxsize=256)
def _lengths(quantiles: tuple[int, ...]) -> AnswerLengths:
    """Return the answer lengths for the migration rule, as the client knew them."""
    return AnswerLengths.from_quantiles(zip(LENGTH_LEVELS, quantiles, strict=True))


def _scripts(
    answers: Sequence[ShadowedAnswer],
    names: Sequence[str],
    last: Mapping[str, Candidate],
    times: Mapping[str, EndpointTimes],
    *,
    draw: int,
    draws: int,
    seed: int,
) -> Answers:
    """Return what each endpoint would do for each answer, with one set of draws.

    The draws of one answer and endpoint are spread evenly over the distribution (one from each of its `draws` parts).
    """
    n = len(answers)
    columns: dict[str, list[Floats | Ints]] = {"ttft_s": [], "tpot_s": [], "cached_tokens": []}
    for name in names:
        rng = np.random.default_rng([seed, _STREAM, key_of(name)])
        order = np.argsort(rng.random((n, draws)), axis=1)
        levels = (order[:, draw] + rng.random((n, draws))[:, draw]) / draws
        paces = rng.random((n, draws))[:, draw]
        here, known = [name in answer.candidates for answer in answers], times[name]
        columns["ttft_s"].append(
            np.array(
                [
                    known.ttft_s(a.seen.get(name, Seen()), a.billed_tokens, q) if has else 0.0
                    for a, q, has in zip(answers, levels.tolist(), here, strict=True)
                ]
            )
        )
        columns["tpot_s"].append(
            np.array(
                [
                    known.tpot_s(a.seen.get(name, Seen()), 1.0 / a.candidates[name].decode_tps, q)
                    if has
                    else 0.0
                    for a, q, has in zip(answers, paces.tolist(), here, strict=True)
                ]
            )
        )
        columns["cached_tokens"].append(
            np.array([min(a.seen.get(name, Seen()).cached_tokens, a.billed_tokens) for a in answers])
        )
    workload = StationWorkload(
        names=tuple(names),
        arrival_s=np.zeros(n),
        prompt_tokens=np.array([answer.billed_tokens for answer in answers], dtype=np.int64),
        answer_tokens=np.array([answer.answer_tokens for answer in answers], dtype=np.int64),
        ttft_s=np.stack(columns["ttft_s"], axis=1),
        tpot_s=np.stack(columns["tpot_s"], axis=1),
        faulty=np.zeros((n, len(names)), dtype=np.bool_),
        again=tuple((seed, draw, key_of(name)) for name in names),
        cached_tokens=np.stack(columns["cached_tokens"], axis=1),
    )
    return Answers(workload, [_station(last[name], times[name]) for name in names])


def _station(candidate: Candidate, times: EndpointTimes) -> Station:
    """Return an endpoint of the replay; only the scripts of later attempts use its times."""
    ttft: LinearFit | object = times.ttft if times.line is None else times.line
    return Station(candidate.name, candidate.reach, candidate.rates, ttft, candidate.decode_tps)  # type: ignore[arg-type]


class _Scripts:
    """The scripts of one answer, in which an endpoint that failed live fails again."""

    __slots__ = ("_answer", "_failed", "_scripts")

    def __init__(self, answer: ShadowedAnswer, scripts: AnswerScripts) -> None:
        self._answer, self._scripts = answer, scripts
        self._failed = {
            name: seen.failed_s for name, seen in answer.seen.items() if seen.failed_s is not None
        }

    def script(self, start: StartAttempt, *, kept: int | None) -> tuple[Iterator[Scripted], int, int]:
        """See `virtual_driver.Scripts`."""
        failed_s = self._failed.get(start.endpoint)
        if failed_s is None:
            return self._scripts.script(start, kept=kept)
        failure = EndpointFailure(FailureKind.SERVER, RuntimeError("failed as recorded"))
        return iter([(failed_s, failure)]), 0, 0

    def reads_s(self, endpoint: str, tokens: int) -> float:
        """See `virtual_driver.Scripts`."""
        return self._scripts.reads_s(endpoint, tokens)

    def logp(self, endpoint: str, begin: int, end: int) -> tuple[float, ...] | None:
        """See `virtual_driver.Scripts`."""
        return self._scripts.logp(endpoint, begin, end)

    def charged(self, endpoint: str, tokens: int, cached_tokens: int, worked_s: float) -> tuple[int, int]:
        """See `virtual_driver.Scripts`."""
        return self._scripts.charged(endpoint, tokens, cached_tokens, worked_s)


def _play(
    answer: ShadowedAnswer,
    recorded: PlanRecord,
    scripts: Answers,
    row: int,
    times: Mapping[str, EndpointTimes],
    *,
    at_other_rates: bool,
) -> Played:
    plan = replace(recorded.plan(), cascade=None)  # no scores were asked for, so no verdict can be given
    candidates = dict(answer.candidates)
    if not at_other_rates:
        candidates = {
            name: replace(c, rates=answer.rates.get(name, c.rates)) for name, c in candidates.items()
        }
    config = SessionConfig(
        prompt_tokens=answer.prompt_tokens,
        max_tokens=answer.max_tokens,
        streams=answer.streams,
        may_migrate=answer.may_migrate,
        may_continue=answer.may_continue,
        may_be_empty=True,  # as recorded
        pace_tps=recorded.pace_tps,
        timeouts=_NO_CLOCKS,
    )
    pace = None if recorded.pace_tps is None else Pace(tps=recorded.pace_tps)
    session = Session(plan, candidates, config, Playback(pace), _lengths(answer.lengths))
    Player(session, _Scripts(answer, scripts.of(row))).run(0.0)
    first_s = {name: scripts.columns[name].ttft_s[row] for name in candidates}
    return _played(answer, session, times, first_s)


def _played(
    answer: ShadowedAnswer,
    session: Session,
    times: Mapping[str, EndpointTimes],
    first_s: Mapping[str, float],
) -> Played:
    ttft_s = next(iter(session.transcript.generated), (float("nan"), 0))[0] - session.started_at
    first = session.transcript.first_writer
    winner = "" if first is None else first.candidate.name
    started = {a.candidate.name: a for a in session.attempts if a.begins}
    least_s = None if winner not in started else answer.seen.get(winner, Seen()).over_s
    bases = [times[winner].basis(answer, winner)] if winner else ["assumed"]
    for name, state in started.items():
        over_s = answer.seen.get(name, Seen()).over_s
        is_bounded = over_s is not None and state.started_at + over_s >= ttft_s
        if name != winner and not is_bounded and state.started_at < ttft_s:
            bases.append(times[name].basis(answer, name))
    is_least = least_s is not None and ttft_s - started[winner].started_at <= least_s + _SAME_S
    return Played(
        ttft_s=ttft_s,
        cost_usd=_cost_usd(answer, session, times, first_s),
        winner=winner,
        writers=tuple(dict.fromkeys(s.writer.candidate.name for s in session.transcript.segments)),
        starts=len(started),
        started=frozenset(started),
        moved=any(h.outcome == "switched" for h in session.migrations),
        is_least=is_least,
        basis=max(bases, key=BASES.index),  # type: ignore[arg-type] # all are bases
    )


def _cost_usd(
    answer: ShadowedAnswer,
    session: Session,
    times: Mapping[str, EndpointTimes],
    first_s: Mapping[str, float],
) -> float:
    """Return what the session costs at the real rates: the two presets may differ in what energy is worth."""
    total = 0.0
    for charge in settle_accounts(session).charges:
        rates = answer.rates.get(charge.endpoint, Rates())
        prompt_tokens, cached_tokens = charge.prompt_tokens, charge.cached_tokens
        if prompt_tokens and charge.attempt is not None:
            state = session.attempts[charge.attempt]
            if state.outcome in _STOPPED and state.ended_at is not None:
                read = _read_tokens(answer, state, prompt_tokens, times[charge.endpoint].line, first_s)
                prompt_tokens, cached_tokens = read, 0
        total += rates.cost(prompt_tokens, charge.completion_tokens, cached_tokens)
    return total


def _read_tokens(
    answer: ShadowedAnswer,
    state: AttemptState,
    prompt_tokens: int,
    line: LinearFit | None,
    first_s: Mapping[str, float],
) -> int:
    """Return what a loser is charged for: live, a device may be stopped while it reads, and a server's is estimated."""
    assert state.ended_at is not None
    name, worked_s = state.candidate.name, state.ended_at - state.started_at
    seen = answer.seen.get(name, Seen())
    if seen.over_s is not None and (line is None or worked_s <= seen.over_s + _SAME_S):
        return round(
            seen.charged_tokens * (1.0 if line is None else min(worked_s / max(seen.over_s, _SAME_S), 1.0))
        )
    if line is None:
        return prompt_tokens
    reads_s = first_s[name] - line.c_s
    share = min(max((worked_s - line.c_s) / reads_s, 0.0), 1.0) if reads_s > 0 else 1.0
    return max(round(share * prompt_tokens), seen.charged_tokens)
