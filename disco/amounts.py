"""How money and energy are written for people, everywhere: in lines, tables, pictures and messages."""

from __future__ import annotations

import math

__all__ = ["joules", "money", "spent"]

_LEAST_USD = 1e-9  # below, only that it is something matters


def money(usd: float) -> str:
    """Return an amount in USD as a plain decimal number: whole cents, or two digits of what is less than a cent."""
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
