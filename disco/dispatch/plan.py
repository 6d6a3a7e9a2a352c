"""What dispatch decides for one request, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Candidate", "Move", "Plan", "Rest", "Start", "Withheld"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One endpoint as dispatch and session see it for one request: numbers only.

    Attributes:
        name: the endpoint's name.
        place: "device" or "server".
        cost_in, cost_out: unified cost per prompt / generated token (money, after the exchange rate).
        prefill_tps: prompt tokens per second; `inf` where prefill time does not depend on length.
        overhead_s: fixed part of the time to its first token (`c` of the paper; of a server a slow TTFT).
        load_s: time to load its model before that; 0 when it is loaded.
        decode_tps: generated tokens per second.
        continues: it can continue a half-written answer.
        context_tokens: prompt and answer together; None when unknown.
        vocabulary: tokenizer fingerprint, None when unknown.
        standby: it serves only where nobody else of its place may, however cheap it is.
    """

    name: str
    place: Literal["device", "server"]
    cost_in: float = 0.0
    cost_out: float = 0.0
    prefill_tps: float = float("inf")
    overhead_s: float = 0.0
    load_s: float = 0.0
    decode_tps: float = 30.0
    continues: bool = False
    context_tokens: int | None = None
    vocabulary: str | None = None
    standby: bool = False

    def time_to_first_token_s(self, tokens: int) -> float:
        """Expected time until it writes, given `tokens` it has still to prefill (paper: T_d = k·l + c)."""
        return self.load_s + self.overhead_s + tokens / self.prefill_tps


@dataclass(frozen=True, slots=True)
class Start:
    """Start `endpoint` `after_s` seconds after the request came, if nobody has written by then."""

    endpoint: str
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Move:
    """Hand the answer from one endpoint to another in mid-sentence once it pays (`session/migration.py`).

    `keep_prefill`: when the target lost the race, let it finish and keep its prefill instead of throwing it
    away, because this move is likely.
    """

    target: str
    keep_prefill: bool = True


@dataclass(frozen=True, slots=True)
class Rest:
    """Why an endpoint that may serve a request is left alone as long as somebody else may serve it, too.

    Attributes:
        endpoint: its name.
        reason: "failures" (its breaker is open), "rate_limit" (it asked to be left alone), "probed" (the rest is
            over, and another request is trying it), "offline" (this machine has no route to it).
        failure: class of the last failure that counted; None when offline.
        failures: how many of them led to this rest.
        for_s: how much longer it rests, seconds; None where that is not known.
    """

    endpoint: str
    reason: Literal["failures", "rate_limit", "probed", "offline"]
    failure: str | None = None
    failures: int = 0
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Withheld:
    """What an absolute budget took out of a plan (`dispatch/within_budget.py`).

    Attributes:
        endpoint: whose work is limited.
        what: "hedge" (a start in addition to another one), "start" (of an answer), "move" (there).
        why: "low" (what is left is kept for what needs it), "spent" (too little is left), "unknown" (nothing is known
            yet of how soon it writes).
    """

    endpoint: str
    what: Literal["hedge", "start", "move"]
    why: Literal["low", "spent", "unknown"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Who starts when, who may take over, and where the answer may move.

    Attributes:
        starts: at least one; the earliest need not come first.
        fallbacks: endpoints that may replace a failed one, in order of preference; never names an
            endpoint the request may not use.
        moves: by the name of the endpoint that is writing; absent means it keeps the answer.
        order: "make_before_break" keeps the source writing until the target's first token is here;
            "break_before_make" stops it at the cut (cheaper, and the reader may notice).
        rested: endpoints that stand last among the fallbacks only because they rest.
        withheld: what a budget took out of it.
    """

    starts: tuple[Start, ...]
    fallbacks: tuple[str, ...] = ()
    moves: Mapping[str, Move] = field(default_factory=dict)
    order: Literal["make_before_break", "break_before_make"] = "make_before_break"
    rested: tuple[Rest, ...] = ()
    withheld: tuple[Withheld, ...] = ()
