"""Makes the route record of a closed session."""

from __future__ import annotations

import math
import re
import zlib
from typing import Any

from disco.cost import Ledger, Totals
from disco.events import DeltaKind
from disco.playback import reader_metrics
from disco.reasons import reasons_of
from disco.session.attempt.attempt_state import AttemptState
from disco.session.machine import Session
from disco.session.records.assist_record import assist_record
from disco.session.records.route_record import (
    AttemptRecord,
    CandidateRecord,
    JudgementRecord,
    LatencyRecord,
    MigrationRecord,
    RouteRecord,
    SegmentRecord,
)
from disco.session.records.shadow_record import ShadowRecord
from disco.session.session_config import Judgement, RunningMigration

__all__ = ["make_record"]

_REASON = re.compile(r"[A-Za-z_]{1,32}")


def _word(reason: str | None) -> str | None:
    """Return the reason if it is a single word, else "other": a server may give any text, even a whole prompt."""
    return reason if reason is None or _REASON.fullmatch(reason) else "other"


def make_record(
    session: Session,
    ledger: Ledger,
    *,
    preset: str,
    exchange_rate: float | None = None,
    created_s: float | None = None,
    shadow: ShadowRecord | None = None,
) -> RouteRecord:
    """Make the route record of a closed session.

    Args:
        session: a closed one.
        ledger: what was charged for the session, with the rates of all its candidates.
        preset: the preset's name.
        exchange_rate: the preset's λ, USD per 10⁶ FLOPs.
        created_s: when the request came, Unix time in seconds; the session itself has no clock.
        shadow: what another preset would have done.
    """
    t0 = session.started_at
    generated = tuple((at - t0, tokens) for at, tokens in session.transcript.generated)
    released = tuple((at - t0, tokens) for at, tokens in session.transcript.released)
    return RouteRecord(
        created_s=None if created_s is None else round(created_s, 6),
        preset=preset,
        exchange_rate=exchange_rate,
        finish_reason=_word(session.finish_reason),
        prompt_tokens=session.config.prompt_tokens,
        answer_tokens=session.transcript.tokens,
        max_tokens=session.config.max_tokens,
        endpoints=_contenders(session),
        starts=tuple((s.endpoint, s.after_s) for s in session.plan.starts),
        attempts=tuple(_attempt(session, state, ledger) for state in session.attempts),
        segments=(segments := _segments(session)),
        migrations=_migrations(session),
        pace=_pace(session, generated, released),
        ledger=ledger,
        duration_s=(session.ending.closed_at or t0) - t0,
        generated=generated,
        released=released,
        turns=tuple(session.transcript.turns),
        deprioritised=session.plan.deprioritised,
        budget_cuts=session.plan.budget_cuts,
        budget={}
        if session.reservation is None
        else session.reservation.report(session.ending.closed_at or t0),
        winner=_winner(session, segments),
        judgements=_judgements(session),
        assist=assist_record(session),
        power=session.plan.power,
        shadow=shadow,
        why=reasons_of(session.plan, session.candidates),
    )


def _contenders(session: Session) -> tuple[CandidateRecord, ...]:
    return tuple(
        CandidateRecord(
            name=candidate.name,
            place=candidate.place,
            cost_in=rates.cost_in,
            cost_out=rates.cost_out,
            cached_share=rates.cached_share,
            continues=candidate.continues,
            reach=candidate.reach,
            rank=candidate.rank,
            price=rates.basis,
            is_money=rates.is_money,
            j_in=rates.j_in,
            j_out=rates.j_out,
        )
        for candidate in session.candidates.values()
        for rates in [candidate.charged]
    )


def _attempt(session: Session, state: AttemptState, ledger: Ledger) -> AttemptRecord:
    t0 = session.started_at
    usage = state.usage
    sums = Totals.of(charge for charge in ledger.charges if charge.attempt == state.number)
    return AttemptRecord(
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
        kept_tokens=session.transcript.kept_tokens(state),
        prompt_tokens=usage.prompt_tokens if usage else 0,
        completion_tokens=usage.completion_tokens if usage else 0,
        cached_tokens=usage.cached_tokens if usage else 0,
        bill_usd=sums.bill_usd,
        device_energy_j=sums.device_energy_j,
        policy_cost=sums.policy_cost,
        text_chars=sum(map(len, state.parts)),
        began_s=None if state.began_at is None else state.began_at - t0,
        bytes_up=state.traffic.bytes_up,
        bytes_down=state.traffic.bytes_down,
        text_bytes=len("".join(state.parts).encode("utf-8", "surrogatepass")),
        paused_s=sum(_paused_s(session, h) for h in session.migrations if h.source == state.number),
        speculation=None if state.speculation is None else state.speculation.moved(-t0),
        longest_gap_s=state.longest_gap_s,
        doubted_s=None if state.doubted_at is None else state.doubted_at - t0,
        read_s=None if state.prompt_read is None else state.prompt_read[0] - t0,
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
        "continued_by": seam.method,
    }


