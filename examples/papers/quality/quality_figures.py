"""Whether mixed answers are as good as their models: Eq. 7 of DiSCo with intervals, and how long models agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import numpy as np

from disco.replay import Figure, percentile_interval, resampled_means
from papers.quality.quality_trace import MEASURES, MixedRow, QualityTrace

__all__ = [
    "HIGHER_IS_BETTER",
    "CommonBeginning",
    "Eq7",
    "MeasureFigures",
    "MixedFigures",
    "QualityFigures",
    "eq7_of",
    "quality_figures",
]

HIGHER_IS_BETTER: Final = {
    "f1": True,
    "recall": True,
    "gold_nats": False,
    "told_nats": False,
    "judge_nats": False,
    "preferred": True,
}
_RESAMPLES: Final = 10_000
_QUANTILES: Final = (0.1, 0.25, 0.5, 0.75, 0.9)
_FEWEST_TO_HALVE: Final = 20  # prompts; fewer are not divided by their length

Eq7 = Literal["holds", "within the interval", "below", "above"]


@dataclass(frozen=True, slots=True)
class MixedFigures:
    """Answers that `first` began and `second` ended, under one measure.

    Attributes:
        first, second: the models.
        cut: after how many tokens the answer was handed over.
        handed_over: share of the answers that had not ended before the cut.
        value: mean of the measure, with its 95 % interval.
        over_lower: how much better than the worse of the two models, in the measure's unit; positive is better.
        over_higher: the same for the better of the two.
        eq7: whether Eq. 7 holds: see `eq7_of`.
    """

    first: str
    second: str
    cut: int
    handed_over: float
    value: Figure
    over_lower: Figure
    over_higher: Figure
    eq7: Eq7


@dataclass(frozen=True, slots=True)
class MeasureFigures:
    """All answers under one measure.

    Attributes:
        measure: its name in `MEASURES`.
        prompts: the prompts of which every answer has this measure.
        groups: the groups that these belong to.
        own: mean of each model's own answers, by its name.
        nothing: the mean where there is no answer at all (of `told_nats` only).
        gap: how much better the better model is, with its interval (paired).
        mixed: the mixed answers.
    """

    measure: str
    prompts: int
    groups: int
    own: Mapping[str, Figure]
    nothing: Figure | None
    gap: Figure
    mixed: tuple[MixedFigures, ...]


@dataclass(frozen=True, slots=True)
class CommonBeginning:
    """How long the answers of a model begin like the reference model's.

    Attributes:
        model: whose answers they are.
        about: which prompts: "all", or those of the shorter or longer half.
        prompt_tokens: median length of these prompts.
        prompts: their number.
        tokens, chars: quantiles (10, 25, 50, 75, 90 %) of the common length; tokens None where they are not known.
        equal: share of the answers that are equal to the reference.
    """

    model: str
    about: str
    prompt_tokens: float
    prompts: int
    tokens: tuple[float, ...] | None
    chars: tuple[float, ...]
    equal: float


@dataclass(frozen=True, slots=True)
class QualityFigures:
    """The figures of a trace.

    Attributes:
        measures: those that the trace has.
        lengths: mean length of each model's own answers in tokens, and the share that it ended itself.
        beginnings: how long each model agrees with the large one.
    """

    measures: tuple[MeasureFigures, ...]
    lengths: Mapping[str, tuple[float, float]]
    beginnings: tuple[CommonBeginning, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON has them."""
        return asdict(self)


def quality_figures(trace: QualityTrace) -> QualityFigures:
    """Return the figures of a trace. The intervals are the same in every call: the resampling has a fixed seed."""
    measures = [found for name in MEASURES if (found := _measure(trace, name)) is not None]
    own = [row for row in trace.rows if row.first and not row.second]
    lengths = {
        model: (
            float(np.mean([row.tokens for row in own if row.first == model])),
            float(np.mean([row.finish == "stop" for row in own if row.first == model])),
        )
        for model in (trace.large, trace.small, *trace.also)
    }
    return QualityFigures(tuple(measures), lengths, tuple(_beginnings(trace, own)))


