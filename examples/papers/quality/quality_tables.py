"""The tables of mixed answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from disco.replay import Figure, Table
from papers.evaluation import UNKNOWN
from papers.quality.quality_figures import MeasureFigures, QualityFigures
from papers.quality.quality_trace import QualityTrace

__all__ = ["quality_tables"]

_NAMES: Final = {
    "f1": "F1 of the answer's words",
    "recall": "Share of the right answer's words that the answer has",
    "gold_nats": "Nats for a token of the right answer, as an answer of both models",
    "told_nats": "Nats for a token of the right answer, under the judge that is told only the answer",
    "judge_nats": "Nats for a token of the answer, under the judge",
    "preferred": "How far the judge prefers the answer to the small model's",
}
_LOWER = "Lower is better."


def quality_tables(trace: QualityTrace, figures: QualityFigures) -> list[Table]:
    """Return the tables: both models alone, a table of mixed answers for each measure, and how long models agree."""
    found = [_own(trace, figures)]
    found += [_mixed(trace, one) for one in figures.measures if one.mixed]
    if figures.beginnings:
        found.append(_beginning(trace, figures))
    return found


def _own(trace: QualityTrace, figures: QualityFigures) -> Table:
    rows = []
    for model, (tokens, ended) in figures.lengths.items():
        values = [_interval(one.own[model]) if model in one.own else UNKNOWN for one in figures.measures]
        rows.append((model, f"{tokens:.0f}", f"{ended:.2f}", *values))
    if any(one.nothing is not None for one in figures.measures):
        nothing = [UNKNOWN if one.nothing is None else _interval(one.nothing) for one in figures.measures]
        rows.append(("no answer", UNKNOWN, UNKNOWN, *nothing))
    about = (
        f"{trace.prompts} prompts of {trace.groups} groups (paragraphs); {_how(trace)}; at most {trace.tokens} tokens. "
        "In brackets: 95 % intervals, bootstrap over the groups."
    )
    judge = f"Judge: {trace.judge}." if trace.judge else "No judge."
    return Table(
        title=f"{trace.name}, answers of one model",
        header=("model", "tokens", "ended itself", *(_short(one.measure) for one in figures.measures)),
        rows=tuple(rows),
        notes=(about, f"Small: {trace.small}. Large: {trace.large}. {judge}"),
    )


def _mixed(trace: QualityTrace, one: MeasureFigures) -> Table:
    rows = []
    ways = {"small → large": (trace.small, trace.large), "large → small": (trace.large, trace.small)}
    for way, (first, second) in ways.items():
        between = [cell for cell in one.mixed if cell.first == first]
        if not between:
            continue
        rows.append((way, "0", "1.00", _interval(one.own[second]), UNKNOWN, UNKNOWN, UNKNOWN))
        rows += [
            (
                way,
                str(cell.cut),
                f"{cell.handed_over:.2f}",
                _interval(cell.value),
                _signed(cell.over_lower),
                _signed(cell.over_higher),
                cell.eq7,
            )
            for cell in between
        ]
        rows.append((way, str(trace.tokens), "0.00", _interval(one.own[first]), UNKNOWN, UNKNOWN, UNKNOWN))
    return Table(
        title=f"{_NAMES[one.measure]} ({_short(one.measure)})",
        header=(
            "models",
            "after",
            "handed over",
            "value",
            "better than the worse",
            "better than the better",
            "Eq. 7",
        ),
        rows=tuple(rows),
        notes=tuple(_notes(one)),
    )


def _notes(one: MeasureFigures) -> Iterable[str]:
    counts = {
        result: [cell.eq7 for cell in one.mixed].count(result)
        for result in ("holds", "within the interval", "below", "above")
    }
    said = ", ".join(f"{result}: {count}" for result, count in counts.items() if count)
    yield f"Eq. 7 in {len(one.mixed)} kinds of mixed answers: {said}. {one.prompts} prompts, {one.groups} groups."
    gap = _signed(one.gap)
    if one.gap.low > 0.0:
        yield f"The better model leads by {gap}."
    else:
        yield f"The better model leads by {gap}: the two models cannot be told apart by this measure."
    if one.measure.endswith("_nats"):
        yield _LOWER


def _beginning(trace: QualityTrace, figures: QualityFigures) -> Table:
    rows = tuple(
        (
            one.model,
            one.about,
            f"{one.prompt_tokens:.0f}",
            str(one.prompts),
            *([UNKNOWN] * 5 if one.tokens is None else [f"{value:.0f}" for value in one.tokens]),
            f"{one.chars[2]:.0f}",
            f"{one.equal:.2f}",
        )
        for one in figures.beginnings
    )
    return Table(
        title=f"{trace.name}, common beginning with the answers of {trace.large}",
        header=(
            *("model", "prompts", "prompt tokens", "number"),
            *("10 %", "25 %", "median", "75 %", "90 %"),
            *("median, characters", "equal"),
        ),
        rows=rows,
        notes=("Quantiles in tokens. Greedy answers, each model from the prompt alone.",),
    )


def _how(trace: QualityTrace) -> str:
    return trace.notes.get("prompt", "") or "prompts as given"


def _short(measure: str) -> str:
    return {"f1": "F1"}.get(measure, measure.replace("_", " "))


def _interval(value: Figure) -> str:
    return f"{value.mean:.3f} [{value.low:.3f}, {value.high:.3f}]"


def _signed(value: Figure) -> str:
    return f"{value.mean:+.3f} [{value.low:+.3f}, {value.high:+.3f}]"
