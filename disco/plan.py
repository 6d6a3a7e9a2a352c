"""What dispatch decides for one request, and what it knows of each endpoint: plain data for every room."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from disco._moved import former_names
from disco.rates import Rates

__all__ = [
    "BudgetCut",
    "Candidate",
    "CoolDown",
    "Migration",
    "Payer",
    "Place",
    "Plan",
    "Reach",
    "Start",
    "place_of",
]

Reach = Literal["device", "own", "any"]
"""How far a prompt travels to an endpoint: not off this machine, to the user's own machines, or anywhere."""

Place = Literal["device", "server"]
"""This machine, or not."""

_FREE = Rates()


def place_of(reach: Reach) -> Place:
    """Where an endpoint of that reach is."""
    return "device" if reach == "device" else "server"


class Payer(NamedTuple):
    """One party that an endpoint's work is charged to: itself, or a part of it where it is made of several.

    Attributes:
        name: what charges and limits call it.
        place: "device" or "server".
        rates: what a token costs there.
    """

    name: str
    place: Place
    rates: Rates


@dataclass(frozen=True, slots=True)
class Candidate:
    """One endpoint as dispatch and session see it for one request: numbers only.

    Attributes:
        name: the endpoint's name.
        reach: how far the prompt travels to it.
        rates: unified cost per token (money, after the exchange rate).
        prefill_tps: prompt tokens per second; `inf` where prefill time does not depend on length.
        overhead_s: fixed part of the time to its first token (`c` of the paper; of a server a slow TTFT).
        load_s: time to load its model before that; 0 when it is loaded.
        queue_s: expected wait for its turn before that; 0 where it has none or does not say.
        decode_tps: generated tokens per second.
        continues: it can continue a half-written answer.
        parks: it can finish a prefill and keep it without writing.
        announces: it says when its work begins (`events.Started`): waiting for its turn is no silence.
        context_tokens: prompt and answer together; None when unknown.
        vocabulary: tokenizer fingerprint, None when unknown.
        standby: it serves only where no other endpoint of its place may, however cheap it is.
        rank: its place in the user's order of endpoints, from the smallest model (0) to the best.
        parts: the payers, where it is made of several endpoints; empty: it is its own payer.
    """

    name: str
    reach: Reach
    rates: Rates = _FREE
    prefill_tps: float = float("inf")
    overhead_s: float = 0.0
    load_s: float = 0.0
    queue_s: float = 0.0
    decode_tps: float = 30.0
    continues: bool = False
    parks: bool = False
    announces: bool = False
    context_tokens: int | None = None
    vocabulary: str | None = None
    standby: bool = False
    rank: int = 0
    parts: tuple[Payer, ...] = ()

    @property
    def place(self) -> Place:
        """Whether it is this machine ("device") or not ("server")."""
        return place_of(self.reach)

    @property
    def payers(self) -> tuple[Payer, ...]:
        """The parties that its work is charged to."""
        return self.parts or (Payer(self.name, self.place, self.rates),)

    def time_to_first_token_s(self, tokens: int) -> float:
        """Expected time until it writes, given `tokens` it has still to prefill (paper: T_d = k·l + c)."""
        return self.queue_s + self.load_s + self.overhead_s + tokens / self.prefill_tps


@dataclass(frozen=True, slots=True)
class Start:
    """Start `endpoint` `after_s` seconds after the request came, if no endpoint has written by then."""

    endpoint: str
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Migration:
    """Hand the answer from one endpoint to another in mid-sentence once it pays.

    `session/switching/migration_rule.py` has the rule.

    `keep_prefill`: when the target lost the race, let it finish and keep its prefill instead of throwing it
    away, because this move is likely.
    """

    target: str
    keep_prefill: bool = True


@dataclass(frozen=True, slots=True)
class CoolDown:
    """Why an endpoint is deprioritised: it serves the request only where no other endpoint may.

    Attributes:
        endpoint: its name.
        reason: "failures" (its breaker is open), "rate_limit" (it asked to be left alone), "probed" (the cool-down is
            over, and another request is trying it), "offline" (this machine has no route to it).
        failure: class of the last failure that counted; None when offline.
        failures: how many of them led to this cool-down.
        for_s: how much longer the cool-down takes, seconds; None where that is not known.
    """

    endpoint: str
    reason: Literal["failures", "rate_limit", "probed", "offline"]
    failure: str | None = None
    failures: int = 0
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class BudgetCut:
    """What an absolute budget removed from a plan (`dispatch/within_budget.py`).

    Attributes:
        endpoint: the one that a budget limits.
        what: "hedge" (a start in addition to another one), "start" (of an answer), "move" (a migration there).
        why: "low" (what is left is kept for what needs it), "spent" (too little is left), "unknown" (nothing is known
            yet of how soon it writes).
    """

    endpoint: str
    what: Literal["hedge", "start", "move"]
    why: Literal["low", "spent", "unknown"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Which endpoints start when, which may take over, and where the answer may move.

    Attributes:
        starts: at least one; the earliest need not come first.
        fallbacks: endpoints that may replace a failed one, in order of preference; never names an
            endpoint the request may not use.
        migrations: by the name of the endpoint that is writing; absent means it keeps the answer.
        order: "make_before_break" keeps the source writing until the target's first token is here;
            "break_before_make" stops it at the cut (cheaper, and the reader may notice).
        deprioritised: endpoints that stand last among the fallbacks only because they cool down.
        budget_cuts: what a budget removed from it.
        wants: what attempts are asked for besides their text: "logp" (log probabilities for disco's own use).
    """

    starts: tuple[Start, ...]
    fallbacks: tuple[str, ...] = ()
    migrations: Mapping[str, Migration] = field(default_factory=dict)
    order: Literal["make_before_break", "break_before_make"] = "make_before_break"
    deprioritised: tuple[CoolDown, ...] = ()
    budget_cuts: tuple[BudgetCut, ...] = ()
    wants: frozenset[str] = frozenset()


if not TYPE_CHECKING:  # a type checker finds the former names
    __getattr__ = former_names("plan")
