"""DiSCo-D: the server always starts; the device joins after `w(l)`, and processes a share `b` of all tokens.

1. Tail: a share `min(α, b)` of the tokens is kept for slow servers: `w_tail = F⁻¹(1 − min(α, b))`.
2. The rest, `b − α`, pays for shorter waits of short prompts, in ascending length. A wait of 0 costs
   `share(l)·(1 − α)` in addition to the cost of the tail, with `share(l) = l·p(l)/E[l]`. The last length that
   the rest pays for is the boundary. In form "boundary", what is left for this length pays for a wait in between:
   `share(l)·(u(w*) − α) = left`, with `u(w) = P(T > w)`. In form "slope", waits of 0 get only half of `b − α`, and
   longer prompts wait `min(β·l, w_tail)`, with β such that the budget is spent exactly; the prompts of the boundary
   length are divided between the two.

The budget is `E[I_d(l)·l] = b·E[l]`. It holds exactly for the fitted distributions, with any steps and atoms in F,
because every wait is split between two neighbouring values (see `wait_quantiles`). Shorter prompts get the earlier
value, longer ones the later. Prompts of one length in between get them by turns (error diffusion over tokens).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from disco.candidate import Candidate
from disco.dispatch.planners.token_shares import TokenShares
from disco.dispatch.planners.wait_quantiles import (
    EmpiricalWaits,
    SampleWaits,
    SplitWait,
    WaitByLength,
    WaitSource,
)
from disco.dispatch.policies.policy import ErrorDiffusion, alone, check_share, expected
from disco.dispatch.request_features import Features
from disco.plan import Start, Why
from disco.profiles.length_distribution import Lengths
from disco.profiles.time_distribution import Empirical

__all__ = ["Form", "WaitPlan", "WaitTime", "plan_waits", "plan_waits_samples"]

Form = Literal["boundary", "slope"]

# In form "slope", the share of `b − α` that pays for waits of exactly 0; the rest sets the slope.
_HEAD_SHARE = 0.5
# How often the bracket around β is halved. The split between its ends makes the budget exact at any width.
_SLOPE_STEPS = 12


@dataclass(frozen=True, slots=True)
class WaitPlan:
    """How long the device waits for the server.

    Attributes:
        boundary_tokens: the boundary length; shorter prompts do not wait.
        edge: the wait of prompts of exactly the boundary length, s. In form "slope" the share `edge.p_early` of
            them does not wait, and the others wait in the same way as longer ones.
        tail: the wait of longer prompts, s.
        slope: None, or in form "slope" the wait of longer prompts in seconds per token, with the tail as its limit.
    """

    boundary_tokens: float
    edge: SplitWait
    tail: WaitByLength
    slope: WaitByLength | None = None

    def waits(self, lengths: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return all waits that may occur for each length (tokens, shape (m,)).

        Args:
            lengths: prompt lengths, tokens, int64, shape (m,).

        Returns:
            The share of the prompts of each length that get each wait, and the waits in seconds; both float64,
            shape (branches, m). The shares of a length sum to 1.
        """
        branches = self._branches(lengths)
        return np.stack([p for p, _ in branches]), np.stack([wait_s for _, wait_s in branches])

    def _branches(self, tokens: NDArray[np.int64]) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Return pairs of (share of the prompts of each length, wait of this share)."""
        below, at_edge = tokens < self.boundary_tokens, tokens == self.boundary_tokens
        edge = np.where(at_edge, self.edge.p_early, 0.0)
        at_once = np.where(below, 1.0, edge)
        if self.slope is None:
            later, rest = self.tail, np.where(below | at_edge, 0.0, 1.0)
        else:
            later, rest = self.slope, 1.0 - at_once
        p_early, early, late = later.mix(tokens)
        if self.slope is None:
            early_s, late_s = np.full(tokens.shape, early), np.full(tokens.shape, late)
            edge_late_s = np.full(tokens.shape, self.edge.late_s)
            return [
                (at_once, np.where(at_edge, self.edge.early_s, 0.0)),
                (np.where(at_edge, 1.0 - edge, 0.0), edge_late_s),
                (rest * p_early, early_s),
                (rest * (1.0 - p_early), late_s),
            ]
        longest_s = self.tail.late
        return [
            (at_once, np.zeros(tokens.shape)),
            (rest * p_early, np.minimum(early * tokens, longest_s)),
            (rest * (1.0 - p_early), np.minimum(late * tokens, longest_s)),
        ]


def plan_waits(
    lengths: Lengths, ttft: Empirical, budget: float, tail: float = 0.05, *, form: Form = "boundary"
) -> WaitPlan:
    """Return the plan for these distributions (paper, device-constrained dispatch).

    Args:
        lengths: prompt lengths in tokens.
        ttft: the server's time to first token as the user sees it, s.
        budget: share `b` in [0, 1] of all prompt tokens that the device may process.
        tail: share α in [0, 1] of all prompt tokens kept for slow servers.
        form: "boundary" or "slope".

    Raises:
        ValueError: a share out of range, or no prompt with tokens.
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
    """Return the plan for raw samples: lengths in tokens, int64, shape (n,), and times in s, float64, shape (m,).

    Args:
        lengths: prompt lengths, tokens, int64, shape (n,).
        ttft_s: the server's times to first token, s, float64, shape (m,).
        budget: share of all prompt tokens that the device may process, in [0, 1].
        tail: share of all prompt tokens kept for slow servers, in [0, 1).
        form: as in `plan_waits`.
    """
    return _plan(TokenShares.of_samples(lengths), SampleWaits(ttft_s), budget, tail, form)


