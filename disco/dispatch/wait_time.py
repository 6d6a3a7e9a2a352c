"""DiSCo-D: the server always starts; the device joins after `w(l)`, and sees a share `b` of all tokens.

1. Tail: a share `min(α, b)` of the tokens is kept for slow servers: `w_tail = F⁻¹(1 − min(α, b))`.
2. The rest, `b − α`, buys shorter waits for short prompts, in ascending length. A wait of 0 costs
   `share(l)·(1 − α)` beyond what the tail already pays, with `share(l) = l·p(l)/E[l]`. The last length that
   can be helped is the boundary; what is left for it goes into a wait in between
   (form "boundary": `share(l)·(u(w*) − α) = left`, with `u(w) = P(T > w)`). In form "slope" waits of 0
   get only half of `b − α`, and longer prompts wait `min(β·l, w_tail)`, with β such that the budget is
   spent exactly; the boundary length is divided between the two.

The contract is `E[I_d(l)·l] = b·E[l]`. It holds exactly for the fitted distributions, with any steps and
atoms in F, because every wait is split between two neighbouring values (see `waits`); which request gets
which is spread by error diffusion over tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from disco.dispatch.base import Diffusion, alone, check_share
from disco.dispatch.features import Features
from disco.dispatch.plan import Candidate, Start
from disco.dispatch.shares import TokenShares
from disco.dispatch.waits import EmpiricalWaits, SampleWaits, SplitWait, WaitSource
from disco.profiles.distributions import Empirical
from disco.profiles.lengths import Lengths

__all__ = ["Form", "WaitPlan", "WaitTime", "plan_waits", "plan_waits_samples"]

Form = Literal["boundary", "slope"]

# In the slope form, the share of `b − α` that buys waits of exactly 0; the rest sets the slope.
_HEAD_SHARE = 0.5
# Halvings of the bracket around β. The split between its ends makes the budget exact at any width.
_SLOPE_STEPS = 12


@dataclass(frozen=True, slots=True)
class WaitPlan:
    """How long the device waits for the server.

    Attributes:
        boundary_tokens: shorter prompts do not wait.
        edge: the wait of prompts of exactly that length, s. In form "slope" the share `edge.p_early` of
            them does not wait, and the others wait like longer ones.
        tail: the wait of longer prompts, s.
        slope: None, or seconds per token that longer prompts wait, at most the tail (form "slope"): the
            shallower for the share `p_early` of requests.
    """

    boundary_tokens: float
    edge: SplitWait
    tail: SplitWait
    slope: SplitWait | None = None

    def mean_wait_s(self, lengths: ArrayLike) -> NDArray[np.float64]:
        """The mean wait for each length in tokens: s, float64, same shape."""
        tokens = np.asarray(lengths)
        if self.slope is None:
            longer = np.full(tokens.shape, self.tail.mean_s)
            edge = np.full(tokens.shape, self.edge.mean_s)
        else:
            longer = sum((p * w for p, w in self._slope_branches(tokens)), np.zeros(tokens.shape))
            edge = (1.0 - self.edge.p_early) * longer
        return self._by_length(tokens, 0.0, edge, longer)

    def use_probability(self, lengths: ArrayLike, ttft: Empirical) -> NDArray[np.float64]:
        """`P(I_d(l) = 1)` for each length in tokens when the server's TTFT follows `ttft`; same shape."""
        tokens = np.asarray(lengths)
        source = EmpiricalWaits(ttft)
        if self.slope is None:
            longer = np.full(tokens.shape, _mean_use(source, self.tail))
            edge = np.full(tokens.shape, _mean_use(source, self.edge))
        else:
            longer = sum((p * source.use(w) for p, w in self._slope_branches(tokens)), np.zeros(tokens.shape))
            edge = self.edge.p_early + (1.0 - self.edge.p_early) * longer
        return self._by_length(tokens, 1.0, edge, longer)

    def _by_length(
        self,
        tokens: NDArray[np.int64],
        shorter: float,
        edge: NDArray[np.float64],
        longer: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        at_least = np.where(tokens == self.boundary_tokens, edge, longer)
        return np.where(tokens < self.boundary_tokens, shorter, at_least)

    def _slope_branches(self, tokens: NDArray[np.int64]) -> list[tuple[float, NDArray[np.float64]]]:
        assert self.slope is not None
        return [
            (p_early, np.minimum(slope * tokens, self.tail.late_s))
            for p_early, slope in _branches(self.slope)
        ]


def plan_waits(
    lengths: Lengths, ttft: Empirical, budget: float, tail: float = 0.05, *, form: Form = "boundary"
) -> WaitPlan:
    """Plan from distributions (paper, device-constrained dispatch).

    Args:
        lengths: prompt lengths in tokens.
        ttft: the server's time to first token as the user feels it, s.
        budget: share `b` in [0, 1] of all prompt tokens that the device may process.
        tail: share α in [0, 1] of all prompt tokens kept for slow servers.
        form: "boundary" or "slope".

    Raises:
        ValueError: a share out of range, or nothing to plan from.
    """
    return _plan(TokenShares.of(lengths), EmpiricalWaits(ttft), budget, tail, form)


def plan_waits_samples(
    lengths: NDArray[np.int64],
    ttft_s: NDArray[np.float64],
    budget: float,
    tail: float = 0.05,
    *,
    form: Form = "boundary",
) -> WaitPlan:
    """The same straight from raw samples: lengths in tokens, shape (n,), and times in s, shape (m,)."""
    return _plan(TokenShares.of_samples(lengths), SampleWaits(ttft_s), budget, tail, form)


def _plan(shares: TokenShares, source: WaitSource, budget: float, tail: float, form: Form) -> WaitPlan:
    check_share("budget", budget)
    check_share("tail", tail)
    kept = min(tail, budget)
    wait_tail = source.split(kept)
    if budget <= tail:
        return WaitPlan(-1.0, wait_tail, wait_tail)
    head = (budget - tail) / (1.0 - tail)  # the share of tokens that can go without a wait
    if form == "slope":
        return _plan_slope(shares, source, wait_tail, budget, head * _HEAD_SHARE)
    boundary_tokens, part = shares.split(head)
    edge = source.split(kept + (1.0 - kept) * part)
    return WaitPlan(boundary_tokens, edge, wait_tail)


def _plan_slope(
    shares: TokenShares, source: WaitSource, wait_tail: SplitWait, budget: float, head: float
) -> WaitPlan:
    """β such that prompts without a wait and `Σ share(l)·u(min(β·l, w_tail))` of the rest make up b."""
    boundary_tokens, part = shares.split(head)
    lengths, share = shares.from_length(boundary_tokens)
    share[0] *= 1.0 - part
    target = budget - head

    # One split is enough for an exact budget. Two would have to be drawn independently of each other, which
    # error diffusion does not do, so the tail takes its later wait and the slope spends the difference.
    tail_s = wait_tail.late_s

    def spent(slope: float) -> float:
        return float(share @ source.use(np.minimum(slope * lengths, tail_s)))

    # A shallower slope uses the device more: the target lies between 0 (everything) and one so steep that
    # every prompt waits as long as the tail (which leaves the half of b − α unspent that is to be spread).
    shallow, use_shallow = 0.0, float(share.sum())
    steep = _outlasting(tail_s, source, float(lengths[0]))
    use_steep = spent(steep)
    for _ in range(_SLOPE_STEPS):
        slope = 0.5 * (shallow + steep)
        use = spent(slope)
        if use >= target:
            shallow, use_shallow = slope, use
        else:
            steep, use_steep = slope, use
    gap = use_shallow - use_steep
    p_early = min(max((target - use_steep) / gap, 0.0), 1.0) if gap > 0.0 else 0.0
    edge = SplitWait(0.0, float("inf"), part)
    return WaitPlan(boundary_tokens, edge, SplitWait(tail_s, tail_s, 0.0), SplitWait(shallow, steep, p_early))


def _outlasting(tail_s: float, source: WaitSource, shortest_tokens: float) -> float:
    """A slope, s/token, at which even the shortest waiting prompt waits as long as the tail."""
    wait_s = tail_s
    if wait_s == float("inf"):
        wait_s = 1.0
        while float(source.use(np.array([wait_s]))[0]) > 0.0:
            wait_s *= 2.0
    return 2.0 * wait_s / max(shortest_tokens, 1.0)  # twice: rounding must not leave it a hair short


def _branches(wait: SplitWait) -> list[tuple[float, float]]:
    both = [(wait.p_early, wait.early_s), (1.0 - wait.p_early, wait.late_s)]
    return [(p, wait_s) for p, wait_s in both if p > 0.0]


def _mean_use(source: WaitSource, wait: SplitWait) -> float:
    return float(sum(p * source.use(np.array([wait_s]))[0] for p, wait_s in _branches(wait)))


class WaitTime:
    """The policy. Which of two neighbouring waits a request gets depends on `rng` and on earlier ones."""

    name = "wait_time"

    # Mutable: plan (through refit), _edge, _tail, _slope.
    __slots__ = ("_alpha", "_budget", "_edge", "_form", "_slope", "_tail", "plan")

    def __init__(
        self,
        plan: WaitPlan,
        *,
        budget: float,
        rng: np.random.Generator,
        tail: float = 0.05,
        form: Form = "boundary",
    ) -> None:
        self.plan = plan
        self._budget = check_share("budget", budget)
        self._alpha = check_share("tail", tail)
        self._form: Form = form
        self._edge, self._tail, self._slope = Diffusion(rng), Diffusion(rng), Diffusion(rng)

    @classmethod
    def fitted(
        cls,
        lengths: Lengths,
        ttft: Empirical,
        *,
        budget: float,
        rng: np.random.Generator,
        tail: float = 0.05,
        form: Form = "boundary",
    ) -> WaitTime:
        """Plan and wrap; see `plan_waits`."""
        plan = plan_waits(lengths, ttft, budget, tail, form=form)
        return cls(plan, budget=budget, tail=tail, form=form, rng=rng)

    def refit(self, lengths: Lengths, ttft: Empirical) -> None:
        self.plan = plan_waits(lengths, ttft, self._budget, self._alpha, form=self._form)

    def wait_s(self, tokens: int) -> float:
        """The wait of the next request of that many prompt tokens, s; `inf`: the device stays out."""
        plan = self.plan
        if tokens < plan.boundary_tokens:
            return 0.0
        if tokens == plan.boundary_tokens:
            wait_s = _pick(plan.edge, self._edge, tokens)
            if plan.slope is None or wait_s == 0.0:
                return wait_s
        tail_s = _pick(plan.tail, self._tail, tokens)
        if plan.slope is None:
            return tail_s
        return min(_pick(plan.slope, self._slope, tokens) * tokens, tail_s)

    def starts(
        self, features: Features, device: Candidate | None, server: Candidate | None
    ) -> tuple[Start, ...]:
        if device is None or server is None:
            return alone(device, server)
        wait_s = self.wait_s(features.prompt_tokens)
        if wait_s == float("inf"):
            return (Start(server.name),)
        return Start(server.name), Start(device.name, wait_s)


def _pick(wait: SplitWait, diffusion: Diffusion, tokens: int) -> float:
    p_early = wait.p_early
    if p_early <= 0.0:
        return wait.late_s
    if p_early >= 1.0:
        return wait.early_s
    return wait.early_s if diffusion.take(p_early, tokens) else wait.late_s
