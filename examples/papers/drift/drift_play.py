"""Plays a workload under one planner, request by request, through the dispatch code of a live client.

`TwoSided` decides, with the budget's rule or without it. What a client learns is what it would see: the server's time
if the server wins, else only that it took longer. The vectorised evaluator plans all requests at once. So it can
neither learn in between nor ask the budget's rule, which depends on outcomes; a test checks that this loop agrees with
it where both apply.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from disco.candidate import Candidate
from disco.dispatch import DispatchSection, Features, TwoSided
from disco.profiles import Empirical, Lengths, load_device
from disco.rates import Rates
from disco.replay import alpaca_like
from papers.drift.drift_planners import ForecastPolicy, Planner, knowledge_of
from papers.drift.drift_workloads import Times

__all__ = ["WARM", "Played", "Setting", "play", "prompt_lengths", "worst_window"]

WARM: Final = 200  # requests that every planner has seen the server answer, before the comparison begins
WINDOW: Final = 200  # requests in which the budget's rule keeps the budget
TEMPLATE_TOKENS: Final = 7  # of a message and of the answer's header, in every prompt
_POLICIES: Final = {"device": "wait_time", "server": "length_threshold"}
_RATES: Final = Rates(1e-7, 1e-7)
_NEVER_JOINS_S: Final = 1e6

Side = Literal["device", "server"]


@dataclass(frozen=True, slots=True)
class Setting:
    """What is the same for all planners.

    Attributes:
        limited: the side that the budget limits: "device" (DiSCo-D) or "server" (DiSCo-S).
        budget: share of all prompt tokens that this side may process.
        tail: the paper's α.
        device: name of a device profile.
    """

    limited: Side
    budget: float
    tail: float = 0.05
    device: str = "pixel7pro-bloom-1.1b"


@dataclass(frozen=True, slots=True)
class Played:
    """What became of the requests after the first `WARM` ones.

    Attributes:
        ttft_s: s, float64, shape (n,).
        prompt_tokens: int64, shape (n,).
        used: on which the limited side was started, bool, shape (n,).
        changes: how many changes the planner's detector found.
    """

    ttft_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    used: NDArray[np.bool_]
    changes: int = 0

    @property
    def budget_used(self) -> float:
        """The share of all prompt tokens that the limited side was started on."""
        return float(self.prompt_tokens[self.used].sum() / self.prompt_tokens.sum())


def prompt_lengths(n: int, seed: int) -> NDArray[np.int64]:
    """Return prompt lengths like Alpaca's, with a chat template as a live client counts it; tokens, shape (n,)."""
    return alpaca_like(n, seed + 1_000_003).prompt_tokens + TEMPLATE_TOKENS


def play(
    times: Times,
    planner: Planner,
    setting: Setting,
    seed: int,
    *,
    predicted_s: NDArray[np.float64] | None = None,
) -> Played:
    """Play a workload; the first `WARM` requests only teach the planner.

    Args:
        times: at least `WARM` + 1 requests.
        planner: what is known of the server, and whether the budget's rule applies.
        setting: the limited side and the budget.
        seed: of prompt lengths and of the policy's ties.
        predicted_s: what the planner's point forecast predicts, shape (n,); only for such planners.
    """
    n = times.ttft_s.size
    tokens = prompt_lengths(n, seed)
    line = load_device(setting.device).line
    device = Candidate(
        "device", "device", rates=_RATES, prefill_tps=1.0 / line.k_s_per_token, overhead_s=line.c_s
    )
    # So slow, it joins no device that reads slowly (`slow_reader`): that rule goes by the server's times, and what is
    # known of these is what the planners differ in.
    server = Candidate("server", "any", rates=_RATES, overhead_s=_NEVER_JOINS_S)
    lengths = Lengths.from_samples(tokens)
    knowledge = knowledge_of(planner, times, WARM)
    by_forecast: ForecastPolicy | None = None
    if predicted_s is not None:
        by_forecast = ForecastPolicy(predicted_s, budget=setting.budget, limited=setting.limited)
    two_sided = TwoSided(
        DispatchSection(policy=_POLICIES[setting.limited], budget=setting.budget, tail=setting.tail),
        lengths=lengths,
        ttft=Empirical.from_samples(times.ttft_s[:WARM]),
        rng=np.random.default_rng([seed, 4]),
        policy=by_forecast,
        holds_budget=planner.governed,
    )
    ttft_s, used = np.empty(n), np.zeros(n, dtype=np.bool_)
    for row in range(WARM, n):
        if by_forecast is not None:
            by_forecast.row = row
        elif (known := knowledge.plan_with(row)) is not None:
            two_sided.refit(lengths, known)
        features = Features(prompt_tokens=int(tokens[row]))
        arranged = two_sided.arrange(features, (device, server), "standard")
        delays = {start.endpoint: start.after_s for start in arranged.starts}
        after_s, server_after_s = delays.get("device", inf), delays.get("server", inf)
        device_at = after_s + device.time_to_first_token_s(features.prompt_tokens)
        server_at = server_after_s + float(times.ttft_s[row])
        ttft_s[row] = min(device_at, server_at)
        used[row] = after_s < server_at if setting.limited == "device" else server_after_s < device_at
        if arranged.spend is not None:
            two_sided.settle(arranged.spend, used=bool(used[row]))
        if server_at <= device_at:
            knowledge.observe(float(times.ttft_s[row]), censored=False)
        elif server_after_s < device_at:
            knowledge.observe(device_at - server_after_s, censored=True)
    return Played(ttft_s[WARM:], tokens[WARM:], used[WARM:], knowledge.changes)


def worst_window(played: Played, budget: float, window: int = WINDOW) -> float:
    """Return how far the worst window of requests exceeds the budget, in prompts: at most 1 keeps the promise.

    That is, over all windows, the largest `(tokens used − b · tokens) / longest prompt of the window`.
    """
    net = played.prompt_tokens * (played.used - budget)
    sums = np.concatenate([[0.0], net.cumsum()])
    window = min(window, net.size)
    over = sums[window:] - sums[:-window]
    longest = np.lib.stride_tricks.sliding_window_view(played.prompt_tokens, window).max(axis=1)
    return float((over / longest).max())
