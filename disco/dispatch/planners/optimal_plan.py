"""The waits of the device that make the mean TTFT smallest under a budget of tokens.

Minimise `Σ p(l)·G(w(l) + T_d(l))` subject to `Σ share(l)·u(w(l)) ≤ b` (symbols as in `ttft_integral`,
`share(l) = l·p(l)/E[l]`, `T_d(l) = k·l + c`). With mixtures of waits allowed, this is a linear program. The waits of
one length depend on the other lengths only through one price per device token, a Lagrange multiplier μ:
`min_w G(w + T_d(l)) + μ·l·u(w)`. Three facts make the solution fast and exact:

- Only corners of F's least concave majorant can be best (`ServerTimes.corner_waits_s`).
- G is concave, so the best wait never falls with the length nor with μ.
- Take two prices, one that uses the device too much and one that uses it too little. The price at which both plans
  would cost the same is either the right one or divides the bracket. At the right price at least one length has two
  best waits; dividing one length between them meets the budget exactly.

The budget is used in full unless the device cannot help. Where the device is slower than every observed time of the
server (`T_d(l)` at or above all of F), a prompt of that length does not start the device.

With a tail share above 0, P99 of TTFT is also kept at or below a limit τ. Call a request exposed if `w + T_d(l) > τ`;
the limit then means that at most `0.01 / P(T_s > τ)` of the requests may be exposed. At any price μ, shielding a
request costs more the longer its prompt is: its wait must be shortened from a longer wait to a shorter one, and its
tokens are more. So the longest prompts are exposed, one length is divided, and a cap on the waits shields all shorter
prompts. P99 of the paper's plan is a limit that can always be kept, with a mean no greater than that plan's. Lower
limits are tried first, because a plan that just keeps a limit in expectation exceeds it in half of all samples. The
lowest limit that leaves half of the possible gain in the mean is used. Where no limit does and the mean can gain less
than 1 %, the paper's plan is used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from disco.candidate import Candidate
from disco.dispatch.planners.ttft_integral import ServerTimes, ttft_quantile_s
from disco.dispatch.planners.wait_quantiles import EmpiricalWaits
from disco.dispatch.policies.policy import check_share
from disco.dispatch.policies.wait_time import WaitPlan, plan_waits
from disco.profiles.length_distribution import Lengths
from disco.profiles.time_distribution import Empirical

__all__ = ["OptimalPlan", "device_times_s", "plan_optimal_waits"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_TAIL_LEVEL = 0.99
# Taken off the share that may exceed a limit, so that rounding does not push P99 above the limit.
_TAIL_ROUNDING = 1e-12
# Limits of P99 that are tried, as parts of the paper plan's P99, and the share of the gain that they must leave.
_LIMITS = (0.85, 0.9, 0.95)
_GAIN_LEFT = 0.5
# A gain below this part of the mean does not justify a P99 that is only equally good in expectation.
_WORTH = 0.01
# How many waits are tried under a cap besides the corners, equally spaced in probability.
_CAP_WAITS = 64
_ROUNDING = 1e-13
# An upper bound: the search divides its bracket as bisection does, and ends after some 15 steps.
_STEPS = 200


@dataclass(frozen=True, slots=True)
class OptimalPlan:
    """Waits by prompt length.

    Attributes:
        lengths: prompt lengths, ascending, tokens, int64, shape (m,).
        shares: the share of the prompts of each length that gets each wait, float64, shape (branches, m); the shares
            of a length sum to 1.
        waits_s: these waits, s, float64, same shape; `inf`: the device does not start.
        budget_used: expected share of all prompt tokens that the device processes.
        mean_ttft_s: expected time to first token, s.
    """

    lengths: Ints
    shares: Floats
    waits_s: Floats
    budget_used: float
    mean_ttft_s: float


def device_times_s(device: Candidate, lengths: Ints | Floats) -> Floats:
    """Return `T_d(l)` for each length in tokens, with the model loaded: s, float64, same shape."""
    return np.asarray(lengths / device.prefill_tps + device.overhead_s, dtype=np.float64)


def plan_optimal_waits(
    lengths: Lengths, ttft: Empirical, device: Candidate, budget: float, tail: float = 0.0
) -> OptimalPlan:
    """Return the plan for these distributions; takes some milliseconds for 10,000 samples.

    Args:
        lengths: prompt lengths in tokens.
        ttft: the server's time to first token as the user sees it, s.
        device: the device; its `prefill_tps` and `overhead_s` give `T_d`.
        budget: share b in [0, 1] of all prompt tokens that the device may process.
        tail: 0 for the smallest mean. Above 0, in (0, 1), neither the mean nor P99 is worse than under the paper's
            plan (`plan_waits`) with this α. P99 is up to 15 % smaller, as far as half of the gain in the mean pays
            for that; the mean is the smallest under this limit (over the corner waits, the waits of the paper's plan,
            and a grid). Where the mean could gain less than 1 %, the result may be the paper's plan.

    Raises:
        ValueError: a share out of range, or no prompt with tokens.
    """
    check_share("budget", budget)
    check_share("tail", tail)
    problem = _Problem(lengths, ttft, device)
    best = problem.fastest(budget)
    return best if tail == 0.0 else _with_tail(problem, best, plan_waits(lengths, ttft, budget, tail), budget)


def _with_tail(problem: _Problem, best: OptimalPlan, paper: WaitPlan, budget: float) -> OptimalPlan:
    shares, waits_s = paper.waits(problem.lengths)
    original = problem.plan(shares, waits_s)
    limit_s = problem.p99_s(original)
    reached_s = problem.p99_s(best)
    tried = problem.tried(waits_s.ravel(), limit_s)
    enough_s = original.mean_ttft_s - _GAIN_LEFT * (original.mean_ttft_s - best.mean_ttft_s)
    for part in _LIMITS:
        if reached_s <= part * limit_s:
            return best
        shielded = problem.shielded(tried, budget, part * limit_s)
        if shielded is not None and shielded.mean_ttft_s <= enough_s:
            return shielded
    if original.mean_ttft_s - best.mean_ttft_s < _WORTH * original.mean_ttft_s:
        return original
    if reached_s <= limit_s:
        return best
    # Rounding must not make the paper's own plan seem to exceed its P99.
    shielded = problem.shielded(tried, budget, limit_s, problem.exposed(original, limit_s))
    return original if shielded is None or original.mean_ttft_s < shielded.mean_ttft_s else shielded


@dataclass(frozen=True, slots=True)
class _Tried:
    """The waits that a plan may mix.

    Attributes:
        waits_s: the waits, ascending, s, shape (k,).
        until_s: `w + T_d(l)`, shape (m, k).
        mean_s: `G(w + T_d(l))`, shape (m, k).
        use: `u(w)`, shape (k,).
    """

    waits_s: Floats
    until_s: Floats
    mean_s: Floats
    use: Floats


class _Problem:
    """The fixed numbers of one planning problem, by length."""

    __slots__ = ("corners_s", "device_s", "lengths", "p", "source", "times", "tokens", "ttft")

    def __init__(self, lengths: Lengths, ttft: Empirical, device: Candidate) -> None:
        self.lengths = lengths.lengths
        self.p = lengths.p
        self.device_s = device_times_s(device, self.lengths)
        self.ttft = ttft
        self.source = EmpiricalWaits(ttft)
        self.times = ServerTimes(ttft)
        self.corners_s = self.times.corner_waits_s()
        mean_tokens = float(self.lengths @ self.p)
        if not mean_tokens > 0.0:
            raise ValueError("a plan needs a prompt of at least one token")
        self.tokens = self.lengths / mean_tokens  # normalised, so that budgets are shares

    def fastest(self, budget: float) -> OptimalPlan:
        """Return the plan with the smallest mean."""
        every = np.arange(self.lengths.size)
        found = self.solve(every, self.p, self._tried(self.corners_s), budget)
        assert found is not None  # a plan that never starts the device is always possible
        return self.plan(*found)

    def tried(self, waits_s: Floats, limit_s: float) -> _Tried:
        """Return the corner waits, the given waits, and a grid of waits up to a limit."""
        grid_s = self.ttft.quantile(np.linspace(0.0, self.ttft.cdf(limit_s), _CAP_WAITS))
        return self._tried(np.unique(np.concatenate([self.corners_s, waits_s, grid_s])))

    def _tried(self, waits_s: Floats) -> _Tried:
        until_s = waits_s + self.device_s[:, None]
        return _Tried(waits_s, until_s, self.times.mean_until_s(until_s), self.source.use(waits_s))

    def plan(self, shares: Floats, waits_s: Floats) -> OptimalPlan:
        use = (shares * self.source.use(waits_s)).sum(axis=0)
        mean_s = (shares * self.times.mean_until_s(waits_s + self.device_s)).sum(axis=0)
        used = float(use @ (self.p * self.tokens))
        return OptimalPlan(self.lengths, shares, waits_s, used, float(mean_s @ self.p))

    def p99_s(self, plan: OptimalPlan) -> float:
        """Return P99 of TTFT under a plan, s."""
        occurs = plan.shares > 0.0
        arrives_s, mass = plan.waits_s + self.device_s, plan.shares * self.p
        return ttft_quantile_s(self.ttft, _TAIL_LEVEL, arrives_s[occurs], mass[occurs])

    def exposed(self, plan: OptimalPlan, limit_s: float) -> float:
        """Return the share of requests whose device would write only after the limit."""
        return float((plan.shares * (plan.waits_s + self.device_s > limit_s)).sum(axis=0) @ self.p)

    def shielded(
        self, tried: _Tried, budget: float, limit_s: float, at_least: float = 0.0
    ) -> OptimalPlan | None:
        """Return the plan with the smallest mean whose P99 is within a limit; None where there is none.

        Args:
            tried: the waits that the plan may mix.
            budget: share of the tokens.
            limit_s: the limit of P99, s.
            at_least: a share of the requests that may be exposed in any case, even if P99 then exceeds the limit.
        """
        survival = self.ttft.survival(limit_s)
        exposed = 1.0 if survival <= 0.0 else (1.0 - _TAIL_LEVEL - _TAIL_ROUNDING) / survival
        exposed = max(exposed, at_least)
        m = self.lengths.size
        longer = self.p[::-1].cumsum()[::-1]  # share of the requests of each length and above
        free = int(np.count_nonzero(longer > exposed))  # all requests of this length and above may be exposed
        rows, p = np.arange(m), self.p.copy()
        if free:
            # The last length that may be exposed only in part becomes two rows; the second of them may be exposed.
            beyond = float(longer[free]) if free < m else 0.0
            rows = np.insert(rows, free, free - 1)
            p = np.insert(p, free, exposed - beyond)
            p[free - 1] -= exposed - beyond
        found = self.solve(rows, p, tried, budget, limit_s=limit_s, capped=free)
        if found is None:
            return None
        shares, chosen_s = found
        if free:
            part = (exposed - beyond) / self.p[free - 1]
            extra_shares, extra_s = np.zeros((2, m)), np.zeros((2, m))
            extra_shares[:, free - 1], extra_s[:, free - 1] = shares[:, free] * part, chosen_s[:, free]
            shares, chosen_s = np.delete(shares, free, axis=1), np.delete(chosen_s, free, axis=1)
            shares[:, free - 1] *= 1.0 - part
            shares, chosen_s = np.concatenate([shares, extra_shares]), np.concatenate([chosen_s, extra_s])
        return self.plan(shares, chosen_s)

    def solve(
        self,
        rows: NDArray[np.intp],
        p: Floats,
        tried: _Tried,
        budget: float,
        *,
        limit_s: float = float("inf"),
        capped: int = 0,
    ) -> tuple[Floats, Floats] | None:
        """Minimise the mean over mixtures of the waits that are tried.

        Args:
            rows: index of each row's length, ascending.
            p: probability of each row.
            tried: the waits that may be mixed.
            budget: share of the tokens.
            limit_s: the first `capped` rows must have `w + T_d` at or below this time, s.
            capped: the number of these rows.

        Returns:
            Shares and waits of each row, both of shape (2, rows); None where no mixture is within the budget.
        """
        waits_s, use, mean_s = tried.waits_s, tried.use, tried.mean_s
        tokens = self.tokens[rows]
        every = np.arange(rows.size)

        def totals(choice: NDArray[np.intp]) -> tuple[float, float]:
            return float(p @ mean_s[every, choice]), float((p * tokens) @ use[choice])

        # At an infinite price: the longest wait that is allowed.
        late = np.full(rows.size, waits_s.size - 1)
        if capped:
            allowed = tried.until_s[rows[:capped]] <= limit_s
            late[:capped] = np.count_nonzero(allowed, axis=1) - 1
            if late.min() < 0 or float((p * tokens) @ use[late]) > budget + _ROUNDING:
                return None
            mean_s = mean_s[rows]
            mean_s[:capped][~allowed] = np.inf
        # At a price of 0: the least use among the waits with the least time, which is the time without a wait.
        early = np.count_nonzero(mean_s == mean_s[:, :1], axis=1) - 1
        (time_early, use_early), (time_late, use_late) = totals(early), totals(late)
        if use_early <= budget:
            return np.stack([np.ones(rows.size), np.zeros(rows.size)]), np.stack([waits_s[early]] * 2)
        open_ = every
        for _ in range(_STEPS):
            if use_late >= budget:
                break
            price = (time_late - time_early) / (use_early - use_late)
            open_ = open_[early[open_] != late[open_]]
            middle = late.copy()
            middle[open_] = (mean_s[open_] + (price * tokens[open_])[:, None] * use).argmin(axis=1)
            time_middle, use_middle = totals(middle)
            bound = time_early + price * use_early
            if time_middle + price * use_middle >= bound - _ROUNDING * abs(bound):
                break
            if use_middle > budget:
                early, time_early, use_early = middle, time_middle, use_middle
            else:
                late, time_late, use_late = middle, time_middle, use_middle
        # Both ends are best at this price: shorter prompts get the early wait until the budget is used up.
        more = (p * tokens * (use[early] - use[late])).cumsum()
        left = max(budget - use_late, 0.0)
        at = int(more.searchsorted(left))
        shares = np.where(every < at, 1.0, 0.0)
        if at < rows.size:
            before = float(more[at - 1]) if at else 0.0
            shares[at] = (left - before) / (float(more[at]) - before) if left > before else 0.0
        return np.stack([shares, 1.0 - shares]), np.stack([waits_s[early], waits_s[late]])
