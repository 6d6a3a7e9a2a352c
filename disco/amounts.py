"""Money, energy, spans of time, shares and ratios as people read them, without exponents."""

from __future__ import annotations

import datetime as dt
import math
from typing import Final

__all__ = ["compared", "date", "joules", "money", "number", "plural", "share", "span", "spent", "tokens"]

_LEAST_USD = 1e-9  # below, only that it is something matters
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_UNITS: Final = (("days", 86_400), ("hours", 3600), ("minutes", 60))
_SAME: Final = 0.005  # a ratio closer to 1 than this is called the same


def money(usd: float) -> str:
    """Return an amount in USD as a plain decimal number: whole cents, or two digits of what is less than a cent."""
    if not math.isfinite(usd):  # of a record that anybody may have written
        return "– $"
    if 0 < abs(usd) < _LEAST_USD:
        return "under 0.000000001 $"
    decimals = 2 if abs(usd) < _LEAST_USD else max(2, 1 - math.floor(math.log10(abs(usd))))
    return f"{usd:,.{decimals}f} $"


def joules(energy_j: float) -> str:
    """Return an amount of energy, in joules or thousands of them, to what matters of it."""
    if energy_j >= 9_999.5:
        return f"{energy_j / 1000:,.0f} kJ"
    if energy_j >= 9.95 or not energy_j:
        return f"{energy_j:,.0f} J"
    return (
        f"{energy_j:.1f} J"
        if energy_j >= 0.095
        else f"{energy_j:.2f} J"
        if energy_j >= 0.01
        else "under 0.01 J"
    )


def spent(bill_usd: float, device_energy_j: float | None) -> str:
    """Return the money paid and, where the user's own machines worked, their energy as far as it is known."""
    return f"{money(bill_usd)}, {joules(device_energy_j)}" if device_energy_j else money(bill_usd)


def plural(number: int, what: str) -> str:
    """Return a number and what it counts."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def tokens(number: float) -> str:
    """Return a number of tokens."""
    return plural(round(number), "token")


def span(seconds: float) -> str:
    """Return a span of time, s, in the largest unit of which it has at least two: "24 hours", "30 days", "1.5 s"."""
    for unit, size in _UNITS:
        if seconds >= 2 * size:
            return f"{_short(seconds / size)} {unit}"
    return f"{_short(seconds)} s"


def date(at: float, now: float) -> str:
    """Return a moment in UTC: its hour and minute if it is within a day from now and not midnight, else its date.

    Args:
        at: Unix time, s.
        now: the present, Unix time, s.
    """
    when = _EPOCH + dt.timedelta(seconds=at)
    if at - now <= 86_400 and (when.hour, when.minute) != (0, 0):
        return f"{when:%H:%M} UTC"
    return f"{when.day} {when:%B}, UTC"


def share(part: float) -> str:
    """Return a share of one in percent, with one digit where it is less than one percent."""
    percent = part * 100
    if 0 < abs(percent) < 1:
        return f"{percent:.{max(1, -math.floor(math.log10(abs(percent))))}f} %".replace("-", "−")
    return f"{percent:,.0f} %".replace("-", "−")


def compared(ratio: float) -> str:
    """Return how much something is, relative to something else: "the same", "20 % less", "240 times as much"."""
    if abs(ratio - 1) < _SAME:
        return "the same"
    if ratio >= 2:
        return f"{_digits(ratio)} times as much"
    return f"{share(abs(ratio - 1))} {'more' if ratio > 1 else 'less'}"


def number(value: float) -> str:
    """Return a number with four digits that count, without an exponent."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = 3 - math.floor(math.log10(abs(value)))
    text = f"{round(value, decimals):,.{max(0, decimals)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _short(number: float) -> str:
    if number >= 10 or number == round(number):
        return f"{number:,.0f}"
    if number >= 1:
        return f"{number:.1f}".removesuffix(".0")
    return f"{number:.{1 - math.floor(math.log10(number))}f}".rstrip("0").rstrip(".")


def _digits(number: float) -> str:
    """Return a number from two on with two digits that count."""
    return f"{number:.1f}".removesuffix(".0") if number < 10 else f"{float(f'{number:.2g}'):,.0f}"
