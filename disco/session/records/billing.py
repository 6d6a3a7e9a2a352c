"""Makes the ledger of a finished session: every token of every attempt is charged in exactly one phase."""

from __future__ import annotations

from dataclasses import replace

from disco.cost import Ledger, Phase
from disco.events import Usage
from disco.session.attempt.attempt_state import AttemptOutcome, AttemptState, Role
from disco.session.machine import Session

__all__ = ["settle_accounts"]

_PROMPT_OF_ROLE = {
    Role.STARTER: Phase.ANSWER,
    Role.TARGET: Phase.MIGRATION,
    Role.TAKEOVER: Phase.FAILOVER,
    Role.RISE: Phase.ANSWER,
    Role.HEDGE: Phase.ANSWER,
    Role.HEIR: Phase.FAILOVER,
}
_PROMPT_OF_IDLE = {
    AttemptOutcome.LOST: Phase.RACE_LOSER,
    AttemptOutcome.PARKED: Phase.PARKED,
    AttemptOutcome.OVERRULED: Phase.OVERRULED,
    AttemptOutcome.ABANDONED: Phase.MIGRATION,
    AttemptOutcome.FAILED: Phase.FAILED,
    AttemptOutcome.CANCELLED: Phase.DISCARDED,
}
_ON_SILENCE = (Role.HEDGE, Role.HEIR)
_NOT_NEEDED = (AttemptOutcome.LOST, AttemptOutcome.ABANDONED)
_UNKEPT = {
    AttemptOutcome.LOST: Phase.RACE_LOSER,
    AttemptOutcome.FAILED: Phase.FAILED,
    AttemptOutcome.OVERRULED: Phase.OVERRULED,
}


def settle_accounts(session: Session) -> Ledger:
    """Charge every attempt for what it used, at the rates of its candidate.

    Args:
        session: a closed one, so that every attempt has its final usage.
    """
    ledger = Ledger({payer.name: payer.rates for c in session.candidates.values() for payer in c.payers})
    for state in session.attempts:
        if state.usage is not None:
            for payer, usage in _shares(state, state.usage):
                _charge(ledger, state, payer, usage, session.transcript.kept_tokens(state))
    return ledger


def _shares(state: AttemptState, usage: Usage) -> tuple[tuple[str, Usage], ...]:
    """Return the usage of each payer: of each part where an endpoint is made of several, else of the endpoint."""
    return usage.shares or ((state.candidate.name, usage),)


def _charge(ledger: Ledger, state: AttemptState, payer: str, usage: Usage, kept_tokens: int) -> None:
    probed = usage.probed
    if any(probed):
        ledger.charge(
            attempt=state.number,
            endpoint=payer,
            phase=Phase.PROBE,
            prompt_tokens=probed[0],
            completion_tokens=probed[1],
        )
        usage = replace(
            usage,
            prompt_tokens=usage.prompt_tokens - probed[0],
            completion_tokens=usage.completion_tokens - probed[1],
        )
    if any(usage.drafted):
        read, guessed, cached = usage.drafted
        ledger.charge(
            attempt=state.number,
            endpoint=payer,
            phase=Phase.DRAFT,
            prompt_tokens=read,
            completion_tokens=guessed,
            cached_tokens=cached,
        )
        usage = Usage(
            usage.prompt_tokens - read, usage.completion_tokens - guessed, usage.cached_tokens - cached
        )
        if usage == Usage():  # it only drafted
            return
    kept = _kept(state, kept_tokens, usage.completion_tokens)
    ledger.charge(
        attempt=state.number,
        endpoint=payer,
        phase=_prompt_phase(state, kept_tokens),
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )
    if kept:
        ledger.charge(attempt=state.number, endpoint=payer, phase=Phase.ANSWER, completion_tokens=kept)
    if usage.completion_tokens > kept:
        phase = Phase.HEDGE if _is_vain_hedge(state) else _UNKEPT.get(state.outcome, Phase.DISCARDED)
        rest = usage.completion_tokens - kept
        ledger.charge(attempt=state.number, endpoint=payer, phase=phase, completion_tokens=rest)


def _kept(state: AttemptState, kept_tokens: int, completion_tokens: int) -> int:
    """Return how many of the billed completion tokens are in the answer.

    A server bills tokens but sends chunks. Where everything that an attempt wrote was kept, all billed tokens count
    as kept.
    """
    if kept_tokens == state.tokens:
        return completion_tokens if state.tokens else 0
    return min(kept_tokens, completion_tokens)


def _prompt_phase(state: AttemptState, kept_tokens: int) -> Phase:
    if kept_tokens or state.outcome in (AttemptOutcome.FINISHED, AttemptOutcome.HANDED_OVER):
        goes_on = state.role is Role.RISE and state.prefix
        return Phase.MIGRATION if goes_on else _PROMPT_OF_ROLE[state.role]
    if _is_vain_hedge(state):
        return Phase.HEDGE
    return _PROMPT_OF_IDLE[state.outcome]


def _is_vain_hedge(state: AttemptState) -> bool:
    """Whether the attempt was started on a silence, and whoever was silent has written first."""
    return state.role in _ON_SILENCE and state.outcome in _NOT_NEEDED
