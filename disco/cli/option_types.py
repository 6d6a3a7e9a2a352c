"""Parsers for options: budgets, policies, prices and the exchange rate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from disco.cost import PAPER_DEVICE_CONSTRAINED, PAPER_SERVER_CONSTRAINED, ExchangeRate
from disco.dispatch.policies.plugged_policy import policy_spec
from disco.dispatch.policies.policy import VectorPolicy
from disco.dispatch.policies.policy_registry import (
    check_options,
    is_known_policy,
    known_policies,
)
from disco.errors import ConfigurationError, nearest
from disco.profiles import Price
from disco.replay.vector.arm_delays import ORACLE, RECORDED

__all__ = ["asked_one_by_one", "parse_budgets", "parse_exchange_rate", "parse_policies", "parse_price"]

NAMED_RATES = {
    "device-constrained": PAPER_DEVICE_CONSTRAINED,
    "server-constrained": PAPER_SERVER_CONSTRAINED,
}
ONLY_IN_REPLAY = (ORACLE, RECORDED)


def parse_price(text: str) -> Price:
    """Parse a price such as "0.15,0.60": USD per million tokens, in and out.

    Raises:
        ConfigurationError: the text is not two numbers, 0 or more.
    """
    try:
        cost_in, cost_out = (float(part) for part in text.split(","))
        return Price(usd_per_mtok_in=cost_in, usd_per_mtok_out=cost_out)
    except ValueError as error:
        raise ConfigurationError(
            f'a price is USD per million tokens, in and out, such as "0.15,0.60", not {text!r}'
        ) from error


def parse_exchange_rate(text: str) -> ExchangeRate:
    """Parse an exchange rate: USD per 10⁶ FLOPs, or the name of one of the paper's two rates.

    Raises:
        ConfigurationError: the text is neither a number, 0 or more, nor a known name.
    """
    if text in NAMED_RATES:
        return NAMED_RATES[text]
    try:
        return ExchangeRate(usd_per_mflop=float(text))
    except ValueError as error:
        raise ConfigurationError(
            f"an exchange rate is USD per 10^6 FLOPs, 0 or more, or {' or '.join(NAMED_RATES)}, not {text!r}"
        ) from error


MOST_BUDGETS = 1000  # each is a replay of the whole trace


def parse_budgets(text: str, what: str = "budget") -> list[float]:
    """Parse budgets, or other shares that `what` names, from "0.5", "0.1,0.3" or "0:1:0.1" (from, to inclusive, step).

    Raises:
        ConfigurationError: the text has another form, has too many budgets, or a budget is outside [0, 1].
    """
    spaced = ":" in text
    try:
        numbers = [float(part) for part in text.split(":" if spaced else ",")]
        start, stop, step = numbers if spaced else (0.0, 0.0, 1.0)
        if not (step > 0 and stop >= start):
            raise ValueError
        steps = int((stop - start) / step + 1e-9)
    except (ValueError, OverflowError) as error:
        raise ConfigurationError(
            f"write {what}s as 0.5, as 0.1,0.3 or as 0:1:0.1 (from:to:step), not {text!r}"
        ) from error
    if steps > MOST_BUDGETS:
        raise ConfigurationError(f"{text!r} means more than {MOST_BUDGETS} {what}s; take a larger step")
    # Rounded, so that 0.1 + 0.2 equals a typed 0.3.
    budgets = [round(start + i * step, 9) for i in range(steps + 1)] if spaced else numbers
    for budget in budgets:
        if not 0.0 <= budget <= 1.0:
            raise ConfigurationError(f"a {what} is a share and must lie between 0 and 1, not {budget:g}")
    return budgets


def parse_policies(names: Sequence[str]) -> list[str]:
    """Check the names of policies, including those that only a replay knows, and return each once.

    A name may have options behind it: "NAME:KEY=VALUE,KEY=VALUE" (`policy_spec`).

    Raises:
        ConfigurationError: a policy is not known, or has no such option.
    """
    for text in names:
        name, options = policy_spec(text)
        if name not in ONLY_IN_REPLAY and not is_known_policy(name):
            known = [*known_policies(), *ONLY_IN_REPLAY]
            raise ConfigurationError(f"no policy is called {name!r}. {nearest(name, known)}")
        check_options(name, options)
    return list(dict.fromkeys(names))


def asked_one_by_one(names: Iterable[str]) -> list[str]:
    """Return those of these policies that cannot decide for many requests at once, which makes a replay slower."""
    found = []
    for text in names:
        name, options = policy_spec(text)
        policy = None if name in ONLY_IN_REPLAY else check_options(name, options)
        if policy is not None and not isinstance(policy, VectorPolicy):
            found.append(text)
    return found
