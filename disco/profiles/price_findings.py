"""What is known of a model's price, in words: for commands that tell a user, and what to do about it."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from disco.profiles.price_lookup import ASSUMED, STALE_AFTER_DAYS, KnownPrice, PriceTables, basis_of
from disco.rates import PriceBasis

__all__ = ["PriceFinding", "look_up"]


@dataclass(frozen=True, slots=True)
class PriceFinding:
    """What is known of the price of a model at a server.

    Attributes:
        basis: how far it is known; "assumed": not at all.
        found: the entry of the table; None where there is none.
        text: what is known, in a sentence.
        remedy: what to do about it; None where all is well.
    """

    basis: PriceBasis
    found: KnownPrice | None
    text: str
    remedy: str | None


def look_up(tables: PriceTables, model: str, host: str | None, today: dt.date) -> PriceFinding:
    """Return what the tables say of a model's price.

    Args:
        tables: `load_prices()`.
        model: the name that requests use.
        host: the host of the server's URL; None: any provider.
        today: the day on which the price's age is counted.
    """
    found = tables.find(model, host)
    basis = basis_of(found, today)
    where = "" if host is None else f" at {host}"
    if found is None:
        return PriceFinding(
            basis,
            None,
            f"No price is known for {model!r}{where}; a client counts that of {ASSUMED}.",
            'Pass price=(usd_per_million_in, usd_per_million_out), (0, 0) if it costs nothing, or price="NAME" with a '
            "name of `disco prices`; or add the model to your prices.toml.",
        )
    days = found.age_days(today)
    age = (
        "today" if days == 0 else f"{days} day{'' if days == 1 else 's'} ago" if days > 0 else "a day to come"
    )
    by = "at any server" if found.provider is None else f"of {found.provider}"
    text = f"Listed as {found.model!r} {by} on {found.date}, {age}."
    remedies = []
    if found.at == "elsewhere":
        text = f"The server{where} is in no table. {text}"
        remedies.append(
            f"If it charges otherwise than {found.provider}, pass price=... or add it to your prices.toml."
        )
    if found.is_stale(today):
        text += f" That is stale: older than {STALE_AFTER_DAYS} days."
        remedies.append(
            "Compare it with the provider's page, then pass price=... or add it to your prices.toml."
        )
    return PriceFinding(basis, found, text, " ".join(remedies) or None)
