"""The route record: what happened to one answer, in numbers and endpoint names only.

The record is enough to bill, explain and replay the answer, and never contains its text. Two independent checksums
per segment show that an answer was put together correctly: one of what the attempt wrote, one of what the reader got
at that place. A migrated answer must be the source's text up to the cut, followed by the target's text.

docs/how-to/recording.md says how records are kept and replayed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from disco.cost import Ledger
from disco.events import SpeculationReport
from disco.plan import BudgetCut, CoolDown, Power
from disco.reasons import Reason
from disco.session.attempt.attempt_state import AttemptOutcome
from disco.session.records.assist_record import AssistRecord
from disco.session.records.attempt_record import AttemptRecord
from disco.session.records.shadow_record import ShadowRecord
from disco.session.switching.failover_rule import has_replaced

__all__ = [
    "SCHEMA",
    "AttemptRecord",
    "CandidateRecord",
    "JudgementRecord",
    "LatencyRecord",
    "MigrationRecord",
    "RouteRecord",
    "SegmentRecord",
]

SCHEMA = 5
"""The version of a record's JSON; `disco.record.versions` reads those before."""

# Not rounded: a replay judges the same scores again.
_EXACT = frozenset({"beta", "bill_usd", "device_energy_j", "policy_cost", "score", "threshold"})
TIMELINE_DIGITS = 4  # decimals of the seconds in a written timeline: 0.1 ms, finer than a reader can notice


@dataclass(frozen=True, slots=True)
class CandidateRecord:
    """An endpoint that was available for the answer, started or not, as it was known at that time.

    Attributes:
        name: the name that attempts and charges use.
        place: "device" or "server".
        reach: how far a prompt travels to the endpoint: "device", "own" or "any".
        rank: the endpoint's place in the user's order.
        cost_in, cost_out, cached_share: what policies counted for a token, USD; see `cost.Rates`.
        continues: whether the endpoint was known to continue half-written answers.
        price: how far the costs are known; see `rates.PriceBasis`.
        is_money: whether these costs are a price in money; False: energy at the preset's exchange rate.
        j_in, j_out: the energy that a token took of the user's own machines, J; see `cost.Rates`.
    """

    name: str
    place: str
    cost_in: float
    cost_out: float
    cached_share: float
    continues: bool
    reach: str = "any"
    rank: int = 0
    price: str = "given"
    is_money: bool = True
    j_in: float | None = 0.0
    j_out: float | None = 0.0


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """A stretch of the answer by one writer; `start_char` inclusive, `end_char` exclusive.

    `written_crc32` is over what the attempt wrote, `delivered_crc32` over what the reader got (UTF-8).

    Attributes:
        attempt, endpoint: the number of the attempt that wrote it, and its endpoint.
        start_char, end_char: where it is in the answer.
        written_crc32: checksum of what the attempt wrote, as UTF-8.
        delivered_crc32: checksum of what the reader got there.
    """

    attempt: int
    endpoint: str
    start_char: int
    end_char: int
    written_crc32: int
    delivered_crc32: int


@dataclass(frozen=True, slots=True)
class MigrationRecord:
    """A migration, completed or given up.

    Attributes:
        source, target: endpoint names.
        outcome: "switched", or why the migration was given up ("late", "target_failed", "source_finished",
            "source_back" after a silence, ...).
        decided_s, switched_s: seconds since the request.
        cut_char, cut_tokens: where the answer was cut.
        expected_s, took_s: predicted and real time to the target's first token, s.
        slack_s: the slack at the moment of decision, s; None when there is no reader yet.
        late_tokens: released tokens after the cut that came after the reader's deadline.
        paused_s: how long the source was paused from the cut on, s; 0 where it was not.
        wasted_tokens: tokens that the source wrote after the cut and that are not in the answer.
        reason: "cost" (to the cheaper endpoint), "confidence" (to a higher tier, because the source was unsure),
            "assist" (to the heir that the plan named) or "silence" (to an heir, while the source was silent).
    """

    source: str
    target: str
    outcome: str
    decided_s: float
    switched_s: float | None
    cut_char: int
    cut_tokens: int
    expected_s: float
    took_s: float | None
    slack_s: float | None
    late_tokens: int
    reason: str = "cost"
    paused_s: float = 0.0
    wasted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class JudgementRecord:
    """A verdict on what one attempt wrote.

    Attributes:
        attempt, endpoint: the attempt's number and its endpoint.
        task, model, kind: whose answers it was compared with, and how it was scored; see `disco.judging.HistoryKey`.
        outcome: "kept", "handed_up", "stood" (doubted, but no higher tier answered) or "not_judged".
        why: why there is no score; see `session.session_config.Judgement`.
        score, threshold: of the verdict; the threshold is the beta-quantile of the history. None where there is none.
        history: how many scores the answer was compared with.
        number, window: how many scores that history had seen before, and how many it keeps.
        beta, rule: by which share and rule it was judged; None where it was not.
        tokens: how many tokens of the answer were judged.
        at_s: when, seconds since the request.
    """

    attempt: int
    endpoint: str
    task: str
    kind: str
    outcome: str
    why: str | None
    score: float | None
    threshold: float | None
    history: int
    tokens: int
    at_s: float
    model: str = ""
    number: int = 0
    window: int = 0
    beta: float | None = None
    rule: str | None = None


