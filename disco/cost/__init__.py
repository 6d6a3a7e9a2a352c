"""What answers cost, which endpoint is charged, and how absolute budgets are kept."""

from disco.cost.ledger import Charge, Ledger, Phase, Totals
from disco.cost.unified_cost import (
    PAPER_DEVICE_CONSTRAINED,
    PAPER_SERVER_CONSTRAINED,
    ExchangeRate,
    device_rates,
    server_rates,
)
from disco.rates import Rates

__all__ = [
    "PAPER_DEVICE_CONSTRAINED",
    "PAPER_SERVER_CONSTRAINED",
    "Charge",
    "ExchangeRate",
    "Ledger",
    "Phase",
    "Rates",
    "Totals",
    "device_rates",
    "server_rates",
]
