"""Unified cost: the device's energy is converted to money at the user's exchange rate λ.

    C = c_s^p·l_s^in + c_s^d·l_s^out + λ·(c_d^p·l_d^in + c_d^d·l_d^out)

Source: Sun, Wang, Lai, DiSCo, Findings of ACL 2025.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from disco.errors import ConfigurationError
from disco.rates import PriceBasis, Rates

if TYPE_CHECKING:  # `disco.profiles` loads numpy, and `import disco` imports this module
    from disco.profiles import DeviceProfile, Price

__all__ = [
    "PAPER_DEVICE_CONSTRAINED",
    "PAPER_SERVER_CONSTRAINED",
    "ExchangeRate",
    "device_rates",
    "server_rates",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRate:
    """λ: what the device's energy is worth to the user, in exactly one of two units.

    Attributes:
        usd_per_mflop: USD per 10⁶ floating-point operations.
        usd_per_joule: USD per joule; needs a device profile with measured energy.
    """

    usd_per_mflop: float | None = None
    usd_per_joule: float | None = None

    def __post_init__(self) -> None:
        given = [rate for rate in (self.usd_per_mflop, self.usd_per_joule) if rate is not None]
        if len(given) != 1:
            raise ConfigurationError(
                "an exchange rate needs exactly one of usd_per_mflop and usd_per_joule; give one of them"
            )
        if not 0 <= given[0] < math.inf:
            raise ConfigurationError(f"an exchange rate must be finite and not negative, not {given[0]}")


# The paper prints 0.3 and 5 "$ per 10⁶ FLOPs". A decode token of its devices takes 0.37–0.82·10⁹ FLOPs and would then
# cost over 100 $, which is device-constrained against any server. The paper's table of FLOPs per token is in GFLOPs.
# Per 10⁶ GFLOPs, the two rates compare with the server prices as the paper's two settings need.
PAPER_SERVER_CONSTRAINED: Final = ExchangeRate(usd_per_mflop=0.3e-9)
PAPER_DEVICE_CONSTRAINED: Final = ExchangeRate(usd_per_mflop=5e-9)


def device_rates(
    profile: DeviceProfile, exchange_rate: ExchangeRate, *, prompt_tokens: float = 128.0
) -> Rates:
    """Return what a device's energy per token costs, in money.

    Args:
        profile: must have `flops` for an exchange rate per FLOP, `energy` for one per joule, unless the rate is 0.
        exchange_rate: λ.
        prompt_tokens: typical prompt length, at which the FLOPs per prefill token are taken.

    Raises:
        ConfigurationError: the profile has no numbers in the unit of the exchange rate.
    """
    if exchange_rate.usd_per_mflop is not None:
        usd_per_flop = exchange_rate.usd_per_mflop / 1e6
        if profile.flops is not None:
            return Rates(
                cost_in=usd_per_flop * profile.flops.prefill_at(prompt_tokens),
                cost_out=usd_per_flop * profile.flops.decode,
                cached_share=0.0,
            )
        missing, rate = "[flops]", usd_per_flop
    else:
        usd_per_joule = exchange_rate.usd_per_joule or 0.0
        if profile.energy is not None:
            return Rates(
                cost_in=usd_per_joule * profile.energy.prefill_j_per_token,
                cost_out=usd_per_joule * profile.energy.decode_j_per_token,
                cached_share=0.0,
            )
        missing, rate = "[energy]", usd_per_joule
    if rate == 0:
        return Rates(cost_in=0.0, cost_out=0.0, cached_share=0.0)
    raise ConfigurationError(
        f"device profile {profile.name!r} has no {missing}, which the exchange rate needs; "
        f"add {missing} to the profile, give the rate in the other unit, or set the rate to 0"
    )


def server_rates(price: Price, *, cached_share: float | None = None, basis: PriceBasis = "given") -> Rates:
    """Return a server's price per token in USD.

    Args:
        price: the price.
        cached_share: the part of the input price that cached prompt tokens are billed at; None: the price's own.
        basis: how far the price is known.
    """
    share = price.cached_share if cached_share is None else cached_share
    written = max(0.0, (price.usd_per_mtok_cache_write or 0.0) - price.usd_per_mtok_in)
    return Rates(price.usd_per_mtok_in / 1e6, price.usd_per_mtok_out / 1e6, share, basis, written / 1e6)
