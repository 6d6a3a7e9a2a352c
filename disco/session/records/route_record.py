"""The route record: what happened to one answer, in numbers and endpoint names only.

Enough to bill it, to explain it and to replay it; never text. That a moved answer is exactly what the source
wrote up to the cut followed by what the target wrote is shown by two independent checksums per segment: one of
what the attempt wrote, one of what the reader was given at that place.

docs/recording.md says how records are kept and replayed.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from disco.cost import Ledger
from disco.plan import BudgetCut, CoolDown
from disco.session.attempt.attempt_state import AttemptOutcome
from disco.session.switching.failover_rule import has_replaced

__all__ = [
    "AttemptRecord",
    "CandidateRecord",
    "LatencyRecord",
    "MigrationRecord",
    "RouteRecord",
    "SegmentRecord",
]

SCHEMA = 4
RENAMED = {
    "policy": "preset",
    "tries": "attempts",
    "pieces": "segments",
    "transfers": "migrations",
    "rested": "deprioritised",
    "withheld": "budget_cuts",
}
"""Names of record schema 3, as attributes and in JSON, with those of today: the old ones go with the next version."""
TIMELINE_DIGITS = 4  # of a timeline's seconds as written down: 0.1 ms, finer than any clock a reader has


@dataclass(frozen=True, slots=True)
class CandidateRecord:
    """An endpoint that was there for the answer, whether or not it was started, as it was known at that moment.

    Attributes:
        name: the name that attempts and charges use.
        place: "device" or "server".
        reach: how far a prompt travels to it: "device", "own" or "any".
        rank: its place in the user's order of endpoints.
        cost_in, cost_out, cached_share: what a token cost there; see `cost.Rates`.
        continues: it was known to continue half-written answers.
    """

    name: str
    place: str
    cost_in: float
    cost_out: float
    cached_share: float
    continues: bool
    reach: str = "any"
    rank: int = 0


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt. Times are seconds since the request; None where it did not happen.

    Attributes:
        endpoint, place: its name, and whether it is this machine ("device") or not ("server").
        role, outcome, failure: why it was started, what became of it, and the class of its failure.
        cold: its model had to be loaded first, as far as was known; such a start says nothing about warm ones.
        started_s, first_content_s, ended_s: its life.
        began_s: when its turn came; None where it did not wait, or that is not known.
        prefix_chars: length of the answer it continued from.
        tokens, kept_tokens: written, and of these in the answer.
        prompt_tokens, completion_tokens, cached_tokens: what it is charged for.
        cost: of all its charges, USD.
        seam: the verdict on the place where it went on with an answer, see `events.SeamReport`; None where it began
            one, or where its endpoint does not say.
        sent_chars, written_chars, swallowed_chars: of that report.
        text_chars: characters that it gave to this answer, whether or not they were kept.
    """

    endpoint: str
    place: str
    role: str
    outcome: str
    failure: str | None
    cold: bool
    started_s: float
    first_content_s: float | None
    ended_s: float | None
    prefix_chars: int
    tokens: int
    kept_tokens: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cost: float
    seam: str | None = None
    sent_chars: int = 0
    written_chars: int = 0
    swallowed_chars: int = 0
    text_chars: int = 0
    began_s: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    text_bytes: int = 0

    @property
    def joins(self) -> bool:
        """Whether it went on exactly where the answer was cut, and all that it wrote there arrived.

        Judged by what it was sent and all that it wrote: missing may be the withheld text and a proved echo, each
        whole, and nothing else.
        """
        if self.seam is None:
            return True
        may_miss = self.prefix_chars - self.sent_chars + (self.sent_chars if self.seam == "echo" else 0)
        passed_chars = self.written_chars - self.swallowed_chars
        arrived = self.text_chars == passed_chars or (
            self.outcome != AttemptOutcome.FINISHED and self.text_chars <= passed_chars
        )
        return self.seam != "unproved" and self.swallowed_chars == may_miss and arrived


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """A stretch of the answer by one writer; `start_char` inclusive, `end_char` exclusive.

    `written_crc32` is over what the attempt wrote, `delivered_crc32` over what the reader got (UTF-8).
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
        outcome: "switched", or why it was given up ("late", "target_failed", "source_finished", ...).
        decided_s, switched_s: seconds since the request.
        cut_char, cut_tokens: where the answer was cut.
        expected_s, took_s: predicted and real time to the target's first token.
        slack_s: how long the reader could still read at the moment of decision; None when there is no reader yet.
        late_tokens: released tokens behind the cut that came after the reader's deadline.
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


@dataclass(frozen=True, slots=True)
class LatencyRecord:
    """Latency as generated (`raw`) and as given to the reader (`released`), in seconds."""

    ttft_raw_s: float | None
    ttft_released_s: float | None
    tbt_raw_p50_s: float | None
    tbt_raw_p99_s: float | None
    tbt_released_p50_s: float | None
    tbt_released_p99_s: float | None
    late_tokens: int
    pace_tps: float | None


@dataclass(frozen=True, slots=True)
class RouteRecord:
    """See the module's docstring. `to_dict` and `to_json` leave out nothing but, unless asked, the two timelines.

    Attributes:
        created_s: when the request came, Unix time in seconds; None in virtual time.
        preset: its name.
        finish_reason: the API's ("length" where the limit cut the answer short), "other" where a server gave something
            that is no word, "cancelled", or None when the answer failed.
        prompt_tokens, answer_tokens: of the request, as dispatch estimated it, and of the answer. What an endpoint
            counted stands in its attempt.
        max_tokens: the answer's limit; None for none.
        endpoints: every endpoint there was, with its place and rates.
        starts: endpoint and delay in seconds of each planned start.
        attempts, segments, migrations, pace: see their classes.
        ledger: every charge.
        duration_s: from the request to the last charge.
        generated, released: (seconds since the request, tokens) per delta, for replay.
        deprioritised: endpoints that could have served the request and were left as the last resort, each
            with its reason; see `CoolDown`.
        budget_cuts: what a budget took out of the plan; see `BudgetCut`.
        budget: by limit in force, its `amount` and `window_s`, what this answer `reserved` and `spent` of it, and what
            was `left` at its end; empty without absolute budgets.
        winner: name of the endpoint that spoke first, with text, a tool call or reasoning; None where none did.
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
    deprioritised: tuple[CoolDown, ...] = ()
    budget_cuts: tuple[BudgetCut, ...] = ()
    budget: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    winner: str | None = None

    if not TYPE_CHECKING:  # so that a type checker finds the old names

        def __getattr__(self, name: str) -> Any:
            if (new := RENAMED.get(name)) is None:
                raise AttributeError(f"a RouteRecord has no {name!r}", name=name, obj=self)
            warnings.warn(f"RouteRecord.{name} is now RouteRecord.{new}", DeprecationWarning, stacklevel=2)
            return getattr(self, new)

    @property
    def cost(self) -> float:
        """Everything that was charged, in unified money (USD)."""
        return self.ledger.total_cost

    @property
    def seamless(self) -> bool:
        """True when every segment reached the reader exactly as its attempt wrote it, without gap or overlap.

        Every seam between two segments has to be proved (`AttemptRecord.joins`): False says that text may stand there
        twice or be missing, not that it does.
        """
        ends = [0, *(p.end_char for p in self.segments)]
        return all(
            p.start_char == end and p.written_crc32 == p.delivered_crc32 and self.attempts[p.attempt].joins
            for p, end in zip(self.segments, ends, strict=False)
        )

    @property
    def failovers(self) -> list[tuple[AttemptRecord, AttemptRecord]]:
        """(the attempt that failed, the attempt of another endpoint that replaced it), in order.

        At most one for each failed attempt. See `session.switching.failover_rule.has_replaced`.
        """
        found = []
        for number, dead in enumerate(self.attempts):
            if dead.failure is None or dead.ended_s is None:
                continue
            for by in self.attempts[number + 1 :]:
                if has_replaced(
                    same_endpoint=by.endpoint == dead.endpoint,
                    wrote=by.kept_tokens > 0 or by.outcome == AttemptOutcome.FINISHED,
                    started=by.started_s,
                    dead_wrote=dead.tokens > 0,
                    dead_ended=dead.ended_s,
                ):
                    found.append((dead, by))
                    break
        return found

    def to_dict(self, *, timelines: bool = False) -> dict[str, Any]:
        """Plain numbers, names and lists, ready for JSON.

        Args:
            timelines: with `generated` and `released`, as lists of [seconds, tokens].
        """
        record: dict[str, Any] = {
            "schema": SCHEMA,
            "created_s": self.created_s,
            "preset": self.preset,
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.prompt_tokens,
            "answer_tokens": self.answer_tokens,
            "max_tokens": self.max_tokens,
            "winner": self.winner,
            "seamless": self.seamless,
            "duration_s": _round(self.duration_s),
            "endpoints": [asdict(e) for e in self.endpoints],
            "starts": [{"endpoint": name, "after_s": _round(after_s)} for name, after_s in self.starts],
            "deprioritised": [_to_json_types(r) for r in self.deprioritised],
            "budget_cuts": [_to_json_types(w) for w in self.budget_cuts],
            "budget": {name: dict(facts) for name, facts in self.budget.items()},
            "attempts": [_to_json_types(t) for t in self.attempts],
            "segments": [_to_json_types(p) for p in self.segments],
            "migrations": [_to_json_types(t) for t in self.migrations],
            "pace": _to_json_types(self.pace),
            "ledger": self.ledger.to_dict(),
        }
        if timelines:
            record["generated"] = _timeline(self.generated)
            record["released"] = _timeline(self.released)
        return record

    def to_json(self, *, indent: int | None = None, timelines: bool = False) -> str:
        """`to_dict` as JSON; on one line unless `indent` is given."""
        return json.dumps(self.to_dict(timelines=timelines), indent=indent)


def _timeline(entries: tuple[tuple[float, int], ...]) -> list[list[float]]:
    return [[round(at, TIMELINE_DIGITS), tokens] for at, tokens in entries]


def _round(value: float) -> float:
    return round(value, 6)


def _to_json_types(item: Any) -> dict[str, Any]:
    out = {}
    for name in item.__slots__:
        value = getattr(item, name)
        out[name] = _round(value) if isinstance(value, float) and name != "cost" else value
    return out
