"""A recording as stations and requests: every endpoint with its prices and times, and what each answer shows of them.

For a replay of another preset on the same requests (`AsLive`). What an answer does not show is drawn from what other
answers show, as for `disco shadow`. Attempts that failed are not replayed as failures: their times are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from disco.amounts import plural
from disco.candidate import Candidate
from disco.dispatch.presets import Preset
from disco.errors import ConfigurationError
from disco.rates import Rates
from disco.record.left_out import SkipLog, Skipped
from disco.record.reading import records_of
from disco.replay.formats.route_records import on_mains
from disco.replay.shadow.shadow_recording import Seen, candidate_of, seen_in
from disco.replay.shadow.shadow_times import ENOUGH_STARTS, EndpointTimes, came_behind
from disco.replay.stations.station import DEFAULT_TPS, Station, key_of
from disco.replay.stations.station_outcome import Came, came_of
from disco.replay.stations.station_workload import KnownTimes, StationWorkload, resolve_stations
from disco.replay.workload.trace import Trace
from disco.session.records.route_record import AttemptRecord, JudgementRecord, RouteRecord

__all__ = ["RecordedAnswer", "RecordedScore", "Recording", "read_halves", "read_recording"]

_ABLE = ("parks", "pauses", "follows", "limits", "announces")  # what a model on this machine can do
# Numbers of the draws; with the seed and the station's key.
_TTFT_STREAM, _TPOT_STREAM, _SCORE_STREAM, _CACHE_STREAM = 41, 42, 43, 44
_GIVEN = {_TTFT_STREAM: 0, _TPOT_STREAM: 1}  # the place of each in `RecordedAnswer.levels`

STRETCH = 50
"""Answers in a row that are drawn together from a recording that others are fitted on."""


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
        preset: name of the one that it was planned with.
        created_s: when it was asked for, Unix time, s.
        prompt_tokens: as dispatch estimated them.
        counted: by endpoint that wrote, the same as it counted them.
        answer_tokens, max_tokens: length of the answer, and its limit.
        task: of its judgements; "" where there were none.
        seen: by endpoint, its times.
        lengths: by endpoint, the length of its own answer, where it wrote a whole one.
        scores: by endpoint.
        came: what it came to.
        levels: by endpoint, the quantiles in [0, 1) of its TTFT and of its time per token that count where it was not
            measured; of others they are drawn.
    """

    preset: str
    created_s: float
    prompt_tokens: int
    counted: Mapping[str, int]
    answer_tokens: int
    max_tokens: int | None
    task: str
    seen: Mapping[str, Seen]
    lengths: Mapping[str, int]
    scores: Mapping[str, RecordedScore]
    came: Came
    levels: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recording:
    """The answers of a recording in order of arrival, and what it shows of each endpoint.

    Attributes:
        answers: those that can be replayed.
        left_out: those that cannot, by reason, and lines that are no records.
        candidates: by endpoint, what the last record that has it says of it, with its rates on mains.
        models: by endpoint, the model that its scores were kept for.
        shown: by endpoint, what each attempt shows of it, those that went on with an answer included.
        times: by endpoint that wrote at least one first token: what `shown` comes to.
        scores: by endpoint, those of whole answers.
        counts, told: by endpoint, the tokens of a prompt that it counts, and that it is charged for where it is stopped
            before it says how many, each over what dispatch estimated.
        exchange_rate: λ of the last record, USD per 10⁶ FLOPs; None: older records do not say.
        failed, on_silence: attempts that failed, and that were started because another one was silent.
    """

    answers: tuple[RecordedAnswer, ...]
    left_out: Skipped
    candidates: Mapping[str, Candidate]
    models: Mapping[str, str]
    shown: Mapping[str, Sequence[Seen]]
    times: Mapping[str, EndpointTimes]
    scores: Mapping[str, Sequence[RecordedScore]]
    counts: Mapping[str, float]
    told: Mapping[str, float]
    exchange_rate: float | None
    failed: int
    on_silence: int

    @property
    def never_seen(self) -> tuple[str, ...]:
        """The endpoints that wrote no first token, so that nothing is known of their times: they are left out."""
        return tuple(name for name in self.candidates if name not in self.times)

    def unscored(self, stations: Sequence[Station]) -> tuple[str, ...]:
        """Return the stations below the highest tier none of whose answers has a score."""
        highest = max(station.rank for station in stations)
        return tuple(s.name for s in stations if s.rank < highest and not self.scores.get(s.name))

    def notes(self) -> list[str]:
        """Return what a reader must know of the endpoints' times, in sentences."""
        found = []
        if few := [name for name, times in self.times.items() if not times.learnt]:
            found.append(
                f"Few first tokens are known of {', '.join(few)}: times not measured are drawn from these."
            )
        in_turn = [name for name, times in self.times.items() if times.overlap_s is not None]
        assumed = [name for name in in_turn if len(came_behind(self.shown[name])) < ENOUGH_STARTS]
        if seen := [name for name in in_turn if name not in assumed]:
            found.append(
                f"Prompts wait for each other at {', '.join(seen)}, as recorded: one is read at a time."
            )
        if assumed:
            found.append(
                f"Prompts wait for each other at {', '.join(assumed)}: few met there to show it, but first tokens come "
                "later the more is read, as from one machine."
            )
        return found

    def fitted_on(self, other: Recording, rng: np.random.Generator) -> Recording:
        """Return these requests with all that is known of the endpoints from another recording, and nothing measured.

        Prompts, lengths of answers, times of arrival and prices stay. Slow answers come together, and one endpoint may
        be slow when another one is. So stretches of the other recording are drawn, in which each answer is as slow for
        a prompt of its length as it was there.

        Args:
            other: of the same endpoints.
            rng: draws the stretches.

        Raises:
            ConfigurationError: an endpoint that wrote here wrote no first token there.
        """
        lacks = sorted({one.came.winner for one in self.answers} - other.times.keys())
        if lacks:
            raise ConfigurationError(
                f"the recording that the times are fitted on has no first token of {', '.join(lacks)}, so nothing is "
                "known of its times. Fit on one that has some."
            )
        shown = [
            {name: times.levels(one.seen.get(name, Seen()), rng) for name, times in other.times.items()}
            for one in other.answers
        ]
        size = max(1, min(STRETCH, len(shown) // 4))
        begins = rng.integers(0, len(shown), -(-len(self.answers) // size)).tolist()
        levels = [shown[(begin + i) % len(shown)] for begin in begins for i in range(size)]
        return replace(
            self,
            answers=tuple(
                replace(one, seen={}, scores={}, levels=level)
                for one, level in zip(self.answers, levels, strict=False)
            ),
            models={**other.models, **self.models},
            shown=other.shown,
            times={name: other.times[name] for name in self.candidates if name in other.times},
            scores=other.scores,
            counts=other.counts,
            told=other.told,
        )

    def of_preset(self, name: str) -> Recording:
        """Return the answers that this preset planned."""
        return replace(self, answers=tuple(one for one in self.answers if one.preset == name))

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
            overlap_s=times.overlap_s,
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
            if stream in _GIVEN:
                given = [one.levels.get(name) for one in answers]
                drawn = [
                    u if one is None else one[_GIVEN[stream]] for u, one in zip(drawn, given, strict=True)
                ]
            return drawn

        shown = [one.seen.get(name, Seen()) for one in answers]
        counted = [_counted(name, one.counted, one.prompt_tokens, self.counts) for one in answers]
        cached = [
            seen.cached_tokens if seen.ttft_s is not None else times.cached_tokens(tokens, level)
            for seen, tokens, level in zip(shown, counted, levels(_CACHE_STREAM), strict=True)
        ]
        told = self.told.get(name, 1.0)
        usual_s = 1.0 / DEFAULT_TPS
        return KnownTimes(
            ttft_s=[
                times.ttft_s(seen, tokens, level, held)
                for seen, tokens, level, held in zip(
                    shown, counted, levels(_TTFT_STREAM), cached, strict=True
                )
            ],
            tpot_s=[
                times.tpot_s(seen, usual_s, level)
                for seen, level in zip(shown, levels(_TPOT_STREAM), strict=True)
            ],
            answer_tokens=[one.lengths.get(name, one.answer_tokens) for one in answers],
            cached_tokens=cached,
            prompt_tokens=counted,
            told_tokens=[
                seen.charged_tokens or round(told * one.prompt_tokens)
                for seen, one in zip(shown, answers, strict=True)
            ],
            logp=self._logp(name, levels(_SCORE_STREAM)),
        )

    def _logp(self, name: str, levels: Sequence[float]) -> list[list[float]]:
        """Return log probabilities of each answer: as it was scored, else as another of this endpoint's answers was.

        Where no answer has a score, each is as sure as another: any share of them goes up that the preset wants.
        """
        found = [one.scores.get(name) for one in self.answers]
        scored = self.scores.get(name, ())

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
    log = SkipLog(path)
    return _recording(path, list(records_of(path, log)), log)


def read_halves(path: Path, share: float) -> tuple[Recording, Recording]:
    """Read the first share of a client's route records, by time, and the rest of them.

    Raises:
        ConfigurationError: as `read_recording`, also where one of the two has no answer that can be replayed.
    """
    log = SkipLog(path)
    records = sorted(records_of(path, log), key=lambda one: one[1].created_s or 0.0)
    cut = round(share * len(records))
    if not 0 < cut < len(records):
        raise ConfigurationError(
            f"the first {share:g} of {plural(len(records), 'record')} in {path} leaves nothing to fit on, or nothing "
            "to predict. Choose another share, or record more."
        )
    return _recording(path, records[:cut], log), _recording(path, records[cut:], SkipLog(path))


def _recording(path: Path, numbered: Sequence[tuple[int, RouteRecord]], log: SkipLog) -> Recording:
    answers: list[RecordedAnswer] = []
    records: list[RouteRecord] = []
    counts = _ratios(
        (one.endpoint, one.prompt_tokens, record.prompt_tokens)
        for _, record in numbered
        for one in record.attempts
        if one.kept_tokens and not one.prefix_chars
    )
    in_time = _InTime([record for _, record in numbered], counts)
    for number, line in numbered:
        record = on_mains(line)
        records.append(record)
        found = _answer(record, in_time)
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
        # Also of those that went on with an answer.
        for name, seen in in_time.seen(record, record.attempts).items():
            shown.setdefault(name, []).append(seen)
    attempts = [(record, one) for record in records for one in record.attempts]
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
        shown=shown,
        times={
            name: EndpointTimes.of(candidate, shown[name])
            for name, candidate in candidates.items()
            if any(seen.ttft_s is not None for seen in shown[name])
        },
        scores={name: _scores(name, answers) for name in candidates},
        counts=counts,
        told=_ratios(
            (one.endpoint, one.prompt_tokens, record.prompt_tokens)
            for record, one in attempts
            if one.outcome == "lost" and one.place == "server" and not one.tokens and not one.prefix_chars
        ),
        exchange_rate=next((r.exchange_rate for r in reversed(records) if r.exchange_rate), None),
        failed=sum(one.failure is not None for _, one in attempts),
        on_silence=sum(one.role in ("hedge", "heir") for _, one in attempts),
    )


def _scores(name: str, answers: Sequence[RecordedAnswer]) -> list[RecordedScore]:
    scored = (one.scores[name] for one in answers if name in one.scores)
    return sorted((one for one in scored if not one.early), key=lambda one: one.score)


def _ratios(counts: Iterable[tuple[str, int, int]]) -> dict[str, float]:
    """Return by name the sum of the first numbers over that of the second, where both are known."""
    sums: dict[str, list[int]] = {}
    for name, counted, estimated in counts:
        if counted and estimated:
            both = sums.setdefault(name, [0, 0])
            both[0] += counted
            both[1] += estimated
    return {name: counted / estimated for name, (counted, estimated) in sums.items()}


def _counted(name: str, counted: Mapping[str, int], prompt_tokens: int, counts: Mapping[str, float]) -> int:
    """Return the length of a prompt as an endpoint counts it: from its own count, another's, or the estimate."""
    if name in counted:
        return counted[name]
    usual = counts.get(name)
    for other, tokens in counted.items():
        if usual is not None and other in counts:
            return round(tokens * usual / counts[other])
        return tokens
    return round(prompt_tokens * (usual or 1.0))


def _counts_of(attempts: Sequence[AttemptRecord]) -> dict[str, int]:
    """Return by endpoint that wrote from the beginning what it counted of the prompt."""
    return {
        a.endpoint: a.prompt_tokens
        for a in attempts
        if a.kept_tokens and a.prompt_tokens and not a.prefix_chars
    }


class _InTime:
    """What each endpoint had to do when, of all answers of a recording."""

    def __init__(self, records: Sequence[RouteRecord], counts: Mapping[str, float]) -> None:
        self._counts = counts
        found: dict[str, list[tuple[float, float]]] = {}
        for record in records:
            for one in record.attempts:
                read_s = one.ended_s if one.first_content_s is None else one.first_content_s
                if record.created_s is not None and read_s is not None and one.failure is None:
                    times = record.created_s + one.started_s, record.created_s + read_s
                    found.setdefault(one.endpoint, []).append(times)
        columns = {name: np.array(sorted(times)).T for name, times in found.items()}
        self._begins = {name: begins for name, (begins, _) in columns.items()}
        self._read = {name: np.maximum.accumulate(read) for name, (_, read) in columns.items()}

    def seen(self, record: RouteRecord, attempts: Sequence[AttemptRecord]) -> dict[str, Seen]:
        """Return what these attempts at an answer show, from when their turn came."""
        found = seen_in(attempts, record.prompt_tokens, from_turn=True)
        counted = _counts_of(record.attempts)
        for name, seen in found.items():
            tokens = _counted(name, counted, record.prompt_tokens, self._counts)
            found[name] = replace(seen, prompt_tokens=tokens)
        for one in reversed(attempts):  # the first of each endpoint counts
            if record.created_s is None or one.place == "device" or one.endpoint not in self._begins:
                continue
            at = record.created_s + one.started_s
            before = int(np.searchsorted(self._begins[one.endpoint], at, side="left"))
            until = self._read[one.endpoint][before - 1] if before else at
            found[one.endpoint] = replace(found[one.endpoint], behind_s=max(float(until) - at, 0.0))
        return found


def _answer(record: RouteRecord, in_time: _InTime) -> RecordedAnswer | str:
    """Return the answer; a reason where it cannot be replayed."""
    if record.created_s is None:
        return "made in virtual time"
    if record.finish_reason is None:
        return "failed"
    if record.finish_reason == "cancelled":
        return "the reader left"
    if record.pace.ttft_released_s is None or record.winner is None:
        return "without a token"
    whole = [one for one in record.attempts if not one.prefix_chars]
    scores = {
        one.endpoint: _score(one, one.score, record.attempts[one.attempt])
        for one in record.judgements
        if one.score is not None and 0.0 < one.score <= 1.0
    }
    return RecordedAnswer(
        preset=record.preset,
        created_s=record.created_s,
        prompt_tokens=record.prompt_tokens,
        counted=_counts_of(record.attempts),
        answer_tokens=max(1, record.answer_tokens),
        max_tokens=record.max_tokens,
        task=next((one.task for one in record.judgements), ""),
        seen=in_time.seen(record, whole),
        lengths={
            a.endpoint: a.tokens
            for a in whole
            if a.tokens and a.outcome in ("finished", "overruled")
            if not (a.endpoint in scores and scores[a.endpoint].early)
        },
        scores=scores,
        came=came_of(record),
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