def _plan(shares: TokenShares, source: WaitSource, budget: float, tail: float, form: Form) -> WaitPlan:
    check_share("budget", budget)
    check_share("tail", tail)
    kept = min(tail, budget)
    wait_tail = source.split(kept)
    if budget <= tail:
        return WaitPlan(-1.0, wait_tail, _by_length(shares, wait_tail))
    if form == "slope":
        head = _HEAD_SHARE * (budget - tail) / (1.0 - tail)  # the share of tokens without a wait
        return _plan_slope(shares, source, wait_tail, budget, head)
    return _plan_boundary(shares, source, wait_tail, kept, budget - tail)


def _by_length(shares: TokenShares, wait: SplitWait) -> WaitByLength:
    if not 0.0 < wait.p_early < 1.0:
        return WaitByLength(wait.mean_s, wait.mean_s)
    return WaitByLength(wait.early_s, wait.late_s, *shares.split(wait.p_early))


def _plan_boundary(
    shares: TokenShares, source: WaitSource, wait_tail: SplitWait, kept: float, left: float
) -> WaitPlan:
    """Give waits of 0 in ascending length; each costs `share(l)·(1 − u_tail(l))` of the share `left`."""
    tail = _by_length(shares, wait_tail)
    if tail.early == tail.late:
        boundary_tokens, part = shares.split(left / (1.0 - kept))
        return WaitPlan(boundary_tokens, source.split(kept + (1.0 - kept) * part), tail)
    use_early, use_late = source.use_at(tail.early), source.use_at(tail.late)
    early_cost = wait_tail.p_early * (1.0 - use_early)
    # Shorter prompts come first, and their tail wait is the early one.
    beyond = left - early_cost
    head = left / (1.0 - use_early) if beyond < 0.0 else wait_tail.p_early + beyond / (1.0 - use_late)
    boundary_tokens, part = shares.split(head)
    use_tail = use_early if boundary_tokens < tail.tokens else use_late
    if boundary_tokens == tail.tokens:
        # The tail wait of this length is a mixture, so all its tokens cost the same.
        use_tail = use_late + tail.part * (use_early - use_late)
        below, own = shares.at(boundary_tokens)
        part = (left - below * (1.0 - use_early)) / (own * (1.0 - use_tail))
        part = min(max(part, 0.0), 1.0)
    return WaitPlan(boundary_tokens, source.split(use_tail + (1.0 - use_tail) * part), tail)


def _plan_slope(
    shares: TokenShares, source: WaitSource, wait_tail: SplitWait, budget: float, head: float
) -> WaitPlan:
    """Find β such that the prompts without a wait and `Σ share(l)·u(min(β·l, w_tail))` of the others sum to b."""
    boundary_tokens, part = shares.split(head)
    lengths, share = shares.from_length(boundary_tokens)
    share[0] *= 1.0 - part
    target = budget - head

    # One split is enough for an exact budget: the tail uses its later wait, and the slope spends the difference.
    tail_s = wait_tail.late_s

    def spent(slope: float) -> NDArray[np.float64]:
        return np.asarray(share * source.use(np.minimum(slope * lengths, tail_s)))

    # A shallower slope uses the device more. The target lies between a slope of 0, which uses it for every prompt, and
    # a slope at which every prompt waits as long as the tail, which leaves half of b − α unspent.
    shallow, spent_shallow = 0.0, share
    steep = _outlasting(tail_s, source, float(lengths[0]))
    spent_steep = spent(steep)
    for _ in range(_SLOPE_STEPS):
        slope = 0.5 * (shallow + steep)
        spent_by = spent(slope)
        if float(spent_by.sum()) >= target:
            shallow, spent_shallow = slope, spent_by
        else:
            steep, spent_steep = slope, spent_by
    more = (spent_shallow - spent_steep).cumsum()  # shorter prompts take the shallower slope
    wanted = target - float(spent_steep.sum())
    at = int(more.searchsorted(wanted))
    if wanted <= 0.0 or at >= more.size:
        by_length = WaitByLength(shallow, steep, -1.0 if wanted <= 0.0 else float("inf"))
    else:
        before = float(more[at - 1]) if at else 0.0
        by_length = WaitByLength(
            shallow, steep, float(lengths[at]), (wanted - before) / (float(more[at]) - before)
        )
    edge = SplitWait(0.0, float("inf"), part)
    return WaitPlan(boundary_tokens, edge, WaitByLength(tail_s, tail_s), by_length)


