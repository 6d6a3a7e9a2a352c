"""The route record: what happened to one answer, in numbers and endpoint names only.

Enough to bill it, to explain it and to replay it; never text. That a moved answer is exactly what the source
wrote up to the cut followed by what the target wrote is shown by two independent checksums per piece: one of
what the attempt wrote, one of what the reader was given at that place.

docs/recording.md says how records are kept and replayed.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from disco.cost import Ledger
from disco.plan import Rest, Withheld
from disco.playback import metrics
from disco.session.attempts import AttemptState, Outcome
from disco.session.machine import Session

__all__ = ["Contender", "Pace", "Piece", "RouteRecord", "Transfer", "Try", "make_record"]

SCHEMA = 2
_REASON = re.compile(r"[A-Za-z_]{1,32}")
TIMELINE_DIGITS = 4  # of a timeline's seconds as written down: 0.1 ms, finer than any clock a reader has


@dataclass(frozen=True, slots=True)
class Contender:
    """An endpoint that was there for the answer, whether or not it was started, as it was known at that moment.

    Attributes:
        name: what tries and charges call it.
        place: "device" or "server".
        cost_in, cost_out, cached_share: what a token cost there; see `cost.Rates`.
        continues: it was known to continue half-written answers.
    """

    name: str
    place: str
    cost_in: float
    cost_out: float
    cached_share: float
    continues: bool


@dataclass(frozen=True, slots=True)
class Try:
    """One attempt. Times are seconds since the request; None where it did not happen.

    Attributes:
        endpoint, place: who, and whether that is this machine ("device") or not ("server").
        role, outcome, failure: why, what became of it, and the class of failure.
        cold: its model had to be loaded first, as far as was known; such a start says nothing about warm ones.
        started_s, first_content_s, ended_s: its life.
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
            self.outcome != Outcome.FINISHED and self.text_chars <= passed_chars
        )
        return self.seam != "unproved" and self.swallowed_chars == may_miss and arrived


@dataclass(frozen=True, slots=True)
class Piece:
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
class Transfer:
    """A move, taken or given up.

    Attributes:
        source, target: endpoint names.
        outcome: "switched", or why it was given up ("late", "target_failed", "source_finished", ...).
        decided_s, switched_s: seconds since the request.
        cut_char, cut_tokens: where the answer was cut.
        expected_s, took_s: predicted and real time to the target's first token.
        slack_s: how long the reader could still read at the moment of decision; None when nobody waits.
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
class Pace:
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
        policy: name of the preset.
        finish_reason: the API's ("length" where the limit cut the answer short), "other" where a server gave something
            that is no word, "cancelled", or None when the answer failed.
        prompt_tokens, answer_tokens: of the request, as dispatch estimated it, and of the answer. What an endpoint
            counted stands in its try.
        max_tokens: the answer's limit; None for none.
        endpoints: every endpoint there was, with its place and rates.
        starts: endpoint and delay in seconds of each planned start.
        tries, pieces, transfers, pace: see their classes.
        ledger: every charge.
        duration_s: from the request to the last charge.
        generated, released: (seconds since the request, tokens) per delta, for replay.
        rested: endpoints that could have served the request and were left as the last resort, each with its reason;
            see `Rest`.
        withheld: what a budget took out of the plan; see `Withheld`.
        budget: by limit in force, its `amount` and `window_s`, what this answer `reserved` and `spent` of it, and what
            was `left` at its end; empty without absolute budgets.
    """

    created_s: float | None
    policy: str
    finish_reason: str | None
    prompt_tokens: int
    answer_tokens: int
    max_tokens: int | None
    endpoints: tuple[Contender, ...]
    starts: tuple[tuple[str, float], ...]
    tries: tuple[Try, ...]
    pieces: tuple[Piece, ...]
    transfers: tuple[Transfer, ...]
    pace: Pace
    ledger: Ledger
    duration_s: float
    generated: tuple[tuple[float, int], ...] = field(repr=False)
    released: tuple[tuple[float, int], ...] = field(repr=False)
    rested: tuple[Rest, ...] = ()
    withheld: tuple[Withheld, ...] = ()
    budget: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def winner(self) -> str | None:
        """Name of the endpoint that spoke first."""
        return self.pieces[0].endpoint if self.pieces else None

    @property
    def cost(self) -> float:
        """Everything that was charged, in unified money (USD)."""
        return self.ledger.total_cost

    @property
    def seamless(self) -> bool:
        """True when every piece reached the reader exactly as its attempt wrote it, without gap or overlap.

        Every seam between two pieces has to be proved (`Try.joins`): False says that text may stand there twice or be
        missing, not that it does.
        """
        ends = [0, *(p.end_char for p in self.pieces)]
        return all(
            p.start_char == end and p.written_crc32 == p.delivered_crc32 and self.tries[p.attempt].joins
            for p, end in zip(self.pieces, ends, strict=False)
        )

    def to_dict(self, *, timelines: bool = False) -> dict[str, Any]:
        """Plain numbers, names and lists, ready for JSON.

        Args:
            timelines: with `generated` and `released`, as lists of [seconds, tokens].
        """
        record: dict[str, Any] = {
            "schema": SCHEMA,
            "created_s": self.created_s,
            "policy": self.policy,
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.prompt_tokens,
            "answer_tokens": self.answer_tokens,
            "max_tokens": self.max_tokens,
            "winner": self.winner,
            "seamless": self.seamless,
            "duration_s": _round(self.duration_s),
            "endpoints": [asdict(e) for e in self.endpoints],
            "starts": [{"endpoint": name, "after_s": _round(after_s)} for name, after_s in self.starts],
            "rested": [_plain(r) for r in self.rested],
            "withheld": [_plain(w) for w in self.withheld],
            "budget": {name: dict(facts) for name, facts in self.budget.items()},
            "tries": [_plain(t) for t in self.tries],
            "pieces": [_plain(p) for p in self.pieces],
            "transfers": [_plain(t) for t in self.transfers],
            "pace": _plain(self.pace),
            "ledger": self.ledger.to_dict(),
        }
        if timelines:
            record["generated"] = _timeline(self.generated)
            record["released"] = _timeline(self.released)
        return record

    def to_json(self, *, indent: int | None = None, timelines: bool = False) -> str:
        """`to_dict` as JSON; on one line unless `indent` is given."""
        return json.dumps(self.to_dict(timelines=timelines), indent=indent)


