"""What a reader got: pure functions over `(time, tokens)` pairs.

A timeline is a list of `(at_s, tokens)` in order of time: one pair per delta generated, or released. The k
tokens of one delta count as k tokens at the same instant. Token indices start at 0, times are in seconds on
one clock, rates in tokens/s. Apply each function to the generated timeline for raw figures and to the
released one for what the reader saw; say which one is meant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = [
    "ReaderGaps",
    "Timeline",
    "fluidity",
    "gaps",
    "late_tokens",
    "lateness_s",
    "qoe",
    "quantile",
    "stall_ratio",
    "tbt_s",
    "token_times",
    "tpot_s",
    "ttft_s",
]

Timeline = Sequence[tuple[float, int]]

TOLERANCE_S = 1e-6
"""Lateness that counts as none: float rounding, far below what a clock or a reader resolves."""


def token_times(timeline: Timeline) -> list[float]:
    """One time per token, in order."""
    return [at for at, tokens in timeline for _ in range(tokens)]


def quantile(values: Iterable[float], q: float) -> float:
    """Quantile `q` in [0, 1], interpolated linearly between order statistics at `q·(n − 1)`.

    NaN for no values.
    """
    ordered = sorted(values)
    if not ordered:
        return math.nan
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def ttft_s(timeline: Timeline, submitted_at: float) -> float:
    """Time to first token: `t_0 − t_submit`. NaN when there is no token."""
    return next((at - submitted_at for at, tokens in timeline if tokens > 0), math.nan)


def tbt_s(timeline: Timeline) -> list[float]:
    """Times between tokens: `t_i − t_{i−1}` for i = 1 … n−1; zeros within a delta of several tokens."""
    times = token_times(timeline)
    return [after - before for before, after in pairwise(times)]


@dataclass(frozen=True, slots=True)
class ReaderGaps:
    """Quantiles of the time between tokens, in seconds; NaN when there are fewer than two tokens."""

    p50_s: float
    p90_s: float
    p99_s: float
    max_s: float


def gaps(timeline: Timeline) -> ReaderGaps:
    """P50, P90, P99 and maximum of `tbt_s`."""
    between = sorted(tbt_s(timeline))  # sorting what is sorted, as `quantile` does, costs next to nothing
    return ReaderGaps(
        p50_s=quantile(between, 0.5),
        p90_s=quantile(between, 0.9),
        p99_s=quantile(between, 0.99),
        max_s=max(between, default=math.nan),
    )


def tpot_s(timeline: Timeline) -> float:
    """Time per output token after the first: `(t_{n−1} − t_0)/(n − 1)`. NaN for fewer than two tokens."""
    times = token_times(timeline)
    return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else math.nan


def lateness_s(timeline: Timeline, reading_tps: float) -> list[float]:
    """How long after the reader's deadline each token came: `max(0, t_i − D_i)`, `D_i = t_0 + i/r_c`.

    t_0 is the first token of the same timeline, so the first token is never late.
    """
    times = token_times(timeline)
    return [max(0.0, at - (times[0] + i / reading_tps)) for i, at in enumerate(times)]


def late_tokens(timeline: Timeline, reading_tps: float) -> int:
    """How many tokens came more than `TOLERANCE_S` after the reader's deadline (see `lateness_s`)."""
    return sum(late > TOLERANCE_S for late in lateness_s(timeline, reading_tps))


def _reading_times(times: Sequence[float], reading_tps: float, first_at: float) -> list[float]:
    """When a reader reaches each token: `a_0 = first_at`, `a_i = max(t_i, a_{i−1} + 1/r)` (Andes, Eq. 2)."""
    reached: list[float] = []
    for at in times:
        reached.append(max(at, reached[-1] + 1 / reading_tps) if reached else first_at)
    return reached


def stall_ratio(timeline: Timeline, reading_tps: float) -> float:
    """Share of the time from the first token to the end of reading in which the reader waited.

    `Σ max(0, t_i − (a_{i−1} + 1/r_c)) / (a_{n−1} + 1/r_c − a_0)` with `a_0 = t_0`,
    `a_i = max(t_i, a_{i−1} + 1/r_c)`: this reader goes on from where it stalled, unlike the fixed deadlines
    of `lateness_s`. 0 for no tokens.
    """
    times = token_times(timeline)
    if not times:
        return 0.0
    reached = _reading_times(times, reading_tps, times[0])
    whole = reached[-1] + 1 / reading_tps - reached[0]
    return max(0.0, (whole - len(times) / reading_tps) / whole)


def qoe(timeline: Timeline, reading_tps: float, *, submitted_at: float, prompt_tokens: int) -> float:
    """Quality of experience after Andes (Eq. 1–3), at most 1.

    `D_i = t_submit + TTFT* + i/r` with `TTFT* = max(prompt_tokens/5000, 1)` s; `a_0 = max(t_0, D_0)`,
    `a_i = max(t_i, a_{i−1} + 1/r)`; `QoE = 1 − Σ(a_i − D_i)/Σ(a_i − t_submit)`. It models the reader's own
    buffer, so pacing can only leave it as it is or lower it. NaN for no tokens.
    """
    times = token_times(timeline)
    if not times:
        return math.nan
    first_due_at = submitted_at + max(prompt_tokens / 5000, 1.0)
    reached = _reading_times(times, reading_tps, max(times[0], first_due_at))
    behind_s = sum(at - (first_due_at + i / reading_tps) for i, at in enumerate(reached))
    return 1 - behind_s / sum(at - submitted_at for at in reached)


def fluidity(timeline: Timeline, *, submitted_at: float, ttft_target_s: float, tbt_target_s: float) -> float:
    """Share of tokens that meet their deadline (etalon's fluidity index).

    With `s_i` the time since the token before (since submission for the first) and `D_i` the target for it
    (`ttft_target_s` for the first, then `tbt_target_s`): token i meets its deadline when
    `s_i <= D_i + slack_{i−1}`; then `slack_i = slack_{i−1} + D_i − s_i`, after a miss 0. NaN for no tokens.
    """
    times = token_times(timeline)
    if not times:
        return math.nan
    met, slack_s, before_at, target_s = 0, 0.0, submitted_at, ttft_target_s
    for at in times:
        slack_s += target_s - (at - before_at)
        if slack_s >= -TOLERANCE_S:
            met += 1
        else:
            slack_s = 0.0
        before_at, target_s = at, tbt_target_s
    return met / len(times)
