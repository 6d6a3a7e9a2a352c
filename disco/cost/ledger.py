"""The ledger of one answer: what each endpoint was charged for, losers and repeated prefills included."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from disco.rates import Rates

__all__ = ["Charge", "Ledger", "Phase", "Totals"]


class Phase(StrEnum):
    """Why tokens were processed. Every token is charged in exactly one phase.

    An attempt may have charges in several phases. A migration target's prefill is MIGRATION, its text that the reader
    gets is ANSWER, and its text that is not used is DISCARDED.
    """

    ANSWER = "answer"  # the first writer's prompt; every token that reached the reader
    RACE_LOSER = "race_loser"  # an attempt that did not win the race and kept nothing
    PARKED = "parked"  # a loser's prefill, finished and kept for a migration
    MIGRATION = "migration"  # prompt and prefix, processed by the target of a migration
    FAILOVER = "failover"  # prompt and prefix, processed by the replacement of a failed attempt
    FAILED = "failed"  # what a failed attempt processed and the reader did not get
    OVERRULED = "overruled"  # an answer that was judged and replaced by that of a higher tier
    DRAFT = "draft"  # what a drafter read and guessed, and what a verify server computed for wrong guesses
    HEDGE = (
        "hedge"  # started because another endpoint was silent for unusually long, and not needed after all
    )
    PROBE = "probe"  # to find out whether an endpoint continues half-written answers
    DISCARDED = "discarded"  # written and never shown: after a cut, an echo, after the reader left


class Charge(NamedTuple):
    """Tokens that one attempt processed in one phase, and what they cost.

    Attributes:
        attempt: the attempt's number within the answer, from 0; None: a probe in the background, which was made since
            the answer before and belongs to no answer.
        endpoint: the endpoint's name.
        phase: what the tokens were processed for.
        prompt_tokens, cached_tokens: tokens of prompt and prefix, and how many of them were not computed again.
        completion_tokens: tokens generated.
        bill_usd: money paid to a server, USD; 0 for what a machine of the user's own did for its energy alone.
        device_energy_j: energy of the user's own machines, J: measured if the device's profile has its energy, else
            estimated from its FLOPs; None where it is not known.
        policy_cost: what policies count, USD: the money, or the energy at the preset's exchange rate.
    """

    attempt: int | None
    endpoint: str
    phase: Phase
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    bill_usd: float
    device_energy_j: float | None
    policy_cost: float

    @classmethod
    def of(
        cls,
        attempt: int | None,
        endpoint: str,
        phase: Phase,
        rates: Rates,
        prompt_tokens: int,
        completion_tokens: int,
        cached_tokens: int = 0,
        cache_write_tokens: int = 0,
    ) -> Charge:
        """Return the charge for tokens that were processed.

        Args:
            attempt: the attempt's number within the answer, from 0; None: of no answer.
            endpoint: the endpoint's name.
            phase: what the tokens were processed for.
            rates: what a token costs there.
            prompt_tokens: prompt and prefix, cached ones included.
            completion_tokens: tokens generated.
            cached_tokens: prompt tokens that were not computed again.
            cache_write_tokens: prompt tokens that were written into a cache, which may cost more.
        """
        tokens = prompt_tokens, completion_tokens, cached_tokens
        cost = rates.cost(*tokens, cache_write_tokens)
        return cls(
            attempt,
            endpoint,
            phase,
            *tokens,
            bill_usd=cost if rates.is_money else 0.0,
            device_energy_j=rates.energy_j(*tokens),
            policy_cost=cost,
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over charges.

    Attributes:
        prompt_tokens: tokens of prompts and prefixes, cached ones included.
        completion_tokens: tokens generated.
        cached_tokens: tokens of prompts that were not computed again.
        bill_usd, device_energy_j, policy_cost: as in `Charge`, USD, J and USD; the energy is None if that of any charge
            is not known.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    bill_usd: float = 0.0
    device_energy_j: float | None = 0.0
    policy_cost: float = 0.0

    @classmethod
    def of(cls, charges: Iterable[Charge]) -> Totals:
        """Return the sums over these charges, correctly rounded."""
        charges = list(charges)
        energies = [charge.device_energy_j for charge in charges]
        known = [energy_j for energy_j in energies if energy_j is not None]
        return cls(
            prompt_tokens=sum(charge.prompt_tokens for charge in charges),
            completion_tokens=sum(charge.completion_tokens for charge in charges),
            cached_tokens=sum(charge.cached_tokens for charge in charges),
            bill_usd=math.fsum(charge.bill_usd for charge in charges),
            device_energy_j=math.fsum(known) if len(known) == len(energies) else None,
            policy_cost=math.fsum(charge.policy_cost for charge in charges),
        )


class Ledger:
    """The charges of one answer, in the order in which they were made.

    The totals are computed from the charges each time (correctly rounded), so the two cannot disagree.

    Mutable: `_charges`, which only grows.
    """

    __slots__ = ("_charges", "_rates")

    def __init__(self, rates: Mapping[str, Rates]) -> None:
        """Make an empty ledger. `rates`: what a token costs, by endpoint name."""
        self._rates = dict(rates)
        self._charges: list[Charge] = []

    def charge(
        self,
        *,
        attempt: int,
        endpoint: str,
        phase: Phase,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        cached_tokens: int = 0,
        cache_write_tokens: int = 0,
    ) -> Charge:
        """Enter what an attempt processed.

        Args:
            attempt: the attempt's number within the answer, from 0.
            endpoint: the endpoint's name in the rates.
            phase: what the tokens were processed for.
            prompt_tokens: prompt and prefix, cached ones included.
            completion_tokens: tokens generated.
            cached_tokens: cached prompt tokens; a number above `prompt_tokens` (some servers count in another way)
                is lowered to it.
            cache_write_tokens: prompt tokens that were written into a cache; lowered to those that are not cached.

        Raises:
            KeyError: the endpoint has no rates.
            ValueError: a negative number.
        """
        if min(attempt, prompt_tokens, completion_tokens, cached_tokens, cache_write_tokens) < 0:
            raise ValueError("attempt numbers and token counts must not be negative")
        cached = min(cached_tokens, prompt_tokens)
        rates = self._rates[endpoint]
        tokens = prompt_tokens, completion_tokens, cached, min(cache_write_tokens, prompt_tokens - cached)
        entry = Charge.of(attempt, endpoint, phase, rates, *tokens)
        self._charges.append(entry)
        return entry

    def enter(self, charge: Charge) -> None:
        """Enter a charge that was made elsewhere."""
        self._charges.append(charge)

    @property
    def rates(self) -> Mapping[str, Rates]:
        """What a token costs, by endpoint name."""
        return MappingProxyType(self._rates)

    @property
    def charges(self) -> tuple[Charge, ...]:
        """All charges so far."""
        return tuple(self._charges)

    def totals(self) -> Totals:
        """Return the sums over all charges, of every endpoint and phase."""
        return Totals.of(self._charges)

    def by_endpoint(self) -> dict[str, Totals]:
        """Return the sums for each endpoint that was charged, in the order of first charges."""
        groups: dict[str, list[Charge]] = {}
        for charge in self._charges:
            groups.setdefault(charge.endpoint, []).append(charge)
        return {name: Totals.of(charges) for name, charges in groups.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the charges and their totals as plain numbers and names."""
        totals = self.totals()
        return {
            "bill_usd": totals.bill_usd,
            "device_energy_j": totals.device_energy_j,
            "policy_cost": totals.policy_cost,
            "charges": [{**charge._asdict(), "phase": charge.phase.value} for charge in self._charges],
        }
