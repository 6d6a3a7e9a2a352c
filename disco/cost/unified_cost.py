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
    "FLOPS_PER_JOULE",
    "PAPER_DEVICE_CONSTRAINED",
    "PAPER_SERVER_CONSTRAINED",
    "ExchangeRate",
    "device_rates",
    "server_rates",
]

FLOPS_PER_JOULE: Final = 2e10
"""What a laptop's processor computes per joule, about: the assumption behind the presets' exchange rates, and behind
the energy of a device whose profile has none measured."""


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
    """Return what a device's energy per token costs at an exchange rate, and that energy in joules.

    The joules are those that the profile has measured, else an estimate from its FLOPs (`FLOPS_PER_JOULE`), else not
    known.

    Args:
        profile: must have `flops` for an exchange rate per FLOP, `energy` for one per joule, unless the rate is 0.
        exchange_rate: λ.
        prompt_tokens: typical prompt length, at which the FLOPs per prefill token are taken.

    Raises:
        ConfigurationError: the profile has no numbers in the unit of the exchange rate, or the costs are infinite.
    """
    j_in, j_out = _joules(profile, prompt_tokens)
    if exchange_rate.usd_per_mflop is not None:
        rate = exchange_rate.usd_per_mflop / 1e6
        flops = profile.flops
        units = None if flops is None else (flops.prefill_at(prompt_tokens), flops.decode)
        missing = "[flops]"
    else:
        rate = exchange_rate.usd_per_joule or 0.0
        energy = profile.energy
        units = None if energy is None else (energy.prefill_j_per_token, energy.decode_j_per_token)
        missing = "[energy]"
    if units is None and rate == 0:
        units = 0.0, 0.0
    if units is not None:
        cost_in, cost_out = (rate * unit for unit in units)
        if not max(cost_in, cost_out) < math.inf:
            raise ConfigurationError(f"an exchange rate this large gives infinite costs: {exchange_rate}")
        return Rates(cost_in, cost_out, cached_share=0.0, is_money=False, j_in=j_in, j_out=j_out)
    raise ConfigurationError(
        f"device profile {profile.name!r} has no {missing}, which the exchange rate needs; "
        f"add {missing} to the profile, give the rate in the other unit, or set the rate to 0"
    )


def _joules(profile: DeviceProfile, prompt_tokens: float) -> tuple[float, float] | tuple[None, None]:
    """Return the joules of a prompt token and of a generated one; None where the profile does not tell."""
    if profile.energy is not None:
        return profile.energy.prefill_j_per_token, profile.energy.decode_j_per_token
    if profile.flops is not None:
        return (
            profile.flops.prefill_at(prompt_tokens) / FLOPS_PER_JOULE,
            profile.flops.decode / FLOPS_PER_JOULE,
        )
    return None, None


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
