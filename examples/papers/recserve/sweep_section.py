"""Tables of the sweeps: history length, other tops, text length, beta aimed at bytes (Figures 4 to 6)."""

from __future__ import annotations

import math

from disco.replay import Table
from papers.evaluation import UNKNOWN
from papers.recserve.recserve_run import SWEEP_BETA, TOP_SHARE, RecServeResult

__all__ = ["sweep_section"]


def sweep_section(result: RecServeResult) -> list[Table]:
    """Return the tables of the sweeps."""
    return [_histories(result), _tops(result), _lengths(result), _aimed(result)]


def _histories(result: RecServeResult) -> Table:
    rows = tuple(
        (
            ladder.name,
            f"{one.capacity:,}",
            one.rule,
            f"{100 * one.quality:.2f}",
            f"{one.ratio:.3f}",
            f"{100 * one.handed_up:.1f}",
            f"{100 * one.first_50:.1f}",
        )
        for ladder in result.ladders
        for one in ladder.histories
    )
    return Table(
        f"Figure 4: the history's length k, beta {SWEEP_BETA:g}",
        ("texts", "k", "rule", "accuracy %", "of cloud", "handed up %", "of the first 50 %"),
        rows,
        (
            "The paper (IMDB): bytes hardly move, accuracy rises and is flat beyond k = 300.",
            (
                "Its rule hands up ceil(beta*(k-1))/k of k distinct scores, so that a short history hands up more than "
                "beta, or less."
            ),
        ),
    )


def _tops(result: RecServeResult) -> Table:
    rows = []
    for ladder in result.ladders:
        for one in ladder.tops:
            *alone, blind, judged = one.figures
            assert judged.lead is not None
            rows.append(
                (
                    ladder.name,
                    " < ".join(one.tiers),
                    ", ".join(f"{100 * arm.quality.mean:.1f}" for arm in alone),
                    f"{100 * blind.quality.mean:.1f}",
                    f"{100 * judged.quality.mean:.1f}",
                    f"{100 * judged.lead.mean:+.1f} [{100 * judged.lead.low:+.1f}, {100 * judged.lead.high:+.1f}]",
                    f"{judged.ratio:.3f}",
                    f"{100 * judged.oracle:.1f}",
                )
            )
    return Table(
        f"Figure 5: other ladders of the same tiers, share {TOP_SHARE:g}",
        (
            "texts",
            "tiers",
            "each alone %",
            "ColServe %",
            "RecServe %",
            "lead, points",
            "of cloud",
            "oracle %",
        ),
        tuple(rows),
        (
            (
                "Stands in for the paper's other cloud model (DeBERTa-large). Where the top is swapped with a weaker "
                "tier, handing up to it can lower accuracy, as in the paper's OPUS100."
            ),
        ),
    )


def _lengths(result: RecServeResult) -> Table:
    rows = tuple(
        (
            ladder.name,
            one.tier,
            *(
                f"{low}-{high}: {confidence:.3f}, {100 * quality:.0f} %"
                for (low, high), confidence, quality in zip(
                    one.limits, one.confidence, one.quality, strict=True
                )
            ),
            UNKNOWN if math.isnan(one.correlation) else f"{one.correlation:+.2f}",
            UNKNOWN
            if one.auroc is None
            else f"{one.auroc.mean:.2f} [{one.auroc.low:.2f}, {one.auroc.high:.2f}]",
        )
        for ladder in result.ladders
        for one in ladder.lengths
    )
    return Table(
        "Figure 6: mean confidence and accuracy in the quarters of the texts by length (bytes)",
        ("texts", "tier", "shortest", "short", "long", "longest", "rank corr.", "AUROC"),
        rows,
        (
            (
                "The paper's formulas assume that confidence does not depend on length; a rank correlation (Spearman) "
                "far from 0 breaks that, and shares of bytes then differ from beta."
            ),
            (
                "AUROC: the probability that a right answer has a higher confidence than a wrong one, with its 95 % "
                "interval (DeLong): how well the tier judges itself on all texts; 0.5 is chance."
            ),
            (
                "Figure 7 (answer length by tier): the answers here are labels of one length; docs/results/judges.md "
                "has free text."
            ),
        ),
    )


def _aimed(result: RecServeResult) -> Table:
    rows = tuple(
        (
            ladder.name,
            f"{one.ratio:.2f}",
            f"{one.beta_0:.3f}",
            *(_off(value) for value in (one.constant, one.paper, one.exact, one.worst)),
            " ".join(_off(value) for value in one.quarters),
            f"{one.last_beta:.3f}",
        )
        for ladder in result.ladders
        for one in ladder.aimed
    )
    within = [abs(one.exact - 1) <= 0.05 for ladder in result.ladders for one in ladder.aimed]
    worst = max(abs(one.worst - 1) for ladder in result.ladders for one in ladder.aimed)
    return Table(
        "Beta aimed at bytes (Eqs. 50-53), from theory's beta_0: how far the bytes are from the target, %",
        (
            "texts",
            "target",
            "beta_0",
            "no feedback",
            "paper's",
            "ours",
            "ours, worst",
            "ours, by quarter",
            "last beta",
        ),
        rows,
        (
            (
                f"Ours is within 5 % of {sum(within)} of {len(within)} targets; the farthest single pass is "
                f"{100 * worst:.1f} % off."
            ),
            (
                "Target: bytes relative to all requests sent to the top. Window R = 100 requests, speed eta = 1. The "
                "paper's feedback balances the logarithm of each window's bytes, and so spends more than the target."
            ),
        ),
    )


def _off(value: float) -> str:
    return f"{100 * (value - 1):+.1f}"
