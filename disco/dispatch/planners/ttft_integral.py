"""The mean TTFT and the use of the device for each wait, from the integral of the server's survival function.

The server starts at once, and the device after `w` seconds; the device itself takes `T_d`. The first token comes at
`min(T_s, w + T_d)`. Its mean is `G(w + T_d)` with `G(x) = E[min(T_s, x)] = ∫_0^x (1 − F(t)) dt`. The device is used in
`u(w) = P(T_s > w)` of the cases (`u(0) = 1`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from disco.dispatch.planners.wait_quantiles import JUST_AFTER_0_S
from disco.profiles.time_distribution import Empirical

__all__ = ["ServerTimes", "ttft_quantile_s"]

Floats = NDArray[np.float64]

# Each pass removes many points; a point that is left although it is no corner only costs time later.
_HULL_PASSES = 40


class ServerTimes:
    """`G`, and the waits that an optimal plan can consist of; immutable."""

    # For each distinct time, ascending from 0: _cdf and _mean_until_s at this time, _density after it.
    __slots__ = ("_cdf", "_density", "_mean_until_s", "_times_s", "longest_s")

    def __init__(self, ttft: Empirical) -> None:
        levels, values = ttft.levels, ttft.values
        last = np.flatnonzero(np.append(values[1:] > values[:-1], True))  # an atom's upper end
        times_s, cdf = values[last], levels[last]
        reached = levels[np.append(0, last[:-1] + 1)]  # F just before each time
        if times_s[0] > 0.0:
            times_s, cdf, reached = (np.append(0.0, column) for column in (times_s, cdf, reached))
        width_s, rise = np.diff(times_s), reached[1:] - cdf[:-1]
        self._times_s = times_s
        self._cdf = cdf
        self._density = np.append(rise / width_s, 0.0)
        self._mean_until_s = np.append(0.0, (width_s * (1.0 - cdf[:-1] - 0.5 * rise)).cumsum())
        self.longest_s = float(times_s[-1])

    def mean_until_s(self, limits_s: Floats) -> Floats:
        """Return `G(x) = E[min(T, x)]`, s, for limits x in seconds, which may be infinite; same shape."""
        x = np.minimum(limits_s, self.longest_s)
        at = self._times_s.searchsorted(x, side="right") - 1
        beyond_s = x - self._times_s[at]
        return np.asarray(
            self._mean_until_s[at] + beyond_s * (1.0 - self._cdf[at] - 0.5 * self._density[at] * beyond_s)
        )

    def corner_waits_s(self) -> Floats:
        """Return the corners of the least concave majorant of F, s, ascending from 0; every best wait is a corner.

        G is concave and increasing. So a wait `w` whose `F(w)` does not lie above the chord between two other waits
        costs no less time than a mixture of those two with the same use of the device, for any T_d. Of 10,000 samples
        some fifty are left.
        """
        waits_s, cdf = self._times_s, self._cdf
        if cdf[0] > 0.0:  # some answers take no time: the shortest wait is enough for them
            waits_s, cdf = np.insert(waits_s, 1, JUST_AFTER_0_S), np.append(0.0, cdf)
        elif waits_s.size == 1:
            return waits_s
        for _ in range(_HULL_PASSES):
            steps_s, rises = np.diff(waits_s), np.diff(cdf)
            above = np.append(True, np.append(rises[:-1] * steps_s[1:] > rises[1:] * steps_s[:-1], True))
            if above.all():
                break
            waits_s, cdf = waits_s[above], cdf[above]
        return waits_s


def ttft_quantile_s(ttft: Empirical, level: float, device_s: Floats, mass: Floats) -> float:
    """Return the smallest `t`, s, with `P(min(T_s, D) ≤ t) ≥ level`, for a server independent of the device.

    Args:
        ttft: the server's time to first token, s.
        level: the level of the quantile, in (0, 1).
        device_s: times D at which the device would write, s, `inf` for never; shape (n,).
        mass: the probability of each time, summing to 1; shape (n,).
    """
    order = np.argsort(device_s)
    by_s = np.append(0.0, device_s[order])
    # P(D > t) from each step of D on, and the survival that the server must then have.
    beyond = np.append(1.0, np.maximum(1.0 - mass[order].cumsum(), 0.0))
    needed = 1.0 - level
    enough = beyond <= needed
    survival = np.where(enough, 1.0, needed / np.where(enough, 1.0, beyond))
    server_s = np.where(enough, 0.0, ttft.quantile(1.0 - survival))
    return float(np.maximum(by_s, server_s).min())
