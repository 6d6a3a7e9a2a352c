"""Oracle: the best starts, if every time to first token were known in advance.

The side that is not constrained starts every request at once; waiting would gain nothing. The constrained side starts
at once on chosen requests and never on the others: a late start costs the same tokens and gains less. So the choice is
a set of requests, each with a cost (its prompt tokens) and a gain (how much sooner its first token comes): a knapsack.

- "mean": requests in order of gain per token, the largest first, until the budget is reached. Every prefix of that
  order has the largest gain that its number of tokens allows.
- "p50", "p90", "p99": a quantile as `metrics.per_seed` computes it, interpolated between two requests next to each
  other in the order of their times. For two times `τ₁ ≤ τ₂`, all requests but as many as the quantile leaves out must
  be served within `τ₁`, and of those left out one within `τ₂`. Requests that the free side alone serves too late must
  also start on the constrained side; the cheapest ones that help are chosen. Of the pairs that the budget allows, the
  one with the smallest quantile is taken. The rest of the budget goes to the mean.

The budget is rounded up to a whole prompt: the last request chosen may exceed it. That makes the oracle a bound on the
given workload: no choice that takes no more tokens than the budget (nor, for "mean", than the oracle itself took) has
a smaller mean, or a smaller quantile. A sweep gives the oracle as many tokens as the policy used that it is compared
with, where that is more than the budget.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from disco.dispatch.policies.policy import Delays, check_share
from disco.replay.workload.scenario import Workload

__all__ = ["OBJECTIVES", "Objective", "oracle_delays"]

Objective = Literal["mean", "p50", "p90", "p99"]
OBJECTIVES: Final[tuple[Objective, ...]] = ("mean", "p50", "p90", "p99")
"""The figures of TTFT that an oracle can minimise."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_LEVELS: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_ROUNDING = 1e-12  # of all tokens: a rounding error in a budget of 0.3 must not buy one more prompt


def oracle_delays(
    workload: Workload,
    *,
    constrained: Literal["device", "server"],
    budget: float,
    objective: Objective = "mean",
) -> Delays:
    """Return the best starts under a budget, for this workload.

    Args:
        workload: its `prompt_tokens`, `server_ttft_s` and `device_ttft_s` (no queue, the model loaded).
        constrained: the side that the budget limits.
        budget: share b in [0, 1] of all prompt tokens that this side may process, rounded up to a whole prompt.
        objective: "mean" minimises the mean of TTFT; the others first minimise that quantile, then the mean with the
            rest of the budget.

    Raises:
        ValueError: the budget is not a share.
    """
    check_share("budget", budget)
    tokens = workload.prompt_tokens
    free_s, scarce_s = workload.server_ttft_s, workload.device_ttft_s
    if constrained == "server":
        free_s, scarce_s = scarce_s, free_s
    total = float(tokens.sum())
    limit_tokens = budget * total - _ROUNDING * total
    chosen = np.zeros(len(workload), dtype=np.bool_)
    if objective != "mean" and len(workload):
        both_s = np.minimum(free_s, scarce_s)
        chosen = _rescued(tokens, free_s, both_s, limit_tokens, _LEVELS[objective])
        limit_tokens -= float(tokens[chosen].sum())
    gain_s = np.where(chosen, 0.0, free_s - scarce_s)
    chosen[_best_by_gain(tokens, gain_s, limit_tokens)] = True
    starts_s, at_once = np.where(chosen, 0.0, np.inf), np.zeros(len(workload))
    return Delays(starts_s, at_once) if constrained == "device" else Delays(at_once, starts_s)


def _best_by_gain(tokens: Ints, gain_s: Floats, limit_tokens: float) -> NDArray[np.intp]:
    """Return requests with a gain, most per token first, until the limit is reached; empty prompts are free."""
    useful = np.flatnonzero(gain_s > 0.0)
    cost = tokens[useful]
    paid = useful[cost > 0]
    cost = tokens[paid]
    order = np.argsort(gain_s[paid] / cost)[::-1]
    spent_before = cost[order].cumsum()
    spent_before -= cost[order]
    taken = paid[order[: int(spent_before.searchsorted(limit_tokens))]]
    return np.concatenate([useful[tokens[useful] == 0], taken])


