"""Metrics of what a reader got: pure functions over `(time, tokens)` pairs.

A timeline is a list of `(at_s, tokens)` in order of time: one pair per delta generated, or released. The k
tokens of one delta count as k tokens at the same time. Token indices start at 0, times are in seconds on
one clock, rates in tokens/s. Apply each function to the generated timeline for raw figures, and to the
released timeline for what the reader saw; always report which of the two a figure is for.
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
    "silences_s",
    "stall_ratio",
    "tbt_s",
    "token_times",
    "tpot_s",
    "ttft_s",
]

Timeline = Sequence[tuple[float, int]]

TOLERANCE_S = 1e-6
"""Lateness up to this counts as none, s: it is float rounding, far below what a clock or a reader can resolve."""


def token_times(timeline: Timeline) -> list[float]:
    """Return one time per token, in order."""
    return [at for at, tokens in timeline for _ in range(tokens)]


def quantile(values: Iterable[float], q: float) -> float:
    """Return quantile `q` in [0, 1], interpolated linearly between order statistics at `q·(n − 1)`.

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
    """Return the time to first token: `t_0 − t_submit`. NaN when there is no token."""
    return next((at - submitted_at for at, tokens in timeline if tokens > 0), math.nan)


def tbt_s(timeline: Timeline) -> list[float]:
    """Return the times between tokens: `t_i − t_{i−1}` for i = 1 … n−1; zeros within a delta of several tokens."""
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
    """Return P50, P90, P99 and maximum of `tbt_s`."""
    between = sorted(tbt_s(timeline))  # `quantile` sorts again, which costs very little on sorted values
    return ReaderGaps(
        p50_s=quantile(between, 0.5),
        p90_s=quantile(between, 0.9),
        p99_s=quantile(between, 0.99),
        max_s=max(between, default=math.nan),
    )


def tpot_s(timeline: Timeline) -> float:
    """Return the time per output token after the first: `(t_{n−1} − t_0)/(n − 1)`. NaN for fewer than two tokens."""
    times = token_times(timeline)
    return (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else math.nan


def lateness_s(timeline: Timeline, reading_tps: float) -> list[float]:
    """Return how long after the reader's deadline each token came: `max(0, t_i − D_i)`, `D_i = t_0 + i/r_c`, s.

    t_0 is the time of the first token of the same timeline, so the first token is never late.
    """
    times = token_times(timeline)
    return [max(0.0, at - (times[0] + i / reading_tps)) for i, at in enumerate(times)]


def late_tokens(timeline: Timeline, reading_tps: float) -> int:
    """Return how many tokens came more than `TOLERANCE_S` after the reader's deadline (see `lateness_s`)."""
    return sum(late > TOLERANCE_S for late in lateness_s(timeline, reading_tps))


def _reading_times(times: Sequence[float], reading_tps: float, first_at: float) -> list[float]:
    """Return when a reader reaches each token: `a_0 = first_at`, `a_i = max(t_i, a_{i−1} + 1/r)` (Andes, Eq. 2)."""
    reached: list[float] = []
    for at in times:
        reached.append(max(at, reached[-1] + 1 / reading_tps) if reached else first_at)
    return reached


def stall_ratio(timeline: Timeline, reading_tps: float) -> float:
    """Return the share of the time from the first token to the end of reading in which the reader waited.

    `Σ max(0, t_i − (a_{i−1} + 1/r_c)) / (a_{n−1} + 1/r_c − a_0)` with `a_0 = t_0`,
    `a_i = max(t_i, a_{i−1} + 1/r_c)`. After a stall, the reader's schedule continues from the late token; the
    deadlines of `lateness_s` are fixed instead. 0 for no tokens.
    """
    times = token_times(timeline)
    if not times:
        return 0.0
    reached = _reading_times(times, reading_tps, times[0])
    whole = reached[-1] + 1 / reading_tps - reached[0]
    return max(0.0, (whole - len(times) / reading_tps) / whole)


def silences_s(timeline: Timeline, speaking_tps: float) -> list[float]:
    """Return how long a voice had nothing to say before each delta after the first, s; 0 where it had.

    `max(0, t_k − e_{k−1})` with `e_k = max(t_k, e_{k−1}) + n_k/r`: the voice speaks the n_k tokens of each delta as one
    piece, at r tokens/s, after the piece before. Deltas without tokens are left out.
    """
    silences: list[float] = []
    spoken_at: float | None = None
    for at, tokens in timeline:
        if tokens <= 0:
            continue
        if spoken_at is not None:
            waited_s = at - spoken_at
            silences.append(waited_s if waited_s > TOLERANCE_S else 0.0)
        spoken_at = max(at, at if spoken_at is None else spoken_at) + tokens / speaking_tps
    return silences


def qoe(timeline: Timeline, reading_tps: float, *, submitted_at: float, prompt_tokens: int) -> float:
    """Return the quality of experience after Andes (Eq. 1–3), at most 1.

    `D_i = t_submit + TTFT* + i/r` with `TTFT* = max(prompt_tokens/5000, 1)` s; `a_0 = max(t_0, D_0)`,
    `a_i = max(t_i, a_{i−1} + 1/r)`; `QoE = 1 − Σ(a_i − D_i)/Σ(a_i − t_submit)`. The formula includes a buffer
    at the reader, so pacing cannot raise the value. NaN for no tokens.
    """
    times = token_times(timeline)
    if not times:
        return math.nan
    first_due_at = submitted_at + max(prompt_tokens / 5000, 1.0)
    reached = _reading_times(times, reading_tps, max(times[0], first_due_at))
    behind_s = sum(at - (first_due_at + i / reading_tps) for i, at in enumerate(reached))
    return 1 - behind_s / sum(at - submitted_at for at in reached)


def fluidity(timeline: Timeline, *, submitted_at: float, ttft_target_s: float, tbt_target_s: float) -> float:
    """Return the share of tokens that meet their deadline (etalon's fluidity index).

    `s_i` is the time since the token before (for the first token, since submission), and `D_i` the target for it
    (`ttft_target_s` for the first token, then `tbt_target_s`). Token i meets its deadline when
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
