"""What is said of an answer while it is written."""

from __future__ import annotations

from dataclasses import dataclass

from disco.events import Usage
from disco.session.attempt.attempt_state import AttemptState
from disco.session.machine import Session

__all__ = ["AnswerProgress", "answer_progress"]


@dataclass(frozen=True, slots=True)
class AnswerProgress:
    """An answer as it stands: numbers and names, never text.

    Attributes:
        writer: name of the endpoint that writes now; None before the first word, and where the answer begins again.
            Text is shown later than it is written, so this may be another one than wrote what is shown.
        running: names of all endpoints that work on the answer now, in the order in which they started: the writer,
            competitors of a race, the target of a migration.
        tokens: tokens of the answer that are written, shown or not.
        buffered_tokens: tokens that are written but not yet shown: the bank.
        buffered_s: how long a reader takes for these at the preset's pace, s; None where there is no pace.
        cost: what all attempts have cost so far, in unified money (USD). An estimate until the answer is complete; None
            where it is not known.
    """

    writer: str | None
    running: tuple[str, ...]
    tokens: int
    buffered_tokens: int
    buffered_s: float | None
    cost: float | None


def answer_progress(session: Session, buffered_tokens: int) -> AnswerProgress:
    """Return how far the answer of a session has come, at any time.

    Args:
        session: the answer's.
        buffered_tokens: tokens that are written but not yet given to the application.
    """
    transcript, pace_tps = session.transcript, session.config.pace_tps
    writer = transcript.writer
    running = [state.candidate.name for state in session.attempts if state.active]
    return AnswerProgress(
        writer=None if writer is None else writer.candidate.name,
        running=tuple(dict.fromkeys(running)),
        tokens=transcript.tokens,
        buffered_tokens=buffered_tokens,
        buffered_s=buffered_tokens / pace_tps if pace_tps else None,
        cost=sum(_cost(session, state) for state in session.attempts),
    )


def _cost(session: Session, state: AttemptState) -> float:
    """Return what an attempt has cost so far; an attempt that still runs: its prompt and what it has written."""
    rates = {payer.name: payer.rates for payer in state.candidate.payers}
    name, usage = state.candidate.name, state.usage
    if usage is None:
        prompt_tokens = session.config.prompt_tokens + state.prefix.tokens
        usage = Usage(prompt_tokens, state.tokens) if not state.stopped else Usage()
    shares = usage.shares or ((name if name in rates else next(iter(rates)), usage),)
    return sum(
        rates[payer].cost(share.prompt_tokens, share.completion_tokens, share.cached_tokens)
        for payer, share in shares
    )