def _word(reason: str | None) -> str | None:
    """A server may give any reason, a whole prompt too; a record holds words that name one."""
    return reason if reason is None or _REASON.fullmatch(reason) else "other"


def make_record(
    session: Session, ledger: Ledger, *, policy: str, created_s: float | None = None
) -> RouteRecord:
    """Write down a closed session.

    Args:
        session: closed.
        ledger: what was charged for it, with the rates of all its candidates.
        policy: name of the preset.
        created_s: when the request came, Unix time in seconds; the session itself has no clock.
    """
    t0 = session.started_at
    generated = tuple((at - t0, tokens) for at, tokens in session.transcript.generated)
    released = tuple((at - t0, tokens) for at, tokens in session.transcript.released)
    pace_tps = session.terms.pace_tps
    return RouteRecord(
        created_s=None if created_s is None else _round(created_s),
        policy=policy,
        finish_reason=_word(session.finish_reason),
        prompt_tokens=session.terms.prompt_tokens,
        answer_tokens=session.transcript.tokens,
        max_tokens=session.terms.max_tokens,
        endpoints=_contenders(session),
        starts=tuple((s.endpoint, s.after_s) for s in session.plan.starts),
        tries=tuple(_try(state, ledger, t0) for state in session.attempts),
        pieces=_pieces(session),
        transfers=_transfers(session),
        pace=_pace(generated, released, pace_tps),
        ledger=ledger,
        duration_s=(session.ending.closed_at or t0) - t0,
        generated=generated,
        released=released,
        rested=session.plan.rested,
        withheld=session.plan.withheld,
        budget={} if session.purse is None else session.purse.report(session.ending.closed_at or t0),
    )


def _contenders(session: Session) -> tuple[Contender, ...]:
    return tuple(
        Contender(
            name=candidate.name,
            place=candidate.place,
            cost_in=candidate.rates.cost_in,
            cost_out=candidate.rates.cost_out,
            cached_share=candidate.rates.cached_share,
            continues=candidate.continues,
        )
        for candidate in session.candidates.values()
    )


