"""What a route record says of an answer that was divided between a writer and its heir, or might have been."""

from __future__ import annotations

from dataclasses import dataclass

from disco.session.machine import Session

__all__ = ["AssistRecord", "assist_record"]


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
        tempos: [time, tokens/s] of each change of the rate at which text was shown; null: as it came.
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
