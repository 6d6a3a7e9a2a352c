"""What a server says of its TTFT, as the prior of what a client measures itself.

The rule. Without it, a client starts from a profile's distribution P, which counts as 20 observations (`Rolling`), and
its own observations are added. A server's quantiles S are of n answers, the newest of them `a` seconds old. With

    τ = min(1, n/100) · 2^(-a / 1,800 s)

they count as 100·τ observations, so each answer as one, and the profile as 20·(1 - τ). The prior is the mixture of P(t)
and S(t - δ) with these weights, where δ is the time that the network adds. So the server's word counts the less, the
older it is and the more the client has seen itself; at τ = 0 it changes nothing. At every time t, the prior is no
farther from the truth than the farther of P and S: a server that is wrong, or lies, costs what a wrong profile costs,
and is outweighed by what is measured in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from disco.profiles.time_distribution import Empirical

__all__ = ["MOST_TOLD", "trust", "with_told"]

MOST_TOLD: Final = 100  # observations that a server's quantiles count as
PROFILE_WEIGHT: Final = 20.0  # the same of a profile, as `Rolling` has it
HALF_LIFE_S: Final = 1800.0


def trust(count: int, age_s: float) -> float:
    """Return τ, 0 to 1: how far a server's quantiles are trusted.

    Args:
        count: answers that the quantiles are of.
        age_s: since the newest of them, s.
    """
    if count < 1 or age_s < 0 or not np.isfinite(age_s):
        return 0.0
    share: float = min(1.0, count / MOST_TOLD) * 2.0 ** (-age_s / HALF_LIFE_S)
    return share


def with_told(
    profile: Empirical, quantiles_s: Sequence[float], *, trusted: float, network_s: float
) -> tuple[Empirical, float]:
    """Return the prior, and its weight in observations.

    Args:
        profile: what is assumed without the server's word.
        quantiles_s: the server's, at the levels 1/n, 2/n, ... 1, s, not falling.
        trusted: its weight in observations; see `trust`.
        network_s: time that the network adds to what the server measures, s.
    """
    if trusted <= 0.0 or not quantiles_s:
        return profile, PROFILE_WEIGHT
    levels = np.arange(1, len(quantiles_s) + 1) / len(quantiles_s)
    told = Empirical.from_quantiles(levels, np.asarray(quantiles_s, dtype=np.float64) + max(0.0, network_s))
    of_profile, of_told = PROFILE_WEIGHT * (1.0 - trusted), MOST_TOLD * trusted
    weight = of_profile + of_told
    return (told if trusted >= 1.0 else _mixture(profile, told, of_told / weight)), weight


def _mixture(one: Empirical, other: Empirical, share: float) -> Empirical:
    """Return the distribution that is `other` with probability `share`, and `one` otherwise."""
    values = np.unique(np.concatenate((one.values, other.values)))
    levels = np.zeros(2 * values.size)
    for part, weight in ((one, 1.0 - share), (other, share)):
        below = part.cdf(np.nextafter(values, -np.inf))  # P(T < t), so that atoms stay atoms
        levels += weight * np.column_stack((below, part.cdf(values))).ravel()
    levels[0], levels[-1] = 0.0, 1.0
    return Empirical(np.maximum.accumulate(np.minimum(levels, 1.0)), np.repeat(values, 2))
