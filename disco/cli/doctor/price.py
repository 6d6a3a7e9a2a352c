"""What the server's model costs, as far as the price tables know."""

from __future__ import annotations

import datetime as dt

from disco.cli.doctor.finding import Facts, Finding, Setup, unchecked, works
from disco.cli.doctor.server_address import address
from disco.profiles import Price, load_prices
from disco.profiles.price_findings import look_up

__all__ = ["check_price", "price_at_server"]

_ANSWERS, _PROMPT_TOKENS, _ANSWER_TOKENS = 1_000, 500, 300


def price_at_server(model: str) -> Price | None:
    """Return what the tables say of a model at the server of the environment; None where they do not know it."""
    where = address()
    found = load_prices().find(model, None if where is None else where.host)
    return None if found is None else found.price


def check_price(setup: Setup, facts: Facts) -> Finding | None:
    """Look the model's price up: an unknown one is assumed in plans, and a budget in USD is refused then."""
    where = address()
    if where is None or facts.key is None:
        return None
    found = look_up(load_prices(), setup.model, where.host, dt.date.today())
    if found.found is None:
        return unchecked("price", found.text, found.remedy or "")
    usd = _ANSWERS * found.found.price.usd(_PROMPT_TOKENS, _ANSWER_TOKENS)
    costs = f"{_ANSWERS:,} answers of {_PROMPT_TOKENS} + {_ANSWER_TOKENS} tokens: {usd:.2f} USD."
    return works("price", f"{found.text} {costs}", found.remedy or "")
