"""Metrics of one seed, computed from its outcome; docs/reference/metrics.md has every definition.

A run that is too long to hold in memory is counted chunk by chunk, in constant memory (`Tally`). Means, shares, budget
and cost are exact there, too. Quantiles are exact to `RELATIVE_ERROR`: times are counted in cells that
grow geometrically. A cell `(γ^(i−1), γ^i]` with `γ = (1 + ε)/(1 − ε)` is represented by `2·γ^i/(γ + 1)`, which
differs by at most `ε` from any value in the cell (the mapping of DDSketch, Masson, Rim & Lee, VLDB 2019, on a fixed
range).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from disco.replay.metrics.outcome import Outcome, Reading

__all__ = ["CDF_LEVELS", "RELATIVE_ERROR", "ReadingFigures", "SeedFigures", "Sketch", "Tally", "figures_of"]

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


RELATIVE_ERROR: Final = 0.0005
"""ε of every quantile of times between 1 µs and 10⁷ s."""

_LEAST, _MOST = 1e-6, 1e7  # a smaller value counts as 0, a larger one as the largest value seen
_GAMMA = (1.0 + RELATIVE_ERROR) / (1.0 - RELATIVE_ERROR)
_PER_E = 1.0 / math.log(_GAMMA)
_OFFSET = math.ceil(math.log(_LEAST) * _PER_E)
# The first cell counts values below _LEAST, the last one values above _MOST.
_CELLS = math.ceil(math.log(_MOST) * _PER_E) - _OFFSET + 2
_PIECE = 1 << 15  # values processed together


class Sketch:
    """Counts of non-negative values by size. Quantiles as in `Exact`, within the stated error."""

    # Mutable: all.
    __slots__ = ("_counts", "_high", "_low")

    def __init__(self) -> None:
        self._counts: NDArray[np.int64] = np.zeros(_CELLS, dtype=np.int64)
        self._low, self._high = math.inf, -math.inf

    def add(self, values: NDArray[np.float64]) -> None:
        """Count values of at least 0, shape (n,); NaNs are left out."""
        for start in range(0, values.size, _PIECE):
            piece = values[start : start + _PIECE]
            low, high = float(piece.min()), float(piece.max())
            if math.isnan(low):
                piece = piece[~np.isnan(piece)]
                if not piece.size:
                    continue
                low, high = float(piece.min()), float(piece.max())
            self._low, self._high = min(self._low, low), max(self._high, high)
            cells = np.clip(piece, _LEAST, _MOST)
            np.log(cells, out=cells)
            cells *= _PER_E
            np.ceil(cells, out=cells)
            at = cells.astype(np.intp)
            at -= _OFFSET - 1
            at[piece < _LEAST] = 0
            at[piece > _MOST] = _CELLS - 1
            self._counts += np.bincount(at, minlength=_CELLS)

    def quantiles(self, levels: Sequence[float]) -> list[float]:
        ranks = self._counts.cumsum()
        n = int(ranks[-1])
        if not n:
            return [math.nan] * len(levels)
        position = np.asarray(levels) * (n - 1)
        low = position.astype(np.int64)
        below = self._at(ranks, low)
        above = self._at(ranks, np.minimum(low + 1, n - 1))
        found: list[float] = (below + (above - below) * (position - low)).tolist()
        return found

    def _at(self, ranks: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the values at these positions of the sorted order, counted from 0."""
        cells = ranks.searchsorted(order, side="right")
        values = np.exp((cells + (_OFFSET - 1)) / _PER_E) * (2.0 / (_GAMMA + 1.0))
        values[cells == 0] = 0.0
        values[cells == _CELLS - 1] = self._high
        return np.clip(values, self._low, self._high)


class Tally:
    """Sum of outcomes of the vectorised evaluator; chunks may come in any order.

    Mutable: all but `_constrained`.
    """

    __slots__ = ("_constrained", "_sums", "_ttft")

    def __init__(self, constrained: Literal["device", "server"]) -> None:
        """Start with no requests. `constrained`: the side that the budget limits."""
        self._constrained: Literal["device", "server"] = constrained
        self._sums = Sums()
        self._ttft = Sketch()

    def add(self, outcome: Outcome) -> None:
        """Count a chunk."""
        self._sums.add(outcome, self._constrained)
        self._ttft.add(outcome.ttft_s)

    def figures(self) -> SeedFigures:
        """Return the figures so far, without reading figures: the vectorised evaluator has none."""
        return self._sums.figures(self._ttft, None)