def _segments(session: Session) -> tuple[SegmentRecord, ...]:
    delivered = session.transcript.text
    out = []
    parts = session.transcript.segments
    ends = [*(s.start for s in parts[1:]), math.inf]
    for segment, next_start in zip(parts, ends, strict=False):
        start, state = segment.start, segment.writer
        # A cancelled answer may not have reached its last segment.
        end = int(min(next_start, len(delivered)))
        if end <= start:
            continue
        written = "".join(state.parts)[start - len(state.prefix.text) :][: end - start]
        out.append(
            SegmentRecord(
                attempt=state.number,
                endpoint=state.candidate.name,
                start_char=start,
                end_char=end,
                written_crc32=zlib.crc32(written.encode()),
                delivered_crc32=zlib.crc32(delivered[start:end].encode()),
            )
        )
    return tuple(out)


def _winner(session: Session, segments: tuple[SegmentRecord, ...]) -> str | None:
    """Return the name of the endpoint whose content the reader got first; text counts before calls and reasoning."""
    if segments:
        return segments[0].endpoint
    first = session.transcript.first_writer
    return first.candidate.name if first is not None and session.transcript.released else None


def _migrations(session: Session) -> tuple[MigrationRecord, ...]:
    t0, pace, released = session.started_at, session.config.pace_tps, session.transcript.released
    out = []
    for h in session.migrations:
        late = 0
        if h.outcome == "switched" and pace is not None and released:
            after_cut = reader_metrics.lateness_s(tuple(released), pace)[h.cut_tokens :]
            late = sum(late_s > reader_metrics.TOLERANCE_S for late_s in after_cut)
        out.append(
            MigrationRecord(
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
                reason=h.reason,
                paused_s=_paused_s(session, h),
                wasted_tokens=_wasted_tokens(h),
            )
        )
    return tuple(out)


def _paused_s(session: Session, migration: RunningMigration) -> float:
    if not migration.paused:
        return 0.0
    ends_at = (migration.resumed_at, migration.switched_at, session.attempts[migration.source].ended_at)
    return min(at for at in ends_at if at is not None) - migration.decided_at


def _wasted_tokens(migration: RunningMigration) -> int:
    if migration.outcome != "switched" or migration.rises:
        return 0
    return sum(d.tokens for d in migration.beyond if d.kind is not DeltaKind.ROLE)


def _judgements(session: Session) -> tuple[JudgementRecord, ...]:
    judges = session.rise, session.assist
    return tuple(_judgement(session, j) for one in judges if one is not None for j in one.judgements)


def _judgement(session: Session, judgement: Judgement) -> JudgementRecord:
    verdict = judgement.verdict
    facts: dict[str, Any] = {}
    if verdict is not None:
        facts = {
            "number": verdict.number,
            "window": verdict.window,
            "beta": verdict.beta,
            "rule": verdict.rule,
        }
    return JudgementRecord(
        attempt=judgement.attempt,
        endpoint=session.attempts[judgement.attempt].candidate.name,
        task=judgement.task,
        model=judgement.model,
        kind=judgement.kind,
        outcome=judgement.outcome,
        why=judgement.why,
        score=None if verdict is None else verdict.score,
        threshold=None if verdict is None else verdict.threshold,
        history=0 if verdict is None else verdict.history,
        tokens=judgement.tokens,
        at_s=judgement.at - session.started_at,
        **facts,
    )


def _pace(
    session: Session, generated: tuple[tuple[float, int], ...], released: tuple[tuple[float, int], ...]
) -> LatencyRecord:
    raw, shown = reader_metrics.gaps(generated), reader_metrics.gaps(released)
    pace_tps, pace = session.config.pace_tps, session.transcript.playback.pace
    by_sentences = pace is not None and pace.release == "sentence" and session.config.streams
    silences_s = reader_metrics.silences_s(released, pace.tps) if pace is not None and by_sentences else []
    return LatencyRecord(
        ttft_raw_s=_known(reader_metrics.ttft_s(generated, 0.0)),
        ttft_released_s=_known(reader_metrics.ttft_s(released, 0.0)),
        tbt_raw_p50_s=_known(raw.p50_s),
        tbt_raw_p99_s=_known(raw.p99_s),
        tbt_released_p50_s=_known(shown.p50_s),
        tbt_released_p99_s=_known(shown.p99_s),
        late_tokens=reader_metrics.late_tokens(released, pace_tps) if pace_tps else 0,
        pace_tps=pace_tps,
        release="sentence" if by_sentences else "word",
        pieces=sum(1 for _, tokens in released if tokens) if by_sentences else 0,
        silences=sum(1 for silence_s in silences_s if silence_s),
        silent_s=sum(silences_s),
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