class _Requests(NamedTuple):
    """Requests in order of their tokens, the cheapest first.

    Attributes:
        tokens: cost of each, shape (n,).
        free_s: time when the free side alone serves it, s, shape (n,).
        both_s: time when both sides serve it, s, shape (n,).
        limit_tokens: limit on the tokens spent before the last request.
    """

    tokens: Ints
    free_s: Floats
    both_s: Floats
    limit_tokens: float

    def rescue(self, within_s: float, or_within_s: float, later: int) -> NDArray[np.intp] | None:
        """Return whom to start on both sides for two times; None: the budget or the requests do not allow it.

        Args:
            within_s: all but `later + 1` requests are served within this time.
            or_within_s: all but `later` requests are served within this time, at least `within_s`.
            later: how many.
        """
        late = np.flatnonzero(self.free_s > within_s)
        beyond = self.free_s[late] > or_within_s
        missing_second = int(np.count_nonzero(beyond)) - later
        missing_first = late.size - later - 1
        if max(missing_first, missing_second) <= 0:
            return late[:0]
        soon = self.both_s[late] <= within_s
        saves_both = late[beyond & soon]
        saves_first = late[~beyond & soon]
        saves_second = late[beyond & ~soon & (self.both_s[late] <= or_within_s)]
        # Whoever is taken of the first kind saves one each of the other two.
        most = min(max(missing_first, missing_second), saves_both.size)
        least = max(missing_first - saves_first.size, missing_second - saves_second.size, 0)
        if least > most:
            return None
        of_both = np.arange(least, most + 1)
        counts = of_both, np.maximum(missing_first - of_both, 0), np.maximum(missing_second - of_both, 0)
        kinds = saves_both, saves_first, saves_second
        spent, dearest = np.zeros(of_both.size), np.zeros(of_both.size)
        for kind, count in zip(kinds, counts, strict=True):
            cost = np.concatenate([[0], self.tokens[kind[: count.max()]]])
            spent += cost.cumsum()[count]
            np.maximum(dearest, cost[count], out=dearest)
        possible = (dearest == 0) | (spent - dearest < self.limit_tokens)
        if not possible.any():
            return None
        best = int(np.where(possible, spent, np.inf).argmin())
        return np.concatenate([kind[: count[best]] for kind, count in zip(kinds, counts, strict=True)])


def _rescued(tokens: Ints, free_s: Floats, both_s: Floats, limit_tokens: float, level: float) -> Bools:
    """Return the requests to start the constrained side on, so that a quantile is as small as possible.

    Args:
        tokens: cost of each request, in any order, at least one.
        free_s: as in `_Requests`, in the same order.
        both_s: as in `_Requests`.
        limit_tokens: as in `_Requests`.
        level: of the quantile.
    """
    n = tokens.size
    cheapest = np.argsort(tokens, kind="stable")
    requests = _Requests(tokens[cheapest], free_s[cheapest], both_s[cheapest], limit_tokens)
    position = level * (n - 1)
    rank = int(position)
    part = position - rank
    later = n - 1 - rank  # than the time at the rank
    # The times at the rank and at the next one are times at which some request is served, by the free side or by both.
    # They are at least those of both sides with an unlimited budget, and at most those of the free side alone.
    least_s = np.partition(both_s, rank)[rank]
    ranks = [rank, rank + 1] if part > 0.0 else [rank]
    most_s = np.partition(free_s, ranks)[ranks[-1]]
    times_s = np.unique(np.concatenate([s[(s >= least_s) & (s <= most_s)] for s in (free_s, both_s)]))
    first, chosen = _earliest(requests, times_s, 0, later)
    if part > 0.0:
        later -= 1
        second, chosen = _earliest(requests, times_s, first, later)
        # Both at `second` are possible. An earlier first time may pay for a later second one.
        best_s, upper = float(times_s[second]), second
        for lower_s in times_s[first:second][::-1].tolist():
            while upper < times_s.size:
                upper_s = float(times_s[upper])
                value_s = (1.0 - part) * lower_s + part * upper_s
                if value_s >= best_s:
                    break
                found = requests.rescue(lower_s, upper_s, later)
                if found is not None:
                    best_s, chosen = value_s, found
                    break
                upper += 1  # an earlier first time needs a second one at least this late
    rescued = np.zeros(n, dtype=np.bool_)
    rescued[cheapest[chosen]] = True
    return rescued


def _earliest(requests: _Requests, times_s: Floats, low: int, later: int) -> tuple[int, NDArray[np.intp]]:
    """Return the first of these times, from `low` on, within which all but `later` can be served, and how."""
    high = times_s.size - 1  # the largest time needs no rescue
    found = np.zeros(0, dtype=np.intp)
    while low < high:  # if a time is possible, so are longer ones
        middle = (low + high) // 2
        chosen = requests.rescue(float(times_s[middle]), float(times_s[middle]), later)
        if chosen is None:
            low = middle + 1
        else:
            high, found = middle, chosen
    return high, found
