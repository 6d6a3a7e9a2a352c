"""The migration rule: whether to move an answer to a cheaper endpoint in mid-sentence, and when.

Numbers only. Symbols: n tokens written by the source, p prompt tokens, R tokens still to come, `r_s, r_t`
decode rates of source and target, `r_c` reading pace, v_t the target's prefill rate, t_0 its fixed overhead,
`t_m = t_0 + (p + n)/v_t` the time a migration takes until the target's first token, S the slack: how long
until the reader needs the next token.

Money: with `Δc = c_s − c_t` saved per token, `C(n) = C_0 + c_in·(p + n)` the price of moving and h the hazard (the
probability that the answer ends with the next token), move when `E[R_n]·Δc >= C(n)` (moving beats staying) and
`h·C(n) − (1−h)·c_in <= Δc` (moving now beats moving after the next token). For hazards that do not fall with length,
both conditions together are the optimal stopping rule (the tests compare it with the exact table). Otherwise both are
necessary.

Time: no token is late when `S >= t_m` (`r_t >= r_c`), or `S >= t_m + (R−1)·(1/r_t − 1/r_c)` (`r_t < r_c`).

Order: a source that can pause is paused at the cut. If the target is late, the source goes on, and the next migration
may be tried: a late target costs its prompt, and no token is late. So the slack to wait for is not the most cautious
one, but the one that costs least. With g the slack that a token of the source adds, and F the distribution of t_m, a
try at slack S succeeds with probability F(S), and each try needs S/g tokens of the source and one prompt of the target.
The tries until one succeeds cost `V(S) = (S/g·Δc + C)/F(S)`; the rule takes the quantile with the least V. What is in
the bank already does not change the best S.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from disco.candidate import Candidate
from disco.plan import Order
from disco.session.switching.answer_lengths import AnswerLengths

__all__ = [
    "AnswerLengths",
    "Decision",
    "HandoverOrder",
    "MigrationVerdict",
    "Reason",
    "Rule",
    "Snapshot",
    "decide",
    "handover_order",
    "slack_needed_s",
]

_HAZARD_WINDOW_TOKENS = 16
_REMAINING_QUANTILE = 0.9
_ROUNDING = 1e-9


class MigrationVerdict(StrEnum):
    """What to do now about a planned migration."""

    GO = "go"  # start the migration
    BANK = "bank"  # it pays: bank text until the slack is large enough, then ask again
    RETRY = "later"  # it may pay later: ask again at the next batch, and do not bank text
    NEVER = "never"  # drop the migration for this answer


class Reason(StrEnum):
    """Why a verdict is not GO."""

    CANNOT_CONTINUE = "cannot_continue"  # the target cannot continue a half-written answer
    CONTEXT = "context"  # the answer would not fit into the target's context
    NOT_WORTH_IT = "not_worth_it"  # the rest is expected to save less than moving costs
    ENDS_SOON = "ends_soon"  # likely to end within the next tokens: waiting is worth more than it costs
    INFEASIBLE = "infeasible"  # the slack cannot grow as fast as the time that a migration takes
    TOO_SHORT = "too_short"  # once the slack is large enough, too little of the answer is left
    NO_BUFFER = "no_buffer"  # unpaced reader, and the target is too slow to make up for the gap
    SLACK = "slack"  # with BANK: not enough slack yet


HandoverOrder = Literal["pause", "make_before_break", "break_before_make"]
"""What becomes of a source at the cut: it pauses, writes on until the target writes, or is stopped."""


def handover_order(order: Order, source: Candidate, target: Candidate) -> HandoverOrder:
    """Return what a plan's order means for one source and one target.

    Under "auto", a source that can pause does. Another source is stopped at the cut where the target's time to first
    token is known well: a measured line in the tokens to read, with no model to load and no queue. Else it writes on.
    """
    if order != "auto":
        return order
    if source.pauses:
        return "pause"
    is_line = target.is_measured and not target.ttft_quantiles and target.prefill_tps < math.inf
    return "break_before_make" if is_line and not target.load_s + target.queue_s else "make_before_break"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The input of the migration rule at one moment.

    Attributes:
        source: the endpoint that writes.
        target: the endpoint that would continue.
        prompt_tokens: p.
        written_tokens: n, the tokens that the source has written so far.
        max_tokens: the answer's length limit, None for none.
        target_has_prompt: whether the target's prefill of the prompt was kept; p then costs neither time nor money.
        slack_s: S from `Playback.slack_s`; inf when there is no reader yet (not streaming).
        pace_tps: r_c; None when text is passed on unpaced.
        lengths: distribution of answer lengths.
        margin: safety factor on t_m, at least 1; double it after a migration that was given up.
        order: what becomes of the source at the cut. Under "make_before_break", the tokens that it writes after the cut
            are discarded and billed.
        most_unread: the most tokens of the answer that the target has still to read at the cut: a parked target that
            reads along has read the rest.
    """

    source: Candidate
    target: Candidate
    prompt_tokens: int
    written_tokens: int
    max_tokens: int | None
    target_has_prompt: bool
    slack_s: float
    pace_tps: float | None
    lengths: AnswerLengths
    margin: float = 1.25
    order: HandoverOrder = "make_before_break"
    most_unread: float = math.inf

    def __post_init__(self) -> None:
        if not self.margin >= 1:
            raise ValueError(f"margin must be at least 1, not {self.margin}")


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of `decide`, with its numbers for the route record.

    Attributes:
        verdict: what to do.
        reason: why the verdict is not GO; None with GO.
        missing_s: slack still to be banked, in seconds (BANK only).
        handover_s: expected t_m in seconds, margin not included; 0 where an earlier check decided.
        gain: expected saving of moving now, in the cost unit of the candidates; 0 where an earlier check decided.
    """

    verdict: MigrationVerdict
    reason: Reason | None = None
    missing_s: float = 0.0
    handover_s: float = 0.0
    gain: float = 0.0


def slack_needed_s(t_m_s: float, remaining_tokens: float, r_t: float, r_c: float) -> float:
    """Return the slack below which a token is late, s: `t_m`, plus `(R−1)·(1/r_t − 1/r_c)` when `r_t < r_c`."""
    return t_m_s + max(remaining_tokens - 1, 0.0) * max(1 / r_t - 1 / r_c, 0.0)


def decide(snapshot: Snapshot) -> Decision:
    """Decide whether to migrate now. A pure function, O(log n) in the knots of `snapshot.lengths`."""
    return Rule(snapshot).decide(snapshot.written_tokens, snapshot.slack_s)


_Fields = tuple[MigrationVerdict, Reason | None, float, float, float]
"""The fields of a `Decision` as a tuple.