def _measure(trace: QualityTrace, name: str) -> MeasureFigures | None:
    """Return the figures of one measure, over the prompts of which both models and every mixed answer have it."""
    by_cell: dict[tuple[str, str, int], dict[int, MixedRow]] = {}
    for row in trace.rows:
        if name in row.measures:
            by_cell.setdefault((row.first, row.second, row.cut), {})[row.prompt] = row
    both = [(trace.small, "", 0), (trace.large, "", 0)]
    if any(cell not in by_cell for cell in both):
        return None
    mixed = sorted(
        {(row.first, row.second, row.cut) for row in trace.rows if row.second},
        key=lambda cell: (cell[0] != trace.small, cell[2]),
    )
    nothing = [("", "", 0)] if ("", "", 0) in by_cell else []
    also = [cell for model in trace.also if (cell := (model, "", 0)) in by_cell]
    cells = [*both, *also, *(cell for cell in mixed if cell in by_cell), *nothing]
    prompts = sorted(set.intersection(*(set(by_cell[cell]) for cell in cells)))
    if not prompts:
        return None
    sign = 1.0 if HIGHER_IS_BETTER[name] else -1.0
    rows = {cell: [by_cell[cell][prompt] for prompt in prompts] for cell in cells}
    values = np.array([[row.measures[name] for row in rows[cell]] for cell in cells]).T
    groups = np.array([row.group for row in rows[both[0]]])
    means = values.mean(axis=0)
    resampled = resampled_means(values, groups, resamples=_RESAMPLES, draw="counts")
    lower, higher = sorted((0, 1), key=lambda place: sign * means[place])

    def interval(weights: Mapping[int, float]) -> Figure:
        parts = [weight * resampled[:, place] for place, weight in weights.items()]
        mean = sum(w * float(means[p]) for p, w in weights.items())
        return percentile_interval(mean, np.sum(parts, axis=0))

    found = []
    for place, cell in enumerate(cells):
        if cell[1]:
            over_lower = interval({place: sign, lower: -sign})
            over_higher = interval({place: sign, higher: -sign})
            handed_over = float(np.mean([row.handed_over for row in rows[cell]]))
            result = eq7_of(over_lower, over_higher)
            found.append(
                MixedFigures(*cell, handed_over, interval({place: 1.0}), over_lower, over_higher, result)
            )
    return MeasureFigures(
        measure=name,
        prompts=len(prompts),
        groups=len(set(groups.tolist())),
        own={cell[0]: interval({place: 1.0}) for place, cell in enumerate([*both, *also])},
        nothing=interval({len(cells) - 1: 1.0}) if nothing else None,
        gap=interval({higher: sign, lower: -sign}),
        mixed=tuple(found),
    )


def eq7_of(over_lower: Figure, over_higher: Figure) -> Eq7:
    """Return whether min(Q_A, Q_B) <= Q_M <= max(Q_A, Q_B) holds (DiSCo, Eq. 7).

    "holds": by the means. "within the interval": a mean lies outside, but the 95 % interval of the distance holds 0.
    "below" and "above": the interval, too, lies outside.

    Args:
        over_lower: Q_M minus the quality of the worse model.
        over_higher: Q_M minus that of the better one.
    """
    if over_lower.high < 0.0:
        return "below"
    if over_higher.low > 0.0:
        return "above"
    rounding = 1e-9  # equal answers have equal means up to that
    inside = over_lower.mean >= -rounding and over_higher.mean <= rounding
    return "holds" if inside else "within the interval"


def _beginnings(trace: QualityTrace, own: Sequence[MixedRow]) -> list[CommonBeginning]:
    reference = {row.prompt: row for row in own if row.first == trace.large}
    middle = float(np.median([row.prompt_tokens for row in reference.values()]))
    found = []
    for model in (trace.small, *trace.also):
        rows = [row for row in own if row.first == model]
        found.append(_beginning(model, "all", rows, reference))
        short = [row for row in rows if row.prompt_tokens <= middle]
        long = [row for row in rows if row.prompt_tokens > middle]
        if len(rows) >= _FEWEST_TO_HALVE and short and long:
            found += [_beginning(model, "shorter half", short, reference)]
            found += [_beginning(model, "longer half", long, reference)]
    return found


def _beginning(
    model: str, about: str, rows: Sequence[MixedRow], reference: Mapping[int, MixedRow]
) -> CommonBeginning:
    chars = [float(row.same_chars or 0) for row in rows]
    tokens = [float(row.same_tokens) for row in rows if row.same_tokens is not None]
    equal = [row.chars == reference[row.prompt].chars == row.same_chars for row in rows]
    return CommonBeginning(
        model=model,
        about=about,
        prompt_tokens=float(np.median([row.prompt_tokens for row in rows])),
        prompts=len(rows),
        tokens=tuple(np.quantile(tokens, _QUANTILES).tolist()) if len(tokens) == len(rows) else None,
        chars=tuple(np.quantile(chars, _QUANTILES).tolist()),
        equal=float(np.mean(equal)),
    )
