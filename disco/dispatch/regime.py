"""The regime: which of two sides, the device or the server, is to be spared by their prices."""

from __future__ import annotations

from typing import Literal

from disco.rates import Rates

__all__ = ["Regime", "regime"]

Regime = Literal["device-constrained", "server-constrained"]


def regime(device: Rates, server: Rates) -> Regime:
    """Return which side is to be spared.

    Device-constrained when `min(c_d^p, c_d^d) > max(c_s^p, c_s^d)`, with the device's costs already multiplied by λ;
    else server-constrained (the paper's rule; a mixed order counts as server-constrained).

    Source: Sun, Wang, Lai, DiSCo, Findings of ACL 2025.
    """
    if min(device.cost_in, device.cost_out) > max(server.cost_in, server.cost_out):
        return "device-constrained"
    return "server-constrained"
