"""The budget of one request: every attempt reserves its cost before it starts and settles it when it has stopped."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from disco import amounts
from disco.candidate import Payer
from disco.cost.budget_limiter import BudgetLimiter, Limit, WindowCounter, binding
from disco.cost.token_bounds import MOST_PROOF, most_prefix_tokens
from disco.cost.windows import in_words
from disco.errors import BudgetExceededError
from disco.events import Usage
from disco.request import Prefix

__all__ = ["BudgetReservation"]

# Tokens that an answer without a limit of its own may have. `_MOST` is the most that present models write. Where a
# quarter (1/`_SHARE`) of what is left is less, the answer may have that quarter, so that budget remains for other
# answers, but not fewer than `_PAGE`, about a page.
_MOST, _SHARE, _PAGE = 16_384, 4, 1024
_NOTHING = Usage()
_FEWEST = 64  # tokens; an attempt that may write fewer is not worth the cost of its prompt
# Tokens that may be spent on drafts for each token of the answer, and fewest for which drafting is worth its prompt.
_DRAFTS, _FEWEST_DRAFTS = 4, 16
# To reserve what was left a moment ago. Each failure means that another process has reserved meanwhile.
_TRIES = 8
_WITHHELD_CHARS_PER_TOKEN = 4  # for text that a target writes again; the same as in `endpoints.continuation`


@dataclass(slots=True)
class _Held:
    """What one attempt has reserved, and what of it is for drafts."""

    endpoint: str
    held: list[tuple[Payer, WindowCounter, int, int]]  # payer, counter, ticket, units
    drafts: int | None = None  # tokens


@dataclass(slots=True)
class _Account:
    """What one request has reserved and spent of one limit, in whole units."""

    reserved: int = 0
    spent: int = 0


@dataclass(slots=True)
class BudgetReservation:
    """Reserves and settles the cost of every attempt of one request.

    Mutable: `_held` (by attempt, while the attempt runs), `_accounts`.

    Attributes:
        limiter: the client's limiter, which counts all limits.
        limits: the limits in force for this request; of several on one tally, the least is kept.
        payers: by endpoint name, every party that its work is charged to. What a party that drafts may do is reserved
            from what the answer leaves over.
        prompt_tokens: an upper bound of the prompt's length (`token_bounds.most_prompt_tokens`).
        max_tokens: the answer's limit, None for none.
        choices: number of answers asked for (`n`).
        unreported: how to count an attempt whose usage the server did not report (nearly always a cancelled one):
            "estimated", with the usage in the ledger, or "reserved", with its whole reservation.
        unproved: names of the endpoints that have to prove that they continue an answer, which costs tokens.
        offset_s: seconds to add to the session's clock to get the limiter's, which goes on between restarts.
    """

    limiter: BudgetLimiter
    limits: Sequence[Limit]
    payers: Mapping[str, Sequence[Payer]]
    prompt_tokens: int
    max_tokens: int | None = None
    choices: int = 1
    unreported: Literal["estimated", "reserved"] = "estimated"
    unproved: Collection[str] = ()
    offset_s: float = 0.0
    _held: dict[int, _Held] = field(default_factory=dict)
    _accounts: dict[Limit, _Account] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.limits = binding(self.limits)

    def is_limited(self, endpoint: str) -> bool:
        """Whether any limit counts the endpoint's work."""
        return bool(self._counters(endpoint))

    def left_share(self, endpoint: str, now: float) -> float:
        """Return the share that is left of the endpoint's limit, the smallest of several; 1 without a limit."""
        now += self.offset_s
        counters = self._counters(endpoint)
        return min((m.left(now) / m.total if m.total else 0.0 for _, m in counters), default=1.0)

    def allowance(self, endpoint: str, prefix: Prefix, now: float) -> int:
        """Return the most tokens that an attempt could write if it started now; 0 where it could not start."""
        wanted = self._wanted(prefix)
        counters, proof = self._counters(endpoint), self._proof(endpoint, prefix)
        affordable = min(
            (self._affordable(m, payer, prefix, proof, now) for payer, m in counters), default=_MOST
        )
        if self.max_tokens is None:
            affordable = min(affordable, max(affordable // _SHARE, _PAGE))
        allowed = min(wanted, affordable)
        return 0 if allowed < min(wanted, _FEWEST) else allowed

    def open(self, attempt: int, endpoint: str, prefix: Prefix, now: float) -> int | None:
        """Reserve what an attempt may cost.

        Args:
            attempt: the attempt's number.
            endpoint: the endpoint's name.
            prefix: the answer so far, which the endpoint reads again.
            now: the time on the session's clock, s.

        Returns:
            How many tokens the attempt may write; None where no limit counts them.

        Raises:
            BudgetExceededError: too little is left.
        """
        counters, drafting = self._counters(endpoint), self._counters(endpoint, drafts=True)
        if not counters and not drafting:
            return None
        for _ in range(_TRIES):
            allowed = self.allowance(endpoint, prefix, now)
            if counters and not allowed:
                break
            drafts = self._drafts(endpoint, prefix, allowed, now)
            parties = [*counters, *(drafting if drafts else ())]
            proof = self._proof(endpoint, prefix)
            needs = [
                (payer, counter, self._units(counter, payer, prefix, proof, allowed, drafts or 0))
                for payer, counter in parties
            ]
            held = self._reserve(needs, now)
            if held is not None:
                self._held[attempt] = _Held(endpoint, held, drafts)
                return allowed if counters else None
        if not counters:  # the answer itself is not limited, so it starts, without drafts
            self._held[attempt] = _Held(endpoint, [], 0)
            return None
        raise self.refusal(endpoint, now, prefix)

    def drafts(self, attempt: int) -> int | None:
        """Return `Request.drafts` of an attempt that was opened; None where nothing limits them."""
        held_by = self._held.get(attempt)
        return None if held_by is None else held_by.drafts

    def settle(self, attempt: int, usage: Usage, *, reported: bool, now: float) -> None:
        """Replace an attempt's reservation by its cost, once nothing of the attempt runs any more.

        An attempt without a reservation is ignored.

        Args:
            attempt: the attempt's number.
            usage: what the ledger charges.
            reported: whether the usage is the endpoint's own report, not a count or estimate made here.
            now: the time on the session's clock, s.
        """
        held_by = self._held.pop(attempt, None)
        if held_by is None:
            return
        is_sent = usage.prompt_tokens > 0 or usage.completion_tokens > 0
        shares = dict(usage.shares) or {held_by.endpoint: usage}
        for payer, counter, ticket, reserved in held_by.held:
            share = shares.get(payer.name, _NOTHING)
            if counter.limit.unit == "tokens":
                units = share.prompt_tokens + share.completion_tokens
            else:
                cached = min(share.cached_tokens, share.prompt_tokens)
                tokens = share.prompt_tokens, share.completion_tokens, cached
                written, rates = min(share.cache_write_tokens, share.prompt_tokens - cached), payer.rates
                units = counter.units(rates.cost(*tokens, written) if written else rates.most(*tokens))
            if is_sent and not reported and self.unreported == "reserved" and payer.place == "server":
                units = max(units, reserved)
            counter.settle(ticket, units, now + self.offset_s)
            self._accounts[counter.limit].spent += units

    def close(self, now: float) -> None:
        """Settle every attempt that is left, each with its whole reservation, at the end of the answer. Idempotent."""
        for held_by in self._held.values():
            for _, counter, ticket, reserved in held_by.held:
                counter.settle(ticket, reserved, now + self.offset_s)
                self._accounts[counter.limit].spent += reserved
        self._held.clear()

    def refusal(self, endpoint: str, now: float, prefix: Prefix = Prefix()) -> BudgetExceededError:  # noqa: B008 - frozen
        """Return the error for an endpoint that may not start: which limit, what is left and until when, a remedy."""
        wall = now + self.offset_s
        fewest, proof = min(self._wanted(prefix), _FEWEST), self._proof(endpoint, prefix)
        payer, counter = min(
            self._counters(endpoint),
            key=lambda pair: (
                pair[1].left(wall) / max(1, self._units(pair[1], pair[0], prefix, proof, fewest))
            ),
        )
        needed, limit = self._units(counter, payer, prefix, proof, fewest), counter.limit
        frees_at = counter.frees_at(needed, wall)
        wait_s = None if frees_at is None or frees_at == math.inf else max(0.0, frees_at - wall)
        if frees_at is not None and frees_at == math.inf:
            when = "The whole budget is too small for this prompt"
        elif wait_s is None:
            when = "More frees up as soon as a running answer ends"
        else:
            when = f"Enough frees up in {amounts.span(math.ceil(wait_s))}"
        left = counter.amount(counter.left(wall))
        some = f"{limit.quantity(left)} is" if limit.unit == "usd" else f"{left:,.0f} are"
        message = (
            f"The budget {limit.name} does not allow endpoint {endpoint!r} another start: {some} left of "
            f"{limit.quantity(limit.amount)} {in_words(limit.window, wall)}, and this request may take "
            f"{limit.quantity(counter.amount(needed))} even if it is answered briefly. {when}. "
            f"{_whose(limit, counter.sharers())} Wait, raise {limit.name}, shorten the conversation, or configure "
            "another endpoint that may answer."
        )
        return BudgetExceededError(message, limit=limit.name, retry_after_s=wait_s, account=limit.account)

    def report(self, now: float) -> dict[str, Any]:
        """Return the numbers for the route record: by limit, what this request reserved and spent, and what is left."""
        out: dict[str, Any] = {}
        for limit in self.limits:
            counter, account = self.limiter.counter(limit), self._accounts.get(limit, _Account())
            out[limit.name] = {
                "amount": limit.amount,
                **limit.period,
                "reserved": counter.amount(account.reserved),
                "spent": counter.amount(account.spent),
                "left": counter.amount(counter.left(now + self.offset_s)),
            }
        return out

    def _counters(self, endpoint: str, *, drafts: bool = False) -> list[tuple[Payer, WindowCounter]]:
        """Return the counters of the limits that count an endpoint's work, each with the payer that it counts.

        Those of the parties without which there is no answer; with `drafts`, of those that only draft. A limit in USD
        counts money only: a machine of the user's own that costs energy spends none of it.
        """
        return [
            (payer, self.limiter.counter(limit))
            for payer in self.payers[endpoint]
            for limit in self.limits
            if limit.scope in (payer.name, payer.place) and payer.drafts == drafts
            if limit.unit != "usd" or payer.rates.is_money
        ]

    def _reserve(
        self, needs: Sequence[tuple[Payer, WindowCounter, int]], now: float
    ) -> list[tuple[Payer, WindowCounter, int, int]] | None:
        """Reserve all of these units, or none of them."""
        held: list[tuple[Payer, WindowCounter, int, int]] = []
        for payer, counter, units in needs:
            ticket = counter.reserve(units, now + self.offset_s)
            if ticket is None:
                for _, other, taken, _units in held:
                    other.settle(taken, 0, now + self.offset_s)
                return None
            held.append((payer, counter, ticket, units))
        for _, counter, _, units in held:
            self._accounts.setdefault(counter.limit, _Account()).reserved += units
        return held

    def _drafts(self, endpoint: str, prefix: Prefix, written: int, now: float) -> int | None:
        """Return how many tokens an attempt that writes so many may spend on drafts; None where nobody drafts."""
        if not any(payer.drafts for payer in self.payers[endpoint]):
            return None
        both = [*self._counters(endpoint), *self._counters(endpoint, drafts=True)]
        proof = self._proof(endpoint, prefix)
        left = [m.left(now + self.offset_s) for _, m in both]

        def fits(drafts: int) -> bool:
            return all(
                self._units(m, payer, prefix, proof, written, drafts) <= units
                for (payer, m), units in zip(both, left, strict=True)
            )

        affordable = _largest(fits, _DRAFTS * written)
        if self.max_tokens is None and affordable < _DRAFTS * written:
            affordable //= _SHARE
        return affordable if affordable >= _FEWEST_DRAFTS else 0

    def _wanted(self, prefix: Prefix) -> int:
        return _MOST if self.max_tokens is None else max(1, self.max_tokens - prefix.tokens)

    def _proof(self, endpoint: str, prefix: Prefix) -> tuple[int, int]:
        """Return the most tokens that the attempt reads and writes to prove that its endpoint continues `prefix`."""
        if not prefix or endpoint not in self.unproved:
            return 0, 0
        read, written = MOST_PROOF
        return read, written + prefix.tokens  # it may write all of the answer so far again

    def _units(
        self,
        counter: WindowCounter,
        payer: Payer,
        prefix: Prefix,
        proof: tuple[int, int],
        written: int,
        drafts: int = 0,
    ) -> int:
        """Return the most units that an attempt can cost its payer.

        It writes `written` tokens of each choice, and spends `drafts` on drafts.
        """
        prompt = self.prompt_tokens + most_prefix_tokens(prefix)
        if payer.drafts:
            if counter.limit.unit == "tokens":
                return prompt + drafts
            return counter.units(payer.rates.most(prompt, drafts))
        prompt += proof[0]
        answer = drafts + self.choices * (
            written + math.ceil(len(prefix.withheld) / _WITHHELD_CHARS_PER_TOKEN)
        )
        answer += proof[1]
        if counter.limit.unit == "tokens":
            return prompt + answer
        return counter.units(payer.rates.most(prompt, answer))

    def _affordable(
        self, counter: WindowCounter, payer: Payer, prefix: Prefix, proof: tuple[int, int], now: float
    ) -> int:
        """Return the most tokens of an answer that the limit allows."""
        left = counter.left(now + self.offset_s)
        return _largest(
            lambda written: self._units(counter, payer, prefix, proof, written) <= left,
            self._wanted(prefix) * (_SHARE if self.max_tokens is None else 1),
        )


def _largest(fits: Callable[[int], bool], high: int) -> int:
    """Return the largest number up to `high` that fits; 0 where none does.

    Bisection: costs grow with the tokens, and the result is exact for any rounding of the cost.
    """
    low = -1
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return max(0, low)


def _whose(limit: Limit, sharers: Sequence[str] | None) -> str:
    """Return a sentence on who spends the budget; `sharers`: other programs that did so lately (`Tally.sharers`)."""
    if sharers is None:
        return "Only this program spends it."
    lately = f" (lately also {', '.join(sharers)})" if sharers else ""
    if limit.account:
        return f"All programs of this user with the account {limit.account!r} spend it together{lately}."
    return (
        f"All programs of this user whose budget names no account spend it together{lately}; "
        '"account": "my-app" in the budget counts this program alone.'
    )
