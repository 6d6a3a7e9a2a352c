"""What is said of an answer that is divided between a writer and its heir: while it goes on, and in its record."""

from __future__ import annotations

from dataclasses import dataclass

from disco.session.machine import Session

__all__ = ["AssistRecord", "AssistState", "assist_record", "assist_state"]


@dataclass(frozen=True, slots=True)
class AssistRecord:
    """The assist of one answer. Times are seconds since the request.

    Attributes:
        outcome: "undivided" (the policy did not divide the answer), or how it went; see
            `session.switching.assist.AssistOutcome`.
        why: why the policy did not divide it (`dispatch.assist.Undivided`); None where it did.
        writer, heir: endpoint names; None where the answer was not divided.
        tokens: the writer's limit, tokens.
        over_limit: whether the writer wrote more than that.
        read_s: when the heir had read the prompt; None where it had not, or wrote first.
        agreement: mean log probability (natural), under the heir's model, of the writer's tokens that it has read; None
            where that is not known.
        agreement_tokens: how many tokens, as the heir's tokenizer counts them.
        tempos: [time, tokens/s] of each change of the rate at which text was shown; None: about as it came.
    """

    outcome: str
    why: str | None = None
    writer: str | None = None
    heir: str | None = None
    tokens: int = 0
    over_limit: bool = False
    read_s: float | None = None
    agreement: float | None = None
    agreement_tokens: int = 0
    tempos: tuple[tuple[float, float | None], ...] = ()


@dataclass(frozen=True, slots=True)
class AssistState:
    """A divided answer as it stands.

    Attributes:
        outcome: "running" while the writer's part lasts, then how it went; see `AssistRecord`.
        writer, heir: endpoint names.
        tokens: the writer's limit, tokens.
        written_tokens: tokens that the writer has written.
        read_tokens: tokens that the heir has read, of the prompt and of what it was given of the answer.
        total_tokens: how many tokens that is in all; an estimate before the heir has reported.
        prefill_tps: the speed at which the heir reads, tokens/s; 0 where it is not known yet.
        tempo_tps: the rate at which text is shown, tokens/s; None: about as it comes.
    """

    outcome: str
    writer: str
    heir: str
    tokens: int
    written_tokens: int
    read_tokens: int
    total_tokens: int
    prefill_tps: float
    tempo_tps: float | None


def assist_state(session: Session) -> AssistState | None:
    """Return the assist of a session at any time; None where its answer is not divided."""
    assist, control = session.plan.assist, session.assist
    if assist is None or control is None:
        return None
    progress = control.heir_progress
    return AssistState(
        outcome=control.outcome,
        writer=assist.writer,
        heir=assist.heir,
        tokens=assist.tokens,
        written_tokens=0 if control.writer is None else control.writer.tokens,
        read_tokens=0 if progress is None else progress.tokens_done,
        total_tokens=session.config.prompt_tokens if progress is None else progress.tokens_total,
        prefill_tps=0.0 if progress is None else progress.prefill_tps,
        tempo_tps=control.tempos[-1][1] if control.tempos else None,
    )


def assist_record(session: Session) -> AssistRecord | None:
    """Return the assist of a closed session; None under a policy that divides no answers."""
    plan, control = session.plan, session.assist
    if plan.assist is None or control is None:
        return None if plan.undivided is None else AssistRecord("undivided", plan.undivided)
    total, tokens = session.parts.follower.agreement
    t0 = session.started_at
    return AssistRecord(
        outcome=control.outcome if control.outcome != "running" else "ended",
        writer=plan.assist.writer,
        heir=plan.assist.heir,
        tokens=plan.assist.tokens,
        over_limit=control.over_cap,
        read_s=None if control.read_at is None else round(control.read_at - t0, 6),
        agreement=total / tokens if tokens else None,
        agreement_tokens=tokens,
        tempos=tuple(
            (round(at - t0, 4), tps if tps is None else round(tps, 2)) for at, tps in control.tempos
        ),
    )
