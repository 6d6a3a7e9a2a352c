"""Finds the price of a model at a server, in the user's table and in the shipped ones.

The same name may cost different amounts at different servers, so a price is looked up by model and host. Pure: the
caller passes the day.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from disco.errors import ConfigurationError, nearest
from disco.profiles.price_table import Price, PriceTable, ProviderPrices
from disco.rates import PriceBasis

__all__ = ["ASSUMED", "STALE_AFTER_DAYS", "KnownPrice", "PriceTables", "basis_of", "spellings"]

ASSUMED: Final = "openai/gpt-4o-mini"
"""A client counts this model's price for a model that is in no price table."""

STALE_AFTER_DAYS: Final = 180
"""A price that is older than this is stale: providers have changed most of theirs within half a year."""

# The day of a snapshot, as OpenAI, Azure ("-2024-07-18"), Anthropic ("-20251001") and Vertex ("@20251001") write it.
# Shorter dates are not left out: `mistral-large-2402` and `mistral-large-2512` are models with prices of their own.
_SNAPSHOT: Final = re.compile(r"[-@](?:20\d\d-\d\d-\d\d|20\d{6})$")


@dataclass(frozen=True, slots=True)
class KnownPrice:
    """A price that was found, and how sure it is.

    Attributes:
        price: the price.
        model: the model's name in the table.
        provider: the provider's name in the table; None: the price holds at any server.
        date: the day it was valid.
        source, licence: where it comes from, and under which terms.
        is_own: whether it is of the user's table.
        at: "server": the price is this server's, or holds at any. "elsewhere": the server is in no table, so this is
            what the model costs at another one; of several, the dearest.
    """

    price: Price
    model: str
    provider: str | None
    date: dt.date
    source: str
    licence: str | None
    is_own: bool
    at: Literal["server", "elsewhere"] = "server"

    def age_days(self, today: dt.date) -> int:
        """Return how many days old the price is on the day `today`."""
        return (today - self.date).days

    def is_stale(self, today: dt.date, after_days: int = STALE_AFTER_DAYS) -> bool:
        """Return whether the price is older than `after_days` days on the day `today`."""
        return self.age_days(today) > after_days


@dataclass(frozen=True, slots=True)
class PriceTables:
    """Price tables, the first of which count most: the user's, the shipped one, the paper's of 2024.

    Attributes:
        tables: the tables.
        own: how many of them, from the first, are the user's.
    """

    tables: tuple[PriceTable, ...]
    own: int = 0

    def find(self, model: str, host: str | None = None) -> KnownPrice | None:
        """Return what a model costs at a server; None where no table says so.

        Args:
            model: the name that requests use: a plain name, a dated snapshot, a fine-tune ("ft:..."), or, where the
                host is in no table, also "provider/name".
            host: the server's host; None: not known, so every provider counts.
        """
        # By name: a section of the user's need not repeat the hosts of a provider that another table has.
        here: set[str] = set()
        if host is not None:
            for table in self.tables:
                here.update(name for name, one in table.providers.items() if one.is_at(host.lower()))
        for number, table in enumerate(self.tables):
            found = _in_table(table, model, here)
            if found is None:
                continue
            name, provider, price = found
            elsewhere = provider is not None and host is not None and not here
            return self._entry(number, name, provider, price, "elsewhere" if elsewhere else "server")
        return None

    def price(self, model: str) -> Price:
        """Return the price of a model by its name alone: "gpt-4o-mini" or "azure/gpt-4o-mini".

        Raises:
            ConfigurationError: no table has it.
        """
        found = self.find(model)
        if found is None:
            raise ConfigurationError(
                f"no price is known for {model!r}. {nearest(model, sorted({e.model for e in self.entries()}))} "
                "Add it under [models] in a prices.toml of your own."
            )
        return found.price

    def entries(self) -> Iterator[KnownPrice]:
        """Yield every price, in the order of the tables; those that a table before them replaces are left out."""
        seen: set[tuple[str | None, str]] = set()
        for number, table in enumerate(self.tables):
            sections: list[tuple[str | None, Mapping[str, Price]]] = [(None, table.models)]
            sections += [(name, one.models) for name, one in table.providers.items()]
            for provider, models in sections:
                for model, price in models.items():
                    if (provider, model) not in seen and (None, model) not in seen:
                        seen.add((provider, model))
                        yield self._entry(number, model, provider, price, "server")

    def _entry(
        self, number: int, model: str, provider: str | None, price: Price, at: Literal["server", "elsewhere"]
    ) -> KnownPrice:
        table = self.tables[number]
        section = None if provider is None else table.providers[provider]
        return KnownPrice(
            price=price,
            model=model,
            provider=provider,
            date=(section and section.date) or table.date,
            source=(section and section.source) or table.source,
            licence=table.licence,
            is_own=number < self.own,
            at=at,
        )


def basis_of(found: KnownPrice | None, today: dt.date) -> PriceBasis:
    """Return how far a price of the tables is known on the day `today`; `found` None: not at all."""
    if found is None:
        return "assumed"
    if found.is_stale(today):
        return "stale"
    return "elsewhere" if found.at == "elsewhere" else "listed"


def spellings(model: str) -> tuple[str, ...]:
    """Return the names under which a table may have a model, the exact one first.

    A dated snapshot costs what its model costs, unless the table has the snapshot; "-latest" names the same model. A
    fine-tune ("ft:BASE:organisation:name:id") is priced as "ft:BASE", never as BASE. Google's API puts "models/" in
    front.
    """
    name = model.removeprefix("models/")
    if name.startswith("ft:"):
        name = ":".join(name.split(":")[:2])
    undated = _SNAPSHOT.sub("", name)
    return tuple(dict.fromkeys((model, name, undated, undated.removesuffix("-latest"), f"{undated}-latest")))


def _in_table(table: PriceTable, model: str, here: set[str]) -> tuple[str, str | None, Price] | None:
    """Return the name in a table, the provider and the price; of several providers, the dearest price.

    `here`: the providers that count; empty: all.
    """
    if (found := _named(table.models, model)) is not None:
        return found[0], None, found[1]
    if here:
        return next(_hits(table.providers, model, here), None)
    provider, _, rest = model.partition("/")
    if provider in table.providers and (found := _named(table.providers[provider].models, rest)) is not None:
        return found[0], provider, found[1]
    # The last part alone: gateways put names of their own in front, such as "gemini/gemini-2.5-flash".
    for name in dict.fromkeys((model, rest, model.rpartition("/")[2])):
        if hits := list(_hits(table.providers, name, set())):
            return max(hits, key=lambda hit: (hit[2].usd_per_mtok_out, hit[2].usd_per_mtok_in))
    return None


def _hits(
    providers: Mapping[str, ProviderPrices], model: str, here: set[str]
) -> Iterator[tuple[str, str | None, Price]]:
    for provider, one in providers.items():
        if (not here or provider in here) and (found := _named(one.models, model)) is not None:
            yield found[0], provider, found[1]


def _named(models: Mapping[str, Price], model: str) -> tuple[str, Price] | None:
    if not model:
        return None
    for name in spellings(model):
        if (price := models.get(name)) is not None:
            return name, price
    return None
