"""The evaluation on free-text answers as plain tables."""

from __future__ import annotations

from disco.judging import DEFAULT_SEQUENCE_CONFIDENCE
from disco.replay import Figure, Table
from papers.evaluation import UNKNOWN
from papers.ladder.judges import GOOD_F1
from papers.ladder.ladder_evaluation import RANDOM
from papers.ladder.theory import bytes_ratio
from papers.recserve.sequences import JUDGE_SHARE, TOP_RIGHT, SequenceResult

__all__ = ["sequence_tables"]


def sequence_tables(result: SequenceResult) -> list[Table]:
    """Return the tables: judges, arms in the form of Table III, early exit, lengths."""
    return [_judges(result), _arms(result), _exits(result), _lengths(result)]


def _judges(result: SequenceResult) -> Table:
    rows = tuple(
        (
            one.judge,
            _area(one.good),
            UNKNOWN if one is result.judges[0] else _difference(one.behind),
            *(UNKNOWN if area is None else _area(area) for area in (one.finished, one.contains, one.exact)),
            _points(result.judge_leads[one.judge]),
        )
        for one in result.judges
    )
    questions = result.rows + result.tuning_rows
    return Table(
        f"Judges of free-text answers: {result.model} on {result.name}, {questions:,} questions",
        (
            "judge",
            f"AUROC for F1 > {GOOD_F1:g}",
            "behind the best",
            "ended by itself",
            "contains the right answer",
            "exact match",
            f"F1 added at beta {JUDGE_SHARE:g}",
        ),
        rows,
        (
            (
                f"The answers: F1 {100 * result.f1:.1f} %, exact match {100 * result.exact:.1f} %; "
                f"{100 * result.cut:.0f} % end at the limit of their length."
            ),
            (
                "95 % intervals by DeLong's method, with answers on one paragraph as one group; differences are "
                "paired. Ended by itself: the same without answers that end at the limit. Lengths: a short one "
                "counts as sure. F1 added: to blind offloading with as many bytes, points (next table)."
            ),
            _winner(result),
            *_without_length(result),
        ),
    )


def _winner(result: SequenceResult) -> str:
    default = next(one for one in result.judges if one.judge == DEFAULT_SEQUENCE_CONFIDENCE)
    best = result.judges[0]
    equal = [one.judge for one in result.judges[1:] if one.behind.low <= 0.0]
    beside = (
        f"; not distinguishable from it: {', '.join(equal)}"
        if equal
        else "; it is ahead of every other judge"
    )
    text = f"The best judge here: {best.judge}{beside}. The default is {DEFAULT_SEQUENCE_CONFIDENCE}"
    return f"{text}, the best." if default is best else f"{text}, {_difference(default.behind)} behind."


def _without_length(result: SequenceResult) -> list[str]:
    """Say which judge is the best where a long answer loses nothing, as it does by F1."""
    known = [(one.contains, one.judge) for one in result.judges if one.contains is not None]
    if not known:
        return []
    best, name = max(known, key=lambda one: one[0].mean)
    default = next(area for area, judge in known if judge == DEFAULT_SEQUENCE_CONFIDENCE)
    return [
        (
            "F1 is lower for long answers, whether right or wrong. Contains the right answer: all its words are in the "
            f"model's, whatever else is. There the best judge is {name}, {_area(best)}; {DEFAULT_SEQUENCE_CONFIDENCE} "
            f"has {_area(default)}."
        )
    ]


def _arms(result: SequenceResult) -> Table:
    rows = tuple(
        (
            arm.label,
            _percent(arm.quality),
            UNKNOWN if arm.lead is None or arm.arm == RANDOM else _points(arm.lead),
            *(f"{amount / 1000:,.1f}" for amount in (*arm.nodes, sum(arm.nodes))),
            f"{arm.ratio:.3f}",
            UNKNOWN if arm.share is None else f"{bytes_ratio(arm.share, 2):.2f}",
            f"{arm.star_ratio:.3f}",
            UNKNOWN if len(arm.reached) < 2 else f"{arm.reached[1]:.3f}",
            f"{100 * arm.oracle:.1f}",
        )
        for arm in result.arms
    )
    spread = max(arm.order_sd for arm in result.arms)
    return Table(
        f"In the form of Table III, with a simulated top tier: F1 % on {result.rows:,} questions, bytes in K",
        (
            "arm",
            "F1",
            "over ColServe",
            "device",
            "top (simulated)",
            "total",
            "of cloud",
            "theory",
            "star",
            "handed up",
            "oracle",
        ),
        rows,
        (
            (
                f"The device's answers are real. The top tier is SIMULATED: the right answer with probability "
                f"{TOP_RIGHT:g}, else the device's. There are two tiers only, because the confidence of a simulated "
                "middle tier would be invented."
            ),
            (
                f"The judge of RecServe and CasServe is {DEFAULT_SEQUENCE_CONFIDENCE}. By length: the longest texts "
                f"go up. CasServe is tuned on {result.tuning_rows} questions on other paragraphs. Star: the client "
                "also gets overruled answers."
            ),
            (
                f"F1: mean over {result.runs} orders with the 95 % interval, the questions on one paragraph as one "
                f"group. Over the orders its standard deviation is at most {100 * spread:.2f} points."
            ),
        ),
    )


def _exits(result: SequenceResult) -> Table:
    rows = tuple(
        (
            one.kind,
            f"{one.beta:g}",
            f"{one.share:.3f}",
            f"{100 * one.early:.0f} %",
            f"{100 * one.written:.0f} %",
            f"{100 * one.wasted:.0f} %",
            f"{one.changed:.2f}",
        )
        for one in result.exits
    )
    return Table(
        "Early exit: unsure answers go up while they are written",
        (
            "judge",
            "beta",
            "handed up",
            "of these early",
            "tokens written",
            "of overruled",
            "changed per 1,000",
        ),
        rows,
        (
            (
                "Tokens written: by the device, relative to no early exit; and the same for the answers that went up. "
                "Changed: verdicts that differ from those on complete answers."
            ),
        ),
    )


def _lengths(result: SequenceResult) -> Table:
    rows = tuple(
        (
            f"{one.text_bytes:,.0f}",
            f"{one.confidence:.3f}",
            f"{100 * one.f1:.1f}",
            f"{one.answer_bytes:.1f}",
            f"{one.gold_bytes:.1f}",
        )
        for one in result.lengths
    )
    return Table(
        "Figures 6 and 7: confidence and answer length by the length of the text (quarters of the questions)",
        ("text bytes", "confidence", "F1 %", "device's answer bytes", "right answer's bytes"),
        rows,
        (f"Rank correlation of confidence with the length of the text: {result.length_correlation:+.2f}.",),
    )


def _area(interval: Figure) -> str:
    return f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def _difference(interval: Figure) -> str:
    return f"{interval.mean:.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


def _percent(interval: Figure) -> str:
    return f"{100 * interval.mean:.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def _points(interval: Figure) -> str:
    return f"{100 * interval.mean:+.1f} [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"