@dataclass(frozen=True, slots=True)
class LatencyRecord:
    """Latency as generated (`raw`) and as given to the reader (`released`), in seconds.

    Attributes:
        ttft_raw_s, ttft_released_s: time to first token, s; None where none came.
        tbt_raw_p50_s, tbt_raw_p99_s, tbt_released_p50_s, tbt_released_p99_s: median and 99th percentile of the time
            between two tokens, s; None for fewer than two.
        late_tokens: tokens released after the reader's deadline.
        pace_tps: the reader's pace, tokens/s; None: text was shown as it came.
        release: what text left by: "word" or "sentence".
        pieces: with sentences, how many pieces left.
        silences, silent_s: how many of them came after the voice had spoken the one before, and how long that was in
            all, s.
    """

    ttft_raw_s: float | None
    ttft_released_s: float | None
    tbt_raw_p50_s: float | None
    tbt_raw_p99_s: float | None
    tbt_released_p50_s: float | None
    tbt_released_p99_s: float | None
    late_tokens: int
    pace_tps: float | None
    release: str = "word"
    pieces: int = 0
    silences: int = 0
    silent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RouteRecord:
    """What happened to one answer; see the module's docstring.

    `to_dict` and `to_json` hold everything except the timelines, which are included on request: `generated`,
    `released`, `turns`, and the times of drafted windows.

    Attributes:
        created_s: when the request came, Unix time in seconds; None in virtual time.
        preset: the preset's name.
        exchange_rate: its λ, USD per 10⁶ FLOPs, by which the device's rates in `endpoints` were made; None in older
            records, and where the answer had one possible endpoint.
        finish_reason: the API's ("length" where the limit cut the answer short), "other" where a server's reason is
            not a single word, "cancelled", or None when the answer failed.
        prompt_tokens, answer_tokens: length of the prompt, as dispatch estimated it, and of the answer. The counts of
            an endpoint are in its attempt.
        max_tokens: the answer's limit; None for none.
        endpoints: every available endpoint, with its place and rates.
        starts: endpoint and delay in seconds of each planned start.
        attempts, segments, migrations, pace: what each endpoint did, who wrote which part, how the answer moved, and
            how fast it came.
        ledger: every charge.
        duration_s: from the request to the last charge.
        generated, released: (seconds since the request, tokens) per delta, for replay.
        turns: (place in `generated`, number of an attempt): from there on that attempt wrote. Empty in records made
            before there was this field.
        deprioritised: endpoints that could have served the request and were kept as the last resort, each with its
            reason; see `CoolDown`.
        budget_cuts: what a budget removed from the plan; see `BudgetCut`.
        budget: by name of each limit in force, its `amount`, its period `per` or its `window_s`, what this answer
            `reserved` and `spent` of it, and what was `left` at its end; empty without absolute budgets.
        winner: name of the endpoint whose content (text, a tool call or reasoning) came first, or began the answer anew
            after a judge had overruled that; None where none came.
        judgements: verdicts on what attempts wrote, in order; empty without a cascade.
        assist: how the answer was divided between a writer and its heir; None under a policy that divides no answers.
        power: the state of this machine that the answer was planned in, and what followed; see `Power`. None where
            nothing was asked about it.
        shadow: what another preset would have done; None without shadow mode.
        why: why each endpoint started, stood by, rested or was left out, as numbers; `reasons.sentence` has the words.
            Empty in records made before there was this field.
        served_as: the name by which a `disco serve` with several models offered the one that answered; None elsewhere.
    """

    created_s: float | None
    preset: str
    finish_reason: str | None
    prompt_tokens: int
    answer_tokens: int
    max_tokens: int | None
    endpoints: tuple[CandidateRecord, ...]
    starts: tuple[tuple[str, float], ...]
    attempts: tuple[AttemptRecord, ...]
    segments: tuple[SegmentRecord, ...]
    migrations: tuple[MigrationRecord, ...]
    pace: LatencyRecord
    ledger: Ledger
    duration_s: float
    generated: tuple[tuple[float, int], ...] = field(repr=False)
    released: tuple[tuple[float, int], ...] = field(repr=False)
    turns: tuple[tuple[int, int], ...] = ()
    deprioritised: tuple[CoolDown, ...] = ()
    budget_cuts: tuple[BudgetCut, ...] = ()
    budget: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    winner: str | None = None
    judgements: tuple[JudgementRecord, ...] = ()
    assist: AssistRecord | None = None
    power: Power | None = None
    shadow: ShadowRecord | None = None
    served_as: str | None = None
    why: tuple[Reason, ...] = ()
    exchange_rate: float | None = None

    @property
    def bill_usd(self) -> float:
        """The money paid to servers, USD: what those with a price charge, losers and failed attempts included.

        Probes that were made in the background since the answer before are included (phase "probe", no attempt).
        """
        return self.ledger.totals().bill_usd

    @property
    def device_energy_j(self) -> float | None:
        """The energy of the user's own machines, J; None where that of an endpoint that worked is not known.

        Measured if the device's profile has an [energy]; else an estimate: its operations at 2·10¹⁰ FLOPs per joule, a
        laptop's.
        """
        return self.ledger.totals().device_energy_j

    @property
    def policy_cost(self) -> float:
        """What policies weigh endpoints by, USD: the bill, plus the energy at the preset's exchange rate.

        Nobody is paid this: where the battery is low, a joule counts many times as much.
        """
        return self.ledger.totals().policy_cost

    @property
    def seamless(self) -> bool:
        """True when every segment reached the reader exactly as its attempt wrote it, without gap or overlap.

        Every seam between two segments must be proved (`AttemptRecord.joins`). False means that text may be doubled
        or missing at a seam, not that it is.
        """
        ends = [0, *(p.end_char for p in self.segments)]
        return all(
            p.start_char == end and p.written_crc32 == p.delivered_crc32 and self.attempts[p.attempt].joins
            for p, end in zip(self.segments, ends, strict=False)
        )

    @property
    def failovers(self) -> list[tuple[AttemptRecord, AttemptRecord]]:
        """Pairs of an attempt that failed and the attempt of another endpoint that replaced it, in order.

        At most one for each failed attempt. See `session.switching.failover_rule.has_replaced`.
        """
        found = []
        for number, failed in enumerate(self.attempts):
            if failed.failure is None or failed.ended_s is None:
                continue
            for later in self.attempts[number + 1 :]:
                if has_replaced(
                    same_endpoint=later.endpoint == failed.endpoint,
                    wrote=later.kept_tokens > 0 or later.outcome == AttemptOutcome.FINISHED,
                    started=later.started_s,
                    dead_wrote=failed.tokens > 0,
                    dead_ended=failed.ended_s,
                ):
                    found.append((failed, later))
                    break
        return found

    def to_dict(self, *, timelines: bool = False) -> dict[str, Any]:
        """Return the record as plain numbers, names and lists, ready for JSON.

        Args:
            timelines: include `generated` and `released`, as lists of [seconds, tokens], `turns`, and the
                `timed_windows` of drafted answers.
        """
        record: dict[str, Any] = {
            "schema": SCHEMA,
            "created_s": self.created_s,
            "preset": self.preset,
            "exchange_rate": self.exchange_rate,
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.prompt_tokens,
            "answer_tokens": self.answer_tokens,
            "max_tokens": self.max_tokens,
            "winner": self.winner,
            "seamless": self.seamless,
            "duration_s": _round(self.duration_s),
            "endpoints": [asdict(e) for e in self.endpoints],
            "starts": [{"endpoint": name, "after_s": _round(after_s)} for name, after_s in self.starts],
            "why": [_to_json_types(r) for r in self.why],
            "deprioritised": [_to_json_types(r) for r in self.deprioritised],
            "budget_cuts": [_to_json_types(w) for w in self.budget_cuts],
            "budget": {name: dict(facts) for name, facts in self.budget.items()},
            "attempts": [_attempt_dict(t, timelines=timelines) for t in self.attempts],
            "segments": [_to_json_types(p) for p in self.segments],
            "migrations": [_to_json_types(t) for t in self.migrations],
            "judgements": [_to_json_types(j) for j in self.judgements],
            "assist": None if self.assist is None else _to_json_types(self.assist),
            "power": None if self.power is None else asdict(self.power),
            "pace": _to_json_types(self.pace),
            "ledger": self.ledger.to_dict(),
            "shadow": None if self.shadow is None else self.shadow.to_dict(),
        }
        if self.served_as is not None:
            record["served_as"] = self.served_as
        if timelines:
            record["generated"] = _timeline(self.generated)
            record["released"] = _timeline(self.released)
            record["turns"] = [list(turn) for turn in self.turns]
        return record

    def to_json(self, *, indent: int | None = None, timelines: bool = False) -> str:
        """Return `to_dict` as JSON text; on one line unless `indent` is given.

        Args:
            indent: spaces of each level.
            timelines: as in `to_dict`.
        """
        return json.dumps(self.to_dict(timelines=timelines), indent=indent)


def _timeline(entries: tuple[tuple[float, int], ...]) -> list[list[float]]:
    return [[round(at, TIMELINE_DIGITS), tokens] for at, tokens in entries]


def _round(value: float) -> float:
    return round(value, 6)


def _attempt_dict(attempt: AttemptRecord, *, timelines: bool) -> dict[str, Any]:
    record = _to_json_types(attempt)
    if (report := record["speculation"]) is not None:
        windows = report.pop("timed_windows")
        if timelines:
            report["timed_windows"] = [
                [round(sent, TIMELINE_DIGITS), round(judged, TIMELINE_DIGITS), *counts]
                for sent, judged, *counts in windows
            ]
    return record


def _to_json_types(item: Any) -> dict[str, Any]:
    out = {}
    for name in item.__slots__:
        value = getattr(item, name)
        if type(value) is SpeculationReport:
            value = _to_json_types(value)
        out[name] = _round(value) if isinstance(value, float) and name not in _EXACT else value
    return out
