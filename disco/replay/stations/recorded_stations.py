"""A recording as stations and requests: every endpoint with its prices and times, and what each answer shows of them.

For a replay of another preset on the same requests (`AsLive`). What an answer does not show is drawn from what other
answers show, as for `disco shadow`. Attempts that failed are not replayed as failures: their times are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from disco.candidate import Candidate
from disco.cost import Phase
from disco.dispatch.presets import Preset
from disco.errors import ConfigurationError
from disco.rates import Rates
from disco.record.left_out import SkipLog, Skipped
from disco.record.reading import records_of
from disco.replay.formats.route_records import on_mains
from disco.replay.shadow.shadow_recording import Seen, candidate_of, seen_in
from disco.replay.shadow.shadow_times import EndpointTimes
from disco.replay.stations.station import DEFAULT_TPS, Station, key_of
from disco.replay.stations.station_workload import KnownTimes, StationWorkload, resolve_stations
from disco.replay.workload.trace import Trace
from disco.session.records.route_record import AttemptRecord, JudgementRecord, RouteRecord

__all__ = ["RecordedAnswer", "RecordedScore", "Recording", "read_recording"]

_ABLE = ("parks", "pauses", "follows", "limits", "announces")  # what a model on this machine can do
_TTFT_STREAM, _TPOT_STREAM, _SCORE_STREAM = (
    41,
    42,
    43,
)  # numbers of the draws; with the seed and the station's key


@dataclass(frozen=True, slots=True)
class RecordedScore:
    """How sure one endpoint's model was of its answer.

    Attributes:
        score: in (0, 1], of the kind `kind`; see `disco.judging`.
        tokens: how many tokens of the answer were judged.
        early: the answer went up before it was complete.
    """

    score: float
    kind: str
    tokens: int
    early: bool

    def logp(self) -> list[float]:
        """Return log probabilities of the judged tokens that come to this score; records hold no others.

        Those of an answer that went up early do so with its last judged token, as it did.
        """
        tokens = max(self.tokens, 1)
        if self.kind in ("mean", "lowest_mean"):
            return [min(0.0, math.log(self.score / (1.0 - self.score)))] * tokens
        total = 1.0 - 1.0 / self.score if self.kind == "sum" else math.log(self.score)
        if self.early or self.kind != "sum":
            return [*[0.0] * (tokens - 1), min(0.0, total)]
        return [min(0.0, total / tokens)] * tokens


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """One answer: what was asked, what came of it, and what it shows of the endpoints.

    Attributes:
        created_s: when it was asked for, Unix time, s.
        prompt_tokens: as an endpoint counted them.
        answer_tokens, max_tokens: length of the answer, and its limit.
        task: of its judgements; "" where there were none.
        seen: by endpoint, its times.
        lengths: by endpoint, the length of its own answer, where it wrote a whole one.
        scores: by endpoint.
        ttft_s: of the first token as the reader got it, s.
        bill_usd, policy_cost: what it cost; probes in the background left out.
        winner: name of the endpoint whose content came first.
        moves: how often another endpoint went on with it.
        rose: a higher tier answered.
        late_tokens: tokens that came after the reader's deadline.
    """

    created_s: float
    prompt_tokens: int
    answer_tokens: int
    max_tokens: int | None
    task: str
    seen: Mapping[str, Seen]
    lengths: Mapping[str, int]
    scores: Mapping[str, RecordedScore]
    ttft_s: float
    bill_usd: float
    policy_cost: float
    winner: str
    moves: int
    rose: bool
    late_tokens: float


@dataclass(frozen=True, slots=True)
class Recording:
    """The answers of a recording in order of arrival, and what it shows of each endpoint.

    Attributes:
        answers: those that can be replayed.
        left_out: those that cannot, by reason, and lines that are no records.
        candidates: by endpoint, what the last record that has it says of it, with its rates on mains.
        models: by endpoint, the model that its scores were kept for.
        times: by endpoint that wrote at least one first token.
        exchange_rate: λ of the last record, USD per 10⁶ FLOPs; None: older records do not say.
        failed: attempts that failed.
    """

    answers: tuple[RecordedAnswer, ...]
    left_out: Skipped
    candidates: Mapping[str, Candidate]
    models: Mapping[str, str]
    times: Mapping[str, EndpointTimes]
    exchange_rate: float | None
    failed: int

    @property
    def never_seen(self) -> tuple[str, ...]:
        """The endpoints that wrote no first token, so that nothing is known of their times: they are left out."""
        return tuple(name for name in self.candidates if name not in self.times)

    def unscored(self, stations: Sequence[Station]) -> tuple[str, ...]:
        """Return the stations below the highest tier none of whose answers has a score."""
        highest = max(station.rank for station in stations)
        known = {name for answer in self.answers for name in answer.scores}
        return tuple(s.name for s in stations if s.rank < highest and s.name not in known)

    def stations(self, preset: Preset) -> tuple[Station, ...]:
        """Return the endpoints, the energy of the user's own machines at the preset's exchange rate."""
        now, then = preset.cost.exchange_rate, self.exchange_rate
        return tuple(
            self._station(name, 1.0 if not then else now / then)
            for name in self.candidates
            if name in self.times
        )

    def _station(self, name: str, factor: float) -> Station:
        candidate, times = self.candidates[name], self.times[name]
        rates = candidate.rates
        if not rates.is_money:
            rates = replace(rates, cost_in=rates.cost_in * factor, cost_out=rates.cost_out * factor)
        able = {ability: getattr(candidate, ability) for ability in ("continues", "standby", *_ABLE)}
        tps = DEFAULT_TPS if times.tpot is None else 1.0 / max(float(times.tpot.quantile(0.5)), 1e-6)
        return Station(
            name=name,
            reach=candidate.reach,
            rates=rates,
            ttft=times.ttft if times.line is None else times.line,
            decode_tps=tps,
            tpot=times.tpot,
            context_tokens=candidate.context_tokens,
            rank=candidate.rank,
            slots=1 if candidate.reach == "device" else None,
            silence_s=candidate.silence_s,
            slow_start=candidate.slow_start,
            model=self.models.get(name, ""),
            **able,
        )

    def workload(
        self, stations: Sequence[Station], *, seed: int, max_tokens: int | None = None
    ) -> StationWorkload:
        """Return the requests with all draws made.

        Args:
            stations: of `stations`.
            seed: of the draws.
            max_tokens: a limit of every answer besides its own; None: none.
        """
        answers = self.answers
        trace = Trace.of(
            arrival_s=[one.created_s - answers[0].created_s for one in answers],
            prompt_tokens=[one.prompt_tokens for one in answers],
            output_tokens=[one.answer_tokens for one in answers],
        )
        known = {station.name: self._known(station.name, seed) for station in stations}
        workload = resolve_stations(
            trace,
            stations,
            seed=seed,
            max_tokens=max_tokens,
            known=known,
            tasks=[one.task for one in answers],
        )
        return replace(workload, limits=tuple(_least(one.max_tokens, max_tokens) for one in answers))

    def _known(self, name: str, seed: int) -> KnownTimes:
        answers, times = self.answers, self.times[name]

        def levels(stream: int) -> list[float]:
            drawn: list[float] = (
                np.random.default_rng([seed, stream, key_of(name)]).random(len(answers)).tolist()
            )
            return drawn

        shown = [one.seen.get(name, Seen()) for one in answers]
        usual_s = 1.0 / DEFAULT_TPS
        return KnownTimes(
            ttft_s=[
                times.ttft_s(seen, one.prompt_tokens, level)
                for seen, one, level in zip(shown, answers, levels(_TTFT_STREAM), strict=True)
            ],
            tpot_s=[
                times.tpot_s(seen, usual_s, level)
                for seen, level in zip(shown, levels(_TPOT_STREAM), strict=True)
            ],
            answer_tokens=[one.lengths.get(name, one.answer_tokens) for one in answers],
            cached_tokens=[seen.cached_tokens for seen in shown],
            logp=self._logp(name, levels(_SCORE_STREAM)),
        )

    def _logp(self, name: str, levels: Sequence[float]) -> list[list[float]]:
        """Return log probabilities of each answer: as it was scored, else as another of this endpoint's answers was.

        Where no answer has a score, each is as sure as another: any share of them goes up that the preset wants.
        """
        found = [one.scores.get(name) for one in self.answers]
        scored = sorted(
            (one for one in found if one is not None and not one.early), key=lambda one: one.score
        )

        def drawn(level: float, tokens: int) -> RecordedScore:
            if not scored:
                return RecordedScore(max(level, 1e-9), "sum", tokens, early=False)
            like = scored[int(level * len(scored))]
            return replace(like, tokens=tokens)

        return [
            (score or drawn(level, one.lengths.get(name, one.answer_tokens))).logp()
            for score, one, level in zip(found, self.answers, levels, strict=True)
        ]


def read_recording(path: Path) -> Recording:
    """Read the route records of a client.

    Raises:
        ConfigurationError: the file cannot be read, is no recording, or no answer in it can be replayed.
    """
    answers: list[RecordedAnswer] = []
    log = SkipLog(path)
    records: list[RouteRecord] = []
    for number, line in records_of(path, log):
        record = on_mains(line)
        records.append(record)
        found = _answer(record)
        if isinstance(found, str):
            log.add(found, number)
        else:
            answers.append(found)
    if not answers:
        what = "has no answer that can be replayed" if records else "is no recording"
        why = "; ".join(log.skipped.named()) or "it is empty"
        raise ConfigurationError(
            f'{path} {what} ({why}). Record a client with on_route=disco.RouteLog("routes.jsonl").'
        )
    candidates = _candidates(records)
    shown: dict[str, list[Seen]] = {name: [] for name in candidates}
    for record in records:
        for name, seen in seen_in(record.attempts).items():  # also of those that went on with an answer
            shown.setdefault(name, []).append(seen)
    return Recording(
        answers=tuple(sorted(answers, key=lambda one: one.created_s)),
        left_out=log.skipped,
        candidates=candidates,
        models={
            one.endpoint: one.model.removeprefix(f"{one.endpoint}/")
            for record in records
            for one in record.judgements
            if one.model
        },
        times={
            name: EndpointTimes.of(candidate, shown[name])
            for name, candidate in candidates.items()
            if any(seen.ttft_s is not None for seen in shown[name])
        },
        exchange_rate=next((r.exchange_rate for r in reversed(records) if r.exchange_rate), None),
        failed=sum(one.failure is not None for record in records for one in record.attempts),
    )


def _answer(record: RouteRecord) -> RecordedAnswer | str:
    """Return the answer; a reason where it cannot be replayed."""
    if record.created_s is None:
        return "made in virtual time"
    if record.finish_reason is None:
        return "failed"
    if record.finish_reason == "cancelled":
        return "the reader left"
    ttft_s = record.pace.ttft_released_s
    if ttft_s is None or record.winner is None:
        return "without a token"
    whole = [one for one in record.attempts if not one.prefix_chars]
    charges = [c for c in record.ledger.charges if c.phase is not Phase.PROBE]
    scores = {
        one.endpoint: _score(one, one.score, record.attempts[one.attempt])
        for one in record.judgements
        if one.score is not None and 0.0 < one.score <= 1.0
    }
    return RecordedAnswer(
        created_s=record.created_s,
        prompt_tokens=max((a.prompt_tokens for a in whole if a.kept_tokens), default=0)
        or record.prompt_tokens,
        answer_tokens=max(1, record.answer_tokens),
        max_tokens=record.max_tokens,
        task=next((one.task for one in record.judgements), ""),
        seen=seen_in(whole),
        lengths={
            a.endpoint: a.tokens
            for a in whole
            if a.tokens and a.outcome in ("finished", "overruled")
            if not (a.endpoint in scores and scores[a.endpoint].early)
        },
        scores=scores,
        ttft_s=ttft_s,
        bill_usd=math.fsum(c.bill_usd for c in charges),
        policy_cost=math.fsum(c.policy_cost for c in charges),
        winner=record.winner,
        moves=sum(m.outcome == "switched" and m.reason != "confidence" for m in record.migrations),
        rose=any(one.outcome == "handed_up" for one in record.judgements),
        late_tokens=float(record.pace.late_tokens),
    )


def _score(judged: JudgementRecord, score: float, attempt: AttemptRecord) -> RecordedScore:
    early = judged.outcome == "handed_up" and (attempt.ended_s is None or judged.at_s < attempt.ended_s)
    return RecordedScore(score, judged.kind, judged.tokens, early=early)


def _candidates(records: Sequence[RouteRecord]) -> dict[str, Candidate]:
    """Return what the last record that has it says of each endpoint; shadow mode records more of them."""
    found: dict[str, Candidate] = {}
    for record in records:
        known: dict[str, Candidate] = {}
        if record.shadow is not None:
            known = {e.name: candidate_of(e) for e in record.shadow.endpoints}
        for e in record.endpoints:
            rates = Rates(
                e.cost_in, e.cost_out, e.cached_share, is_money=e.is_money, j_in=e.j_in, j_out=e.j_out
            )
            is_local = e.reach == "device"
            usual = Candidate(
                e.name,
                e.reach,  # type: ignore[arg-type] # one of them, as records are checked
                parks=is_local,
                pauses=is_local,
                follows=is_local,
                announces=is_local,
                limits=True,
            )
            one = known.get(e.name, usual)
            found[e.name] = replace(one, rates=rates, continues=e.continues, rank=e.rank)
    return found


def _least(one: int | None, other: int | None) -> int | None:
    limits: list[int] = [limit for limit in (one, other) if limit is not None]
    return min(limits, default=None)