One is made for every token while a migration is considered; to make a `Decision` costs more than the rest of the rule.
"""

# A look-up of a member on its enum class runs Python code (3.11).
_GO, _BANK, _RETRY, _NEVER = (
    MigrationVerdict.GO,
    MigrationVerdict.BANK,
    MigrationVerdict.RETRY,
    MigrationVerdict.NEVER,
)
_SLACK = Reason.SLACK


class Rule:
    """`decide` for one source and one target, for callers that ask at every token while the source writes.

    Args:
        snapshot: its `written_tokens` and `slack_s` are not used.
    """

    __slots__ = (
        "_cost_in", "_lengths", "_per_token_s", "_prompt_tokens", "_saving", "_snapshot", "_t_0", "_wasted_cost",
    )  # fmt: skip

    def __init__(self, snapshot: Snapshot) -> None:
        source, target = snapshot.source.rates, snapshot.target.rates
        self._snapshot = snapshot
        self._lengths = snapshot.lengths.capped(snapshot.max_tokens)
        self._prompt_tokens = 0 if snapshot.target_has_prompt else snapshot.prompt_tokens
        self._saving = source.cost_out - target.cost_out
        self._cost_in, self._wasted_cost = target.cost_in, source.cost_out
        # What one more token of the source adds to the slack, less what it adds to the migration time. A shorter
        # rest of the answer is not counted: the expected rest need not become shorter with each token.
        self._per_token_s = 0.0
        if snapshot.pace_tps is not None:
            per_prefilled_s = snapshot.margin / snapshot.target.prefill_tps
            self._per_token_s = 1 / snapshot.pace_tps - 1 / snapshot.source.decode_tps - per_prefilled_s
        self._t_0 = self._planned_s()

    def _planned_s(self) -> float:
        """Return the time t_0 to plan with; see the module's docstring for a source that pauses."""
        target, per_token_s = self._snapshot.target, self._per_token_s
        first_s = target.time_to_first_token_s(0)
        quantiles = target.ttft_quantiles
        if self._snapshot.order != "pause" or not quantiles or per_token_s <= 0 or self._saving <= 0:
            return first_s
        waits_s = first_s - target.overhead_s

        def cost(number: int) -> float:
            tokens = (waits_s + quantiles[number]) * self._snapshot.margin / per_token_s
            price = self._cost_in * (self._prompt_tokens + tokens)
            return (tokens * self._saving + price) * len(quantiles) / (number + 1)

        return waits_s + quantiles[min(range(len(quantiles)), key=cost)]

    @property
    def order(self) -> HandoverOrder:
        """What becomes of the source at the cut."""
        return self._snapshot.order

    def decide(self, written_tokens: int, slack_s: float) -> Decision:
        """Decide for `written_tokens` tokens written and a slack of `slack_s` seconds."""
        return Decision(*self._decide(written_tokens, slack_s))

    def verdict(self, written_tokens: int, slack_s: float) -> MigrationVerdict:
        """Return only the verdict of `decide`, in half the time."""
        return self._decide(written_tokens, slack_s)[0]

    def _decide(self, n: int, slack_s: float) -> _Fields:
        snapshot, lengths, saving = self._snapshot, self._lengths, self._saving
        source, target = snapshot.source, snapshot.target
        if not target.continues:
            return _NEVER, Reason.CANNOT_CONTINUE, 0.0, 0.0, 0.0
        expected = lengths.expected_remaining(n)
        if target.context_tokens is not None:
            used = snapshot.prompt_tokens + n
            if used + math.ceil(expected) > target.context_tokens:
                return _NEVER, Reason.CONTEXT, 0.0, 0.0, 0.0

        # The formula of `Candidate.time_to_first_token_s`, without the cost of a call.
        unread = min(snapshot.most_unread, n)
        t_m_s = self._t_0 + (self._prompt_tokens + unread) / target.prefill_tps
        wasted_tokens = source.decode_tps * t_m_s if snapshot.order == "make_before_break" else 0.0
        price = self._price(n, expected, wasted_tokens)
        now = expected * saving - price
        if now < 0 or saving <= 0 or expected <= 0:
            # Where the expected rest grows with the length written, the same migration may pay later.
            most = lengths.most_remaining(n)
            may_pay = saving > 0 and expected > 0 and most * saving >= self._price(n, most, wasted_tokens)
            return _RETRY if may_pay else _NEVER, Reason.NOT_WORTH_IT, 0.0, 0.0, now
        h = lengths.hazard(n, window=_HAZARD_WINDOW_TOKENS)
        if h * price - (1 - h) * self._cost_in > saving:
            return _RETRY, Reason.ENDS_SOON, 0.0, 0.0, now
        if math.isinf(slack_s):
            return _GO, None, 0.0, t_m_s, now
        r_s, r_t, r_c = source.decode_tps, target.decode_tps, snapshot.pace_tps
        needed_s = t_m_s * snapshot.margin
        if r_c is None:
            if expected > _tokens_to_make_up(needed_s, r_s, r_t):
                return _GO, None, 0.0, t_m_s, now
            return _NEVER, Reason.NO_BUFFER, 0.0, t_m_s, now

        # GO when the slack covers the migration, BANK while it can still grow enough, else NEVER.
        if r_t < r_c:
            # Such a target falls behind the reader until the end: plan for a long rest, not for a typical one.
            remaining = lengths.remaining_quantile(n, _REMAINING_QUANTILE)
            needed_s = slack_needed_s(needed_s, remaining, r_t, r_c)
        missing_s = needed_s - slack_s
        if missing_s <= _ROUNDING:
            return _GO, None, 0.0, t_m_s, now
        if self._per_token_s <= 0:
            return _NEVER, Reason.INFEASIBLE, 0.0, t_m_s, now
        then = n + math.ceil(missing_s / self._per_token_s)
        left = lengths.expected_remaining(then)
        if left * saving <= self._price(then, left, wasted_tokens):
            return _NEVER, Reason.TOO_SHORT, 0.0, t_m_s, now
        return _BANK, _SLACK, missing_s, t_m_s, now

    def _price(self, n: int, remaining_tokens: float, wasted_tokens: float) -> float:
        """Return `C(n)`; its part `C_0` pays for up to `wasted_tokens` that the source writes after the cut."""
        fixed = min(wasted_tokens, remaining_tokens) * self._wasted_cost
        return fixed + self._cost_in * (self._prompt_tokens + n)


def _tokens_to_make_up(t_m_s: float, r_s: float, r_t: float) -> float:
    """Return the R above which moving serves an unpaced reader sooner: `t_m·r_s·r_t/(r_t − r_s)`."""
    return t_m_s * r_s * r_t / (r_t - r_s) if r_t > r_s else math.inf
