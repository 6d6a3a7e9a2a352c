"""What a token costs at one endpoint, in money or in energy: what plans, budgets, the ledger and the record use."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

__all__ = ["PriceBasis", "PriceChoice", "Rates"]

PriceBasis = Literal["given", "listed", "stale", "elsewhere", "assumed"]
"""How far a price is known: given by the application (or the energy of a device), listed for this model and server in a
price table, listed there long ago, listed for this model at another server, or not known at all."""

PriceChoice = tuple[float, float] | tuple[float, float, float] | tuple[float, float, float, float] | str
"""A price as an application gives it: USD per million (input, output, cached input, input written into a cache) tokens,
of which the last two may be left out (as other input), or a name in the price table, such as "azure/gpt-4o-mini"."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What a token costs at one endpoint.

    Policies compare endpoints by one sum, in USD: a server's price, or the energy of a machine of the user's own at the
    preset's exchange rate. Only a price is money that somebody gets (`is_money`).

    Attributes:
        cost_in: per prompt token.
        cost_out: per generated token.
        cached_share: share of `cost_in` that a cached prompt token costs: 0 on a device, which spends no energy on
            it; 1 for a server that bills it in full.
        basis: how far the price is known.
        cost_cache_write: besides `cost_in`, per prompt token that the server writes into its cache. Where a server's
            usage does not say how many these were, budgets count all of the prompt that was not cached (`most`).
        is_money: whether these are a price in money; False: the energy of a machine of the user's own at an exchange
            rate.
        j_in, j_out: the energy that machines of the user's own take for it, joules per prompt token that is not cached
            and per generated token; None where it is not known. 0 for a server of somebody else's.
    """

    cost_in: float = 0.0
    cost_out: float = 0.0
    cached_share: float = 1.0
    basis: PriceBasis = "given"
    cost_cache_write: float = 0.0
    is_money: bool = True
    j_in: float | None = 0.0
    j_out: float | None = 0.0

    def __post_init__(self) -> None:
        # Written so that NaN fails, too.
        costs = self.cost_in, self.cost_out, self.cost_cache_write
        if not all(0 <= cost < math.inf for cost in costs):
            raise ValueError(f"costs per token must be finite and not negative: {self!r}")
        if not 0 <= self.cached_share <= 1:
            raise ValueError(f"cached_share must lie between 0 and 1, not at {self.cached_share}")
        if not all(joules is None or 0 <= joules < math.inf for joules in (self.j_in, self.j_out)):
            raise ValueError(f"joules per token must be finite and not negative: {self!r}")

    def cost(
        self,
        prompt_tokens: int,
        completion_tokens: int,
        cached_tokens: int = 0,
        cache_write_tokens: int = 0,
    ) -> float:
        """Return what these tokens cost under the exchange rate, USD; a bill, too, where `is_money`.

        Args:
            prompt_tokens: tokens of the prompt, cached ones included.
            completion_tokens: tokens generated.
            cached_tokens: tokens of the prompt that were not computed again.
            cache_write_tokens: tokens of the prompt that were written into a cache.
        """
        computed = prompt_tokens - cached_tokens
        cost = (
            self.cost_in * (computed + self.cached_share * cached_tokens) + self.cost_out * completion_tokens
        )
        return cost + self.cost_cache_write * cache_write_tokens if cache_write_tokens else cost

    def energy_j(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> float | None:
        """Return the energy that these tokens take of the user's own machines, J; see `Rates.cost`. None: not known."""
        if self.j_in is None or self.j_out is None:
            return None
        return self.j_in * (prompt_tokens - cached_tokens) + self.j_out * completion_tokens

    def most(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> float:
        """Return the most that they can cost, all computed ones written into a cache, USD; see `Rates.cost`."""
        written = self.cost_cache_write * (prompt_tokens - cached_tokens)
        return self.cost(prompt_tokens, completion_tokens, cached_tokens) + written
