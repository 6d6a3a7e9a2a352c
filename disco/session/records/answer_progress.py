"""What is said of an answer while it is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from disco.cost import Charge, Phase, Totals
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
        bill_usd: the money that all attempts have cost so far, USD. An estimate until the answer is complete;
            None where it is not known.
        device_energy_j: the energy of the user's own machines so far, J; None where it is not known.
    """

    writer: str | None
    running: tuple[str, ...]
    tokens: int
    buffered_tokens: int
    buffered_s: float | None
    bill_usd: float | None
    device_energy_j: float | None


def answer_progress(session: Session, buffered_tokens: int) -> AnswerProgress:
    """Return how far the answer of a session has come, at any time.

    Args:
        session: the answer's.
        buffered_tokens: tokens that are written but not yet given to the application.
    """
    transcript, pace_tps = session.transcript, session.config.pace_tps
    writer = transcript.writer
    running = [state.candidate.name for state in session.attempts if state.active]
    sums = Totals.of(charge for state in session.attempts for charge in _charges(session, state))
    return AnswerProgress(
        writer=None if writer is None else writer.candidate.name,
        running=tuple(dict.fromkeys(running)),
        tokens=transcript.tokens,
        buffered_tokens=buffered_tokens,
        buffered_s=buffered_tokens / pace_tps if pace_tps else None,
        bill_usd=sums.bill_usd,
        device_energy_j=sums.device_energy_j,
    )


def _charges(session: Session, state: AttemptState) -> Iterator[Charge]:
    """Yield what an attempt has cost so far; an attempt that still runs: its prompt and what it has written."""
    rates = {payer.name: payer.rates for payer in state.candidate.payers}
    name, usage = state.candidate.name, state.usage
    if usage is None:
        prompt_tokens = session.config.prompt_tokens + state.prefix.tokens
        usage = Usage(prompt_tokens, state.tokens) if not state.stopped else Usage()
    shares = usage.shares or ((name if name in rates else next(iter(rates)), usage),)
    for payer, share in shares:
        tokens = share.prompt_tokens, share.completion_tokens, share.cached_tokens, share.cache_write_tokens
        yield Charge.of(state.number, payer, Phase.ANSWER, rates[payer], *tokens)
