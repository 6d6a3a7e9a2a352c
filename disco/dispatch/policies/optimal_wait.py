"""Optimal wait: the server always starts; the device joins after the wait that makes the mean TTFT smallest.

The paper's wait-time plan spends the budget on short prompts for any distribution of the server's times. This policy
spends it where a token gains most (see `optimal_plan` for the method). It keeps the same budget,
`E[I_d(l)·l] = b·E[l]`, and with `tail` above 0 it does not make P99 worse.

The policy spares the device. Where the server is the expensive side, the policy still keeps its budget, but then the
budget limits the cheap side. The plan for that regime leaves nothing to optimise. With the server spared and the
device always on, a prompt of `l` tokens gains `E[max(0, T_d(l) − T_s)] = ∫_0^{T_d(l)} F dt` from the server, for `l`
tokens. Without a fixed part of `T_d` (c = 0), this gain per token grows with `l`, since F does not decrease. So the
longest prompts come first, and that is the length threshold.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from disco.candidate import Candidate
from disco.dispatch.planners.optimal_plan import OptimalPlan, device_times_s, plan_optimal_waits
from disco.dispatch.policies.policy import ErrorDiffusion, alone, expected
from disco.dispatch.request_features import Features
from disco.plan import Start, Why
from disco.profiles.length_distribution import Lengths
from disco.profiles.time_distribution import Empirical

__all__ = ["OptimalWait"]

# The plan is made again when the device has become faster or slower by this share.
_SPEED_CHANGE = 0.1
# A table by token count is fastest as long as it fits the processor's cache.
_DENSE_LIMIT_TOKENS = 1 << 16
# A plan divides at most two lengths, one of them into up to three waits.
_DIVISIONS = 4


class _Decisions:
    """A plan prepared for fast decisions, one or many at a time; the error diffusions hold the state between them."""

    # Mutable: _dense, None until needed. _waits_s: the most frequent wait of each length. _lengths_at and _wait_at are
    # views that return Python numbers faster than numpy does. _divided: the lengths with several waits; for each wait
    # but the last, its share of the remaining prompts, the wait, and its error diffusion; then the last wait.
    __slots__ = ("_dense", "_divided", "_lengths", "_lengths_at", "_wait_at", "_waits_s")

    def __init__(self, plan: OptimalPlan, diffusions: Sequence[ErrorDiffusion]) -> None:
        self._lengths = plan.lengths
        self._waits_s = plan.waits_s[plan.shares.argmax(axis=0), np.arange(plan.lengths.size)]
        self._lengths_at, self._wait_at = self._lengths.data, self._waits_s.data
        self._dense: NDArray[np.float64] | None = None
        self._divided: dict[int, tuple[list[tuple[float, float, ErrorDiffusion]], float]] = {}
        free = iter(diffusions)
        for column in np.flatnonzero((plan.shares > 0.0).sum(axis=0) > 1).tolist():
            share_by_wait: dict[float, float] = {}
            branches = zip(plan.waits_s[:, column].tolist(), plan.shares[:, column].tolist(), strict=True)
            for wait_s, share in sorted(branches):
                if share > 0.0:
                    share_by_wait[wait_s] = share_by_wait.get(wait_s, 0.0) + share
            left, turns = sum(share_by_wait.values()), []
            *earlier, last_s = share_by_wait
            for wait_s in earlier:
                turns.append((min(share_by_wait[wait_s] / left, 1.0), wait_s, next(free)))
                left -= share_by_wait[wait_s]
            self._divided[int(plan.lengths[column])] = turns, last_s

    def wait_s(self, tokens: int) -> float:
        divided = self._divided.get(tokens)
        if divided is None:
            at = bisect_left(self._lengths_at, tokens)
            wait_s: float = self._wait_at[min(at, len(self._wait_at) - 1)]
            return wait_s
        turns, last_s = divided
        for share, early_s, diffusion in turns:
            if diffusion.take(share, tokens):
                return early_s
        return last_s

    def waits_s(self, prompt_tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        if self._lengths[-1] < _DENSE_LIMIT_TOKENS:
            if self._dense is None:
                self._dense = np.repeat(self._waits_s, np.diff(self._lengths, prepend=-1))
            waits_s = self._dense.take(prompt_tokens, mode="clip")
        else:
            waits_s = self._waits_s.take(self._lengths.searchsorted(prompt_tokens), mode="clip")
        for tokens, (turns, last_s) in self._divided.items():
            left = np.flatnonzero(prompt_tokens == tokens)
            for share, early_s, diffusion in turns:
                early = diffusion.take_many(share, tokens, left.size)
                waits_s[left[early]] = early_s
                left = left[~early]
            waits_s[left] = last_s
        return waits_s


class OptimalWait:
    """The policy. Prompts of an unobserved length wait as long as prompts of the next longer observed length."""

    name = "optimal_wait"

    # Mutable: _lengths, _ttft, _device, _plan, _decisions (None: to be planned), _diffusions.
    __slots__ = (
        "_budget",
        "_decisions",
        "_device",
        "_diffusions",
        "_lengths",
        "_plan",
        "_tail",
        "_ttft",
    )

    def __init__(
        self,
        lengths: Lengths,
        ttft: Empirical,
        device: Candidate,
        *,
        budget: float,
        rng: np.random.Generator,
        tail: float = 0.0,
    ) -> None:
        """Make the policy and its plan; see `plan_optimal_waits`.

        Args:
            lengths: prompt lengths, tokens.
            ttft: the server's time to first token, s.
            device: the device, with its speed.
            budget: share b in [0, 1] of all prompt tokens that the device may process.
            rng: sets the phase of the error diffusions, for lengths that are divided among several waits.
            tail: 0, or α of the paper's plan whose P99 must not be exceeded.
        """
        self._lengths, self._ttft, self._device = lengths, ttft, device
        self._budget, self._tail = budget, tail
        self._diffusions = tuple(ErrorDiffusion(rng) for _ in range(_DIVISIONS))
        self._decisions: _Decisions | None = None
        self._plan = self._replan(device)

    @property
    def plan(self) -> OptimalPlan:
        """The plan that the policy follows now."""
        return self._plan if self._decisions is not None else self._replan(self._device)

    def refit(self, lengths: Lengths, ttft: Empirical) -> None:
        """Plan again when the next request comes; the error diffusions keep their rounding error.

        Args:
            lengths: prompt lengths, tokens.
            ttft: the server's time to first token, s.
        """
        self._lengths, self._ttft = lengths, ttft
        self._decisions = None

    def wait_s(self, tokens: int) -> float:
        """Return the wait of the next request with `tokens` prompt tokens, s; `inf`: the device does not start."""
        return self._ready().wait_s(tokens)

    def starts(
        self, features: Features, device: Candidate | None, server: Candidate | None
    ) -> tuple[Start, ...]:
        if device is None or server is None:
            return alone(device, server, features.prompt_tokens)
        if device is not self._device and self._has_changed(device):
            self._replan(device)
        wait_s = self.wait_s(features.prompt_tokens)
        tokens, times = features.prompt_tokens, (server.times_from, server.times_seen)
        first = expected("server_and_wait", server, tokens)
        if wait_s == float("inf"):
            return (Start(server.name, 0.0, Why("no_device", tokens, None, *times)),)
        return Start(server.name, 0.0, first), Start(
            device.name, wait_s, Why("wait", wait_s, first.value, *times)
        )

    def waits_s(self, prompt_tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the wait of each of these requests, in order: s, float64, shape (n,).

        Args:
            prompt_tokens: their lengths, int64, shape (n,).
        """
        return self._ready().waits_s(prompt_tokens)

    def _has_changed(self, device: Candidate) -> bool:
        """Whether the device's time for a prompt of mean length differs from the planned one by `_SPEED_CHANGE`."""
        tokens = np.array([self._lengths.mean()])
        known_s, now_s = (float(device_times_s(one, tokens)[0]) for one in (self._device, device))
        return abs(now_s - known_s) > _SPEED_CHANGE * known_s

    def _ready(self) -> _Decisions:
        if self._decisions is None:
            self._replan(self._device)
        assert self._decisions is not None
        return self._decisions

    def _replan(self, device: Candidate) -> OptimalPlan:
        plan = plan_optimal_waits(self._lengths, self._ttft, device, self._budget, self._tail)
        self._device, self._plan = device, plan
        self._decisions = _Decisions(plan, self._diffusions)
        return plan
