"""Metrics of all seeds: one figure per metric, with its confidence interval over seeds.

docs/reference/metrics.md has every definition with symbol and formula.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import fmean
from typing import Any

from disco.errors import ConfigurationError
from disco.replay.metrics.intervals import Figure, figure
from disco.replay.metrics.per_seed import CDF_LEVELS, ReadingFigures, SeedFigures, figures_of
from disco.replay.metrics.plain_numbers import plain
from disco.replay.workload.scenario import Arm

__all__ = [
    "CDF_LEVELS",
    "Cell",
    "Figure",
    "ReadingSummary",
    "SeedFigures",
    "Summary",
    "figure",
    "figures_of",
    "regret",
    "summarise",
]


@dataclass(frozen=True, slots=True)
class ReadingSummary:
    """What readers got; docs/reference/metrics.md defines each figure.

    Attributes:
        tbt_mean_s, tbt_p50_s, tbt_p99_s: times between released tokens, pooled over answers.
        moved_tbt_p99_s: the same for the answers that migrated; None when none did.
        late_tokens: mean per answer.
        handover_late_tokens, handover_late_p99: late tokens behind the cut, mean and P99 over answers that migrated;
            None when none did.
        stall_ratio, qoe, fluidity: means over answers.
        moved, failed_over: shares of answers.
    """

    tbt_mean_s: Figure
    tbt_p50_s: Figure
    tbt_p99_s: Figure
    moved_tbt_p99_s: Figure | None
    late_tokens: Figure
    handover_late_tokens: Figure | None
    handover_late_p99: Figure | None
    stall_ratio: Figure
    qoe: Figure
    fluidity: Figure
    moved: Figure
    failed_over: Figure


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one arm on one scenario.

    Attributes:
        requests: requests per seed.
        seeds: number of seeds.
        ttft_mean_s, ttft_p50_s, ttft_p90_s, ttft_p99_s: over answered requests.
        budget_used: share of all prompt tokens that the constrained endpoint was started on.
        cost_usd: mean per request.
        cost_by: the same by "place/phase": USD per request, mean over seeds.
        device_won, failed: shares of requests.
        ttft_quantiles_s: at `CDF_LEVELS`, mean over seeds.
        reading: what readers got; None from the vectorised evaluator.
    """

    requests: int
    seeds: int
    ttft_mean_s: Figure
    ttft_p50_s: Figure
    ttft_p90_s: Figure
    ttft_p99_s: Figure
    budget_used: Figure
    cost_usd: Figure
    cost_by: Mapping[str, float]
    device_won: Figure
    failed: Figure
    ttft_quantiles_s: tuple[float, ...]
    reading: ReadingSummary | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, ready for JSON; an unknown number (NaN) is None."""
        found: dict[str, Any] = plain(asdict(self))
        return found


@dataclass(frozen=True, slots=True)
class Cell:
    """One line of a result: an arm on a scenario, and its distance to the oracle.

    Attributes:
        scenario: the scenario's name.
        regime: "device-constrained" or "server-constrained".
        arm: the policy and its numbers.
        evaluator: "vectorised" or "events".
        summary: the figures.
        regret_mean_s, regret_p99_s: mean and P99 of TTFT less the oracle's, at the same seeds and the same budget, or
            at what the arm used where that is more. For P99 it is the oracle that minimises P99. Never below 0, but
            for rounding. None for oracles, and for an arm that left requests unanswered.
    """

    scenario: str
    regime: str
    arm: Arm
    evaluator: str
    summary: Summary
    regret_mean_s: Figure | None = None
    regret_p99_s: Figure | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and names, ready for JSON; an unknown number (NaN) is None."""
        found: dict[str, Any] = plain(asdict(self))
        return found


def summarise(figures: Sequence[SeedFigures]) -> Summary:
    """Return the figures of at least one seed as means with their intervals.

    A figure that only some seeds have, such as one of the answers that migrated, is the mean over those seeds.

    Raises:
        ConfigurationError: no seed, seeds of different evaluators, or more than one seed without SciPy.
    """
    if not figures:
        raise ConfigurationError("no seed was given to summarise: give the figures of at least one seed")
    columns = {name: figure([getattr(one, name) for one in figures]) for name in _FIGURES}
    keys = sorted({key for one in figures for key in one.cost_by})
    return Summary(
        requests=round(fmean(one.requests for one in figures)),
        seeds=len(figures),
        cost_by={key: fmean(one.cost_by.get(key, 0.0) for one in figures) for key in keys},
        ttft_quantiles_s=tuple(
            fmean(values) for values in zip(*(one.ttft_quantiles_s for one in figures), strict=True)
        ),
        reading=_reading([one.reading for one in figures]),
        **columns,
    )


def regret(
    figures: Sequence[SeedFigures], oracle_mean_s: Sequence[float], oracle_p99_s: Sequence[float]
) -> tuple[Figure, Figure]:
    """Return how far the mean and the P99 of TTFT are from an oracle's, s.

    The differences are taken seed by seed. Arm and oracle have the same random draws, which cancel out.

    Args:
        figures: one per seed.
        oracle_mean_s: the mean of the oracle that minimises the mean, for the same seeds.
        oracle_p99_s: the P99 of the oracle that minimises P99, for the same seeds.
    """
    by_mean = [one.ttft_mean_s - best_s for one, best_s in zip(figures, oracle_mean_s, strict=True)]
    by_p99 = [one.ttft_p99_s - best_s for one, best_s in zip(figures, oracle_p99_s, strict=True)]
    return figure(by_mean), figure(by_p99)


def _reading(seeds: Sequence[ReadingFigures | None]) -> ReadingSummary | None:
    known = [one for one in seeds if one is not None]
    if not known:
        return None
    if len(known) < len(seeds):
        raise ConfigurationError(
            "the seeds come from different evaluators; summarise the seeds of each evaluator separately"
        )
    columns: dict[str, Any] = {}
    for name in (f.name for f in fields(ReadingFigures)):
        values = [value for one in known if (value := getattr(one, name)) is not None]
        columns[name] = figure(values) if values else None
    return ReadingSummary(**columns)


_FIGURES = tuple(f.name for f in fields(Summary) if f.type == "Figure")
