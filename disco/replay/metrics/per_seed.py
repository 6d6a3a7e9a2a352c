"""Metrics of one seed, computed from its outcome; docs/reference/metrics.md has every definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from disco.replay.metrics.outcome import Outcome, Reading

__all__ = ["CDF_LEVELS", "ReadingFigures", "SeedFigures", "Sums", "Times", "figures_of"]

Floats = NDArray[np.float64]

_RATIOS = ("stall_ratio", "qoe", "fluidity")  # defined per answer; NaN for some answers

CDF_LEVELS: Final = (*(i / 200 for i in range(200)), 0.999, 1.0)
"""Levels of `SeedFigures.ttft_quantiles_s` and `over_seeds.Summary.ttft_quantiles_s`."""


@dataclass(frozen=True, slots=True)
class ReadingFigures:
    """The fields of `over_seeds.ReadingSummary` for one seed; NaN where no answer has a value."""

    tbt_mean_s: float
    tbt_p50_s: float
    tbt_p99_s: float
    moved_tbt_p99_s: float | None
    late_tokens: float
    handover_late_tokens: float | None
    handover_late_p99: float | None
    stall_ratio: float
    qoe: float
    fluidity: float
    moved: float
    failed_over: float


@dataclass(frozen=True, slots=True)
class SeedFigures:
    """The figures of one seed, plain numbers that can be sent between processes; see `over_seeds.Summary`.

    Times are NaN where no request was answered.
    """

    requests: int
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    budget_used: float
    cost_usd: float
    cost_by: Mapping[str, float]
    device_won: float
    failed: float
    ttft_quantiles_s: tuple[float, ...]
    reading: ReadingFigures | None = None


class Times(Protocol):
    """A set of times that can return its quantiles."""

    def quantiles(self, levels: Sequence[float]) -> list[float]:
        """Return the quantiles at these levels, each in [0, 1]; NaN if there are no values."""
        ...


class Exact:
    """All values, sorted. Quantiles are interpolated linearly between order statistics at `q·(n − 1)`."""

    __slots__ = ("_ordered",)

    def __init__(self, values: Floats) -> None:
        """Take values in any order, float64, shape (n,); NaNs are left out."""
        ordered = np.sort(values)
        self._ordered = ordered[: ordered.searchsorted(np.nan)]

    def quantiles(self, levels: Sequence[float]) -> list[float]:
        ordered = self._ordered
        if not ordered.size:
            return [float("nan")] * len(levels)
        position = np.asarray(levels) * (ordered.size - 1)
        low = position.astype(np.intp)
        below = ordered[low]
        above = ordered[np.minimum(low + 1, ordered.size - 1)]
        found: list[float] = (below + (above - below) * (position - low)).tolist()
        return found


@dataclass(slots=True)
class Sums:
    """The sums from which the means and shares of `SeedFigures` are computed. Mutable: all."""

    requests: int = 0
    answered: int = 0
    ttft_s: float = 0.0
    prompt_tokens: int = 0
    constrained_tokens: int = 0
    cost_usd: float = 0.0
    cost_by: dict[str, float] = field(default_factory=dict)
    device_won: int = 0
    failed: int = 0

    def add(self, outcome: Outcome, constrained: Literal["device", "server"]) -> None:
        """Add the requests of an outcome."""
        on_constrained = (
            outcome.device_prompt_tokens if constrained == "device" else outcome.server_prompt_tokens
        )
        self.requests += len(outcome)
        ttft_s = float(outcome.ttft_s.sum())
        if np.isnan(ttft_s):
            answered = ~np.isnan(outcome.ttft_s)
            self.answered += int(np.count_nonzero(answered))
            ttft_s = float(outcome.ttft_s[answered].sum())
        else:
            self.answered += len(outcome)
        self.ttft_s += ttft_s
        self.prompt_tokens += int(outcome.prompt_tokens.sum())
        self.constrained_tokens += int(on_constrained.sum())
        self.cost_usd += float(outcome.cost_usd.sum())
        for (place, phase), usd in outcome.cost_by.items():
            self._charge(f"{place}/{phase.value}", usd)
        self.device_won += int(np.count_nonzero(outcome.device_won))
        self.failed += int(np.count_nonzero(outcome.failed))

    def figures(self, ttft: Times, reading: ReadingFigures | None) -> SeedFigures:
        """Return the figures, given all TTFTs."""
        p50_s, p90_s, p99_s, *quantiles_s = ttft.quantiles((0.5, 0.9, 0.99, *CDF_LEVELS))
        return SeedFigures(
            requests=self.requests,
            ttft_mean_s=_ratio(self.ttft_s, self.answered),
            ttft_p50_s=p50_s,
            ttft_p90_s=p90_s,
            ttft_p99_s=p99_s,
            budget_used=self.constrained_tokens / self.prompt_tokens if self.prompt_tokens else 0.0,
            cost_usd=_ratio(self.cost_usd, self.requests),
            cost_by={key: usd / self.requests for key, usd in sorted(self.cost_by.items())},
            device_won=_ratio(self.device_won, self.requests),
            failed=_ratio(self.failed, self.requests),
            ttft_quantiles_s=tuple(quantiles_s),
            reading=reading,
        )

    def _charge(self, key: str, usd: float) -> None:
        self.cost_by[key] = self.cost_by.get(key, 0.0) + usd


def figures_of(outcome: Outcome, constrained: Literal["device", "server"]) -> SeedFigures:
    """Return the figures of one run.

    Args:
        outcome: the outcome of every request of the run.
        constrained: the side that the budget limits.
    """
    sums = Sums()
    sums.add(outcome, constrained)
    reading = None
    if outcome.reading is not None:
        reading = _reading_figures(outcome.reading, ~np.isnan(outcome.ttft_s))
    return sums.figures(Exact(outcome.ttft_s), reading)


def _reading_figures(reading: Reading, answered: NDArray[np.bool_]) -> ReadingFigures:
    """Return the figures over the answered rows."""
    answers = int(np.count_nonzero(answered))
    moved = reading.moved & answered
    moves = int(np.count_nonzero(moved))
    p50_s, p99_s = Exact(reading.tbt_s).quantiles((0.5, 0.99))
    (moved_p99_s,) = Exact(reading.moved_tbt_s).quantiles((0.99,))
    (late_p99,) = Exact(reading.handover_late_tokens[moved]).quantiles((0.99,))
    ratios = {}
    for name in _RATIOS:
        values = getattr(reading, name)[answered]
        known = values[~np.isnan(values)]
        ratios[name] = _ratio(float(known.sum()), known.size)
    return ReadingFigures(
        tbt_mean_s=_ratio(float(reading.tbt_s.sum()), reading.tbt_s.size),
        tbt_p50_s=p50_s,
        tbt_p99_s=p99_s,
        moved_tbt_p99_s=moved_p99_s if moves else None,
        late_tokens=_ratio(float(reading.late_tokens[answered].sum()), answers),
        handover_late_tokens=float(reading.handover_late_tokens[moved].sum()) / moves if moves else None,
        handover_late_p99=late_p99 if moves else None,
        moved=_ratio(moves, answers),
        failed_over=_ratio(int(np.count_nonzero(reading.failed_over & answered)), answers),
        **ratios,
    )


def _ratio(part: float, whole: int) -> float:
    return part / whole if whole else float("nan")