def _outlasting(tail_s: float, source: WaitSource, shortest_tokens: float) -> float:
    """Return a slope, s/token, at which even the shortest waiting prompt waits as long as the tail."""
    wait_s = tail_s
    if wait_s == float("inf"):
        wait_s = 1.0
        while float(source.use(np.array([wait_s]))[0]) > 0.0:
            wait_s *= 2.0
    return 2.0 * wait_s / max(shortest_tokens, 1.0)  # twice, so that rounding cannot make it too short


class WaitTime:
    """The policy. Which of two neighbouring waits a request gets depends on `rng` and on earlier requests.

    Args:
        plan: how long each length waits.
        budget: share of all prompt tokens that the device may process, in [0, 1].
        rng: decides between two neighbouring waits.
        tail: share of all prompt tokens kept for slow servers, in [0, 1).
        form: as in `plan_waits`.
    """

    name = "wait_time"

    # Mutable: plan (through refit), _edge, _later.
    __slots__ = ("_alpha", "_budget", "_edge", "_form", "_later", "plan")

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
        self._edge, self._later = ErrorDiffusion(rng), ErrorDiffusion(rng)

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
        """Make the policy with a plan for these distributions; see `plan_waits`.

        Args:
            lengths: prompt lengths, tokens.
            ttft: the server's time to first token, s.
            budget: share of all prompt tokens that the device may process, in [0, 1].
            rng: decides between two neighbouring waits.
            tail: share of all prompt tokens kept for slow servers, in [0, 1).
            form: as in `plan_waits`.
        """
        plan = plan_waits(lengths, ttft, budget, tail, form=form)
        return cls(plan, budget=budget, tail=tail, form=form, rng=rng)

    def refit(self, lengths: Lengths, ttft: Empirical) -> None:
        self.plan = plan_waits(lengths, ttft, self._budget, self._alpha, form=self._form)

    def wait_s(self, tokens: int) -> float:
        """Return the wait of the next request with `tokens` prompt tokens, s; `inf`: the device does not start."""
        plan = self.plan
        if tokens < plan.boundary_tokens:
            return 0.0
        if tokens == plan.boundary_tokens:
            wait_s = _pick(plan.edge, self._edge, tokens)
            if plan.slope is None or wait_s == 0.0:
                return wait_s
        if plan.slope is None:
            return _pick_by_length(plan.tail, self._later, tokens)
        return min(_pick_by_length(plan.slope, self._later, tokens) * tokens, plan.tail.late)

    def starts(
        self, features: Features, device: Candidate | None, server: Candidate | None
    ) -> tuple[Start, ...]:
        if device is None or server is None:
            return alone(device, server, features.prompt_tokens)
        wait_s = self.wait_s(features.prompt_tokens)
        tokens, times = features.prompt_tokens, (server.times_from, server.times_seen)
        first = expected("server_and_wait", server, tokens)
        if wait_s == float("inf"):
            return (Start(server.name, 0.0, Why("no_device", tokens, None, *times)),)
        return Start(server.name, 0.0, first), Start(
            device.name, wait_s, Why("wait", wait_s, first.value, *times)
        )


def _pick(wait: SplitWait, diffusion: ErrorDiffusion, tokens: int) -> float:
    p_early = wait.p_early
    if p_early <= 0.0:
        return wait.late_s
    if p_early >= 1.0:
        return wait.early_s
    return wait.early_s if diffusion.take(p_early, tokens) else wait.late_s


def _pick_by_length(wait: WaitByLength, diffusion: ErrorDiffusion, tokens: int) -> float:
    if tokens == wait.tokens:
        return wait.early if diffusion.take(wait.part, tokens) else wait.late
    return wait.early if tokens < wait.tokens else wait.late
