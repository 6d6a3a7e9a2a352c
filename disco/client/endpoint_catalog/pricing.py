"""What the models of a client cost: as the application says, as a price table says, or assumed, with a warning."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable

from disco.candidate import Candidate
from disco.client.endpoint_catalog.tiers import PRICE_FORM
from disco.cost import server_rates
from disco.errors import ConfigurationError, shown
from disco.notices import warn
from disco.profiles import ASSUMED, STALE_AFTER_DAYS, Price, PriceTables, basis_of, load_prices
from disco.rates import PriceChoice, Rates

__all__ = ["Pricing", "check_known", "price_of"]


def price_of(choice: PriceChoice | None) -> Price | str | None:
    """Check a price that the application gives; None if it gives none.

    Returns:
        The price, or its name in the price tables.

    Raises:
        ConfigurationError: neither two to four numbers of at least 0, nor a name in a table.
    """
    if choice is None:
        return None
    if isinstance(choice, str):
        load_prices().price(choice)
        return choice
    try:
        read, written, *more = choice
        cached_in, cache_write = (*more, None, None)[: max(2, len(more))]
        return Price(
            usd_per_mtok_in=read,
            usd_per_mtok_out=written,
            usd_per_mtok_cached_in=cached_in,
            usd_per_mtok_cache_write=cache_write,
        )
    except (TypeError, ValueError):
        raise ConfigurationError(f"price must be {PRICE_FORM}; not {choice!r}.") from None


def check_known(candidates: Iterable[Candidate]) -> None:
    """Check that no price is only assumed, for a budget in USD.

    Raises:
        ConfigurationError: one is; the message names the endpoint.
    """
    for payer in (payer for candidate in candidates for payer in candidate.payers):
        if payer.rates.basis == "assumed":
            raise ConfigurationError(
                f"A budget in USD needs the price of the model of endpoint {payer.name!r}, which is in no price table. "
                "Pass price=(usd_per_million_in, usd_per_million_out), or give the budget as server_tokens."
            )


class Pricing:
    """The prices of one client's servers.

    Attributes:
        tables: the user's prices and the shipped ones.
    """

    def __init__(self, tables: PriceTables, today: Callable[[], dt.date] = dt.date.today) -> None:
        self.tables = tables
        self._today = today

    def knows(self, model: str, host: str | None) -> bool:
        """Return whether a table has the price of a model at a server."""
        return self.tables.find(model, host) is not None

    def rates(self, model: str, host: str | None, choice: Price | str | None) -> Rates:
        """Return what a token costs. Each call warns where that is not known well: call it once per model.

        Args:
            model: the model that is requested.
            host: the server's host; None where it has none.
            choice: the application's own price, or its name in the tables; None: the model's price there.
        """
        if isinstance(choice, Price):
            return server_rates(choice)
        today = self._today()
        found = self.tables.find(model, host) if choice is None else self.tables.find(choice)
        basis = basis_of(found, today)
        if found is None:
            warn(
                f"No price is known for the model {shown(model)}. Costs are counted at the price of {ASSUMED} until "
                "you pass price=(usd_per_million_in, usd_per_million_out), (0, 0) if it costs nothing, or add it to "
                "your prices.toml (docs/how-to/prices.md)."
            )
            return server_rates(self.tables.price(ASSUMED), basis=basis)
        if found.at == "elsewhere":
            warn(
                f"The server of the model {shown(model)} is in no price table. Costs are counted at the price that "
                f"{found.model} has at {found.provider}; pass price=... if yours differs."
            )
        if found.is_stale(today):
            warn(
                f"The price of the model {shown(model)} is of {found.date}, {found.age_days(today)} days old (stale "
                f"after {STALE_AFTER_DAYS}). Check it, and pass price=... or add it to your prices.toml."
            )
        return server_rates(found.price, basis=basis)