def _try(state: AttemptState, ledger: Ledger, t0: float) -> Try:
    usage = state.usage
    return Try(
        endpoint=state.candidate.name,
        place=state.candidate.place,
        role=state.role.value,
        outcome=state.outcome.value,
        failure=state.failure.value if state.failure else None,
        cold=state.candidate.load_s > 0,
        started_s=state.started_at - t0,
        first_content_s=None if state.first_content_at is None else state.first_content_at - t0,
        ended_s=None if state.ended_at is None else state.ended_at - t0,
        prefix_chars=len(state.prefix.text),
        tokens=state.tokens,
        kept_tokens=state.kept_tokens,
        prompt_tokens=usage.prompt_tokens if usage else 0,
        completion_tokens=usage.completion_tokens if usage else 0,
        cached_tokens=usage.cached_tokens if usage else 0,
        cost=sum(c.cost for c in ledger.charges if c.attempt == state.number),
        text_chars=sum(map(len, state.parts)),
        **_seam(state),
    )


def _seam(state: AttemptState) -> dict[str, Any]:
    seam = state.seam
    if seam is None:
        return {}
    return {
        "seam": seam.verdict,
        "sent_chars": seam.sent_chars,
        "written_chars": seam.written_chars,
        "swallowed_chars": seam.swallowed_chars,
    }


def _pieces(session: Session) -> tuple[Piece, ...]:
    delivered = session.transcript.text
    pieces = []
    segments = session.transcript.segments
    ends = [*(s.start for s in segments[1:]), math.inf]
    for segment, next_start in zip(segments, ends, strict=False):
        start, state = segment.start, segment.writer
        # A cancelled answer may not have reached its last piece.
        end = int(min(next_start, len(delivered)))
        if end <= start:
            continue
        written = "".join(state.parts)[start - len(state.prefix.text) :][: end - start]
        pieces.append(
            Piece(
                attempt=state.number,
                endpoint=state.candidate.name,
                start_char=start,
                end_char=end,
                written_crc32=zlib.crc32(written.encode()),
                delivered_crc32=zlib.crc32(delivered[start:end].encode()),
            )
        )
    return tuple(pieces)


def _transfers(session: Session) -> tuple[Transfer, ...]:
    t0, pace, released = session.started_at, session.terms.pace_tps, session.transcript.released
    out = []
    for h in session.handovers:
        late = 0
        if h.outcome == "switched" and pace is not None and released:
            after_cut = metrics.lateness_s(released, pace)[h.cut_tokens :]
            late = sum(late_s > metrics.TOLERANCE_S for late_s in after_cut)
        out.append(
            Transfer(
                source=session.attempts[h.source].candidate.name,
                target=session.attempts[h.target].candidate.name,
                outcome=h.outcome,
                decided_s=h.decided_at - t0,
                switched_s=None if h.switched_at is None else h.switched_at - t0,
                cut_char=h.cut_chars,
                cut_tokens=h.cut_tokens,
                expected_s=h.expected_s,
                took_s=None if h.switched_at is None else h.switched_at - h.decided_at,
                slack_s=None if h.slack_s == float("inf") else h.slack_s,
                late_tokens=late,
            )
        )
    return tuple(out)


def _pace(
    generated: tuple[tuple[float, int], ...], released: tuple[tuple[float, int], ...], pace_tps: float | None
) -> Pace:
    raw, shown = metrics.gaps(generated), metrics.gaps(released)
    return Pace(
        ttft_raw_s=_known(metrics.ttft_s(generated, 0.0)),
        ttft_released_s=_known(metrics.ttft_s(released, 0.0)),
        tbt_raw_p50_s=_known(raw.p50_s),
        tbt_raw_p99_s=_known(raw.p99_s),
        tbt_released_p50_s=_known(shown.p50_s),
        tbt_released_p99_s=_known(shown.p99_s),
        late_tokens=metrics.late_tokens(released, pace_tps) if pace_tps else 0,
        pace_tps=pace_tps,
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _timeline(entries: tuple[tuple[float, int], ...]) -> list[list[float]]:
    return [[round(at, TIMELINE_DIGITS), tokens] for at, tokens in entries]


def _round(value: float) -> float:
    return round(value, 6)


def _plain(item: Any) -> dict[str, Any]:
    out = {}
    for name in item.__slots__:
        value = getattr(item, name)
        out[name] = _round(value) if isinstance(value, float) and name != "cost" else value
    return out
