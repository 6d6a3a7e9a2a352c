"""From a finished session to its ledger: every token of every attempt charged in exactly one phase."""

from __future__ import annotations

from collections.abc import Mapping

from disco.cost import Ledger, Phase, Rates
from disco.session.attempts import AttemptState, Outcome, Role
from disco.session.machine import Session

__all__ = ["settle_accounts"]

_PROMPT_OF_ROLE = {Role.STARTER: Phase.ANSWER, Role.TARGET: Phase.MIGRATION, Role.TAKEOVER: Phase.FAILOVER}
_PROMPT_OF_IDLE = {
    Outcome.LOST: Phase.RACE_LOSER,
    Outcome.PARKED: Phase.PARKED,
    Outcome.ABANDONED: Phase.MIGRATION,
    Outcome.FAILED: Phase.FAILED,
    Outcome.CANCELLED: Phase.DISCARDED,
}
_UNKEPT = {Outcome.LOST: Phase.RACE_LOSER, Outcome.FAILED: Phase.FAILED}


def settle_accounts(session: Session, rates: Mapping[str, Rates]) -> Ledger:
    """Charge every attempt for what it used.

    Args:
        session: closed, so that every attempt has its final usage.
        rates: unified cost per token by endpoint name.
    """
    ledger = Ledger(rates)
    for state in session.attempts:
        usage = state.usage
        if usage is None:
            continue
        kept = _kept(state, usage.completion_tokens)
        entry = {"attempt": state.number, "endpoint": state.candidate.name}
        ledger.charge(
            **entry,  # type: ignore[arg-type]
            phase=_prompt_phase(state),
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
        )
        if kept:
            ledger.charge(**entry, phase=Phase.ANSWER, completion_tokens=kept)  # type: ignore[arg-type]
        if usage.completion_tokens > kept:
            phase = _UNKEPT.get(state.outcome, Phase.DISCARDED)
            rest = usage.completion_tokens - kept
            ledger.charge(**entry, phase=phase, completion_tokens=rest)  # type: ignore[arg-type]
    return ledger


def _kept(state: AttemptState, completion_tokens: int) -> int:
    """Tokens that are in the answer, in the unit of the bill.

    A server bills tokens but sends chunks: where all of it was kept, all that is billed was.
    """
    if state.kept_tokens == state.tokens:
        return completion_tokens if state.tokens else 0
    return min(state.kept_tokens, completion_tokens)


def _prompt_phase(state: AttemptState) -> Phase:
    if state.kept_tokens or state.outcome in (Outcome.FINISHED, Outcome.HANDED_OVER):
        return _PROMPT_OF_ROLE[state.role]
    return _PROMPT_OF_IDLE[state.outcome]
