"""Oracle: the best starts, if every time to first token were known in advance.

The side that is not constrained starts every request at once; waiting would gain nothing. The constrained side starts
at once on chosen requests and never on the others: a late start costs the same tokens and gains less. So the choice is
a set of requests, each with a cost (its prompt tokens) and a gain (how much sooner its first token comes): a knapsack.

- "mean": requests in order of gain per token, the largest first, until the budget is reached. Every prefix of that
  order has the largest gain that its number of tokens allows.
- "p99": the smallest time `τ` within which 99 % of the requests can be served. The requests that the free side alone
  serves later than `τ`, except for 1 % of all requests, must also start on the constrained side. The cheapest ones that
  it serves within `τ` are chosen. The rest of the budget goes to the mean.

The budget is rounded up to a whole prompt: the last request chosen may exceed it. That makes the oracle a bound on the
given workload: no choice that takes no more tokens than the budget (nor, for "mean", than the oracle itself took) has
a smaller mean, or a smaller P99. A policy that happens to overspend by more than a prompt can be better than the
oracle: compare at tokens used.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from disco.dispatch.policies.policy import Delays, check_share
from disco.replay.workload.scenario import Workload

__all__ = ["oracle_delays"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_MAY_BE_LATER = 0.01  # share of the requests that P99 ignores
_ROUNDING = 1e-12  # of all tokens: a rounding error in a budget of 0.3 must not buy one more prompt


def oracle_delays(
    workload: Workload,
    *,
    constrained: Literal["device", "server"],
    budget: float,
    objective: Literal["mean", "p99"] = "mean",
) -> Delays:
    """Return the best starts under a budget, for this workload.

    Args:
        workload: its `prompt_tokens`, `server_ttft_s` and `device_ttft_s` (no queue, the model loaded).
        constrained: the side that the budget limits.
        budget: share b in [0, 1] of all prompt tokens that this side may process, rounded up to a whole prompt.
        objective: "mean" minimises the mean of TTFT; "p99" first minimises its P99 (the smallest time that at most
            1 % of the requests exceed), then the mean with the rest of the budget.

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
    if objective == "p99":
        chosen = _rescued(tokens, free_s, np.minimum(free_s, scarce_s), limit_tokens)
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


def _rescued(tokens: Ints, free_s: Floats, both_s: Floats, limit_tokens: float) -> Bools:
    """Return the cheapest requests to start the constrained side on, so that 99 % are served as soon as possible.

    Args:
        tokens: cost of each request, shape (n,).
        free_s: time when the free side alone serves it, s, shape (n,).
        both_s: time when both sides serve it, s, shape (n,).
        limit_tokens: limit on the tokens spent before the last request.
    """
    n = tokens.size
    may_be_later = int(_MAY_BE_LATER * n + _ROUNDING)
    cheapest = np.argsort(tokens, kind="stable")
    tokens, free_s, both_s = tokens[cheapest], free_s[cheapest], both_s[cheapest]

    def rescue(within_s: float) -> NDArray[np.intp] | None:
        """Return the requests to rescue for that time; None: the time is not possible."""
        late = free_s > within_s
        missing = int(np.count_nonzero(late)) - may_be_later
        if missing <= 0:
            return np.zeros(0, dtype=np.intp)
        late &= both_s <= within_s
        possible = np.flatnonzero(late)
        if possible.size < missing:
            return None
        chosen = possible[:missing]
        spent_before = float(tokens[chosen[:-1]].sum())
        return chosen if tokens[chosen[-1]] == 0 or spent_before < limit_tokens else None

    # If a time is possible, so are longer ones. The best P99 is the time at which some request is served, by the free
    # side or by both. It is at least the P99 of both sides and at most the P99 of the free side alone.
    rank = n - 1 - may_be_later
    best_s, worst_s = (float(np.partition(times_s, rank)[rank]) for times_s in (both_s, free_s))
    times_s = np.concatenate([free_s, both_s])
    times_s = np.sort(times_s[(times_s >= best_s) & (times_s <= worst_s)])
    low, high = 0, times_s.size - 1  # the largest time needs no rescue
    found = np.zeros(0, dtype=np.intp)
    while low < high:
        middle = (low + high) // 2
        chosen_at = rescue(float(times_s[middle]))
        if chosen_at is None:
            low = middle + 1
        else:
            high, found = middle, chosen_at
    rescued = np.zeros(n, dtype=np.bool_)
    rescued[cheapest[found]] = True
    return rescued
