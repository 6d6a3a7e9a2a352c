"""The sweeps of the paper's ablations on a ladder: history length, top model, text length, byte budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from disco.judging import MOST_SCORES, RULES, Rule, ShareControl, beta_for
from disco.replay import Figure
from papers.ladder.arms import aimed, by_confidence, climb, one_tier, random_share
from papers.ladder.judges import area_where_possible
from papers.ladder.label_ladder import LabelLadder
from papers.ladder.label_trace import LabelTrace
from papers.ladder.ladder_columns import Rows
from papers.ladder.ladder_evaluation import (
    EXACT,
    RANDOM,
    ArmFigures,
    oracles_of,
    single_tiers,
    summarise_arm,
)
from papers.ladder.ladder_statistics import spearman
from papers.ladder.node_bytes import chain_bytes, request_bytes
from papers.ladder.theory import bytes_ratio

__all__ = [
    "AIMS",
    "CAPACITIES",
    "Aimed",
    "HistoryLength",
    "LengthBin",
    "OtherTop",
    "aim_at_bytes",
    "by_text_length",
    "history_lengths",
    "other_tops",
]

CAPACITIES: Final = (10, 30, 100, 300, 1_000, 3_000, 10_000)
AIMS: Final = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Betas whose theoretical bytes are the targets of `aim_at_bytes`."""


@dataclass(frozen=True, slots=True)
class HistoryLength:
    """Figure 4: one history length; means over the orders.

    Attributes:
        capacity: k.
        rule: of the judge.
        quality, ratio: mean accuracy; bytes relative to all requests sent directly to the top.
        handed_up: share of the lowest tier's answers.
        first_50: the same among the first 50 requests.
    """

    capacity: int
    rule: Rule
    quality: float
    ratio: float
    handed_up: float
    first_50: float


def history_lengths(
    trace: LabelTrace, orders: Sequence[Rows], beta: float, capacities: Sequence[int] = CAPACITIES
) -> list[HistoryLength]:
    """Run both rules with every history length at one beta."""
    ladder = LabelLadder.of(trace)
    top = 2.0 * float((ladder.sent_bytes + ladder.answer_bytes[:, -1]).sum())
    found = []
    for capacity in capacities:
        for rule in RULES:
            runs = [
                climb(ladder, by_confidence(beta, rule=rule, capacity=capacity, seed=number), order)
                for number, order in enumerate(orders)
            ]
            up = [run.ends[order] > 0 for run, order in zip(runs, orders, strict=True)]
            found.append(
                HistoryLength(
                    capacity,
                    rule,
                    float(np.mean([run.quality.mean() for run in runs])),
                    float(np.mean([chain_bytes(ladder, run).sum() for run in runs])) / top,
                    float(np.mean([one.mean() for one in up])),
                    float(np.mean([one[:50].mean() for one in up])),
                )
            )
    return found


@dataclass(frozen=True, slots=True)
class OtherTop:
    """Figure 5: a ladder of some of the trace's tiers.

    Attributes:
        tiers: names, from the lowest to the highest.
        figures: each tier alone, then ColServe and RecServe (exact rule) at the same share.
    """

    tiers: tuple[str, ...]
    figures: tuple[ArmFigures, ...]


def other_tops(trace: LabelTrace, orders: Sequence[Rows], share: float) -> list[OtherTop]:
    """Run the ladder as it is, with its two highest tiers swapped, without its highest, and without its middle tier."""
    found = []
    for chosen in ((0, 1, 2), (0, 2, 1), (0, 1), (0, 2)):
        ladder = LabelLadder.of(trace, chosen)
        oracles = oracles_of(ladder, orders)
        figures = [
            summarise_arm(ladder, name, None, [one_tier(ladder, tier, order) for order in orders], oracles)
            for tier, name in enumerate(single_tiers(ladder.tiers))
        ]
        blind = [climb(ladder, random_share(share, number), order) for number, order in enumerate(orders)]
        judged = [
            climb(ladder, by_confidence(share, capacity=MOST_SCORES, seed=number), order)
            for number, order in enumerate(orders)
        ]
        figures.append(summarise_arm(ladder, RANDOM, share, blind, oracles, blind))
        figures.append(summarise_arm(ladder, EXACT, share, judged, oracles, blind))
        found.append(OtherTop(tuple(tier.name for tier in ladder.about), tuple(figures)))
    return found


@dataclass(frozen=True, slots=True)
class LengthBin:
    """Figure 6: one tier's confidence by text length, all texts answered by every tier; means over the orders.

    Attributes:
        tier: name.
        limits: least and most bytes in each quarter of the texts.
        confidence, quality: means in each quarter.
        auroc: probability that a right answer has a higher confidence than a wrong one, with its 95 % interval; None
            where all answers are right, or none is.
        correlation: Spearman's, of confidence and length over all texts.
    """

    tier: str
    limits: tuple[tuple[int, int], ...]
    confidence: tuple[float, ...]
    quality: tuple[float, ...]
    auroc: Figure | None
    correlation: float


def by_text_length(trace: LabelTrace, orders: Sequence[Rows]) -> list[LengthBin]:
    """Return each tier's confidence in the four quarters of the texts by length: means over the orders."""
    ladder = LabelLadder.of(trace)
    sizes = trace.text_bytes
    quarters = np.array_split(np.argsort(sizes, kind="stable"), 4)
    found = []
    for tier, about in enumerate(ladder.about):
        passes = [ladder.answers(tier, order) for order in orders]
        # The places of the texts in an order: with them, both columns are in the order of the trace again.
        places = [np.argsort(order) for order in orders]
        confidence = np.stack([one.confidence[place] for one, place in zip(passes, places, strict=True)])
        quality = np.stack([one.quality[place] for one, place in zip(passes, places, strict=True)])
        areas = [area_where_possible(one.confidence, one.quality == 1.0) for one in passes]
        known = [area for area in areas if area is not None]
        found.append(
            LengthBin(
                about.name,
                tuple((int(sizes[quarter].min()), int(sizes[quarter].max())) for quarter in quarters),
                tuple(float(confidence[:, quarter].mean()) for quarter in quarters),
                tuple(float(quality[:, quarter].mean()) for quarter in quarters),
                _mean(known) if known else None,
                float(np.mean([spearman(one, sizes.astype(np.float64)) for one in confidence])),
            )
        )
    return found


def _mean(areas: Sequence[Figure]) -> Figure:
    return Figure(*np.mean([(area.mean, area.low, area.high) for area in areas], axis=0).tolist())


@dataclass(frozen=True, slots=True)
class Aimed:
    """Beta aimed at bytes, from theory's beta_0; one pass through the texts, means over the orders.

    Attributes:
        ratio: the target, relative to all requests sent directly to the top.
        beta_0: theory's beta.
        constant: bytes relative to the target with beta_0 unchanged.
        paper, exact: the same with either rule of feedback.
        worst: the pass of the exact rule that is farthest from 1.
        quarters: bytes relative to the target in each quarter of the pass, exact rule.
        last_beta: at the end of the pass, exact rule.
    """

    ratio: float
    beta_0: float
    constant: float
    paper: float
    exact: float
    worst: float
    quarters: tuple[float, ...]
    last_beta: float


def aim_at_bytes(trace: LabelTrace, orders: Sequence[Rows], aims: Sequence[float] = AIMS) -> list[Aimed]:
    """Aim beta at the bytes that theory expects of each beta in `aims`."""
    ladder = LabelLadder.of(trace)
    sizes = request_bytes(ladder)
    hop = float(sizes[:, 1].mean())
    costs = (0.0, *(hop,) * (ladder.tiers - 1))
    found = []
    for aim in aims:
        target = bytes_ratio(aim, ladder.tiers) * hop
        beta_0 = beta_for(target, costs)
        by_rule: dict[Rule, list[list[float]]] = {rule: [] for rule in RULES}
        constant, last = [], []
        for number, order in enumerate(orders):
            run = climb(ladder, by_confidence(beta_0, capacity=MOST_SCORES, seed=number), order)
            constant.append(float(sizes[order, run.ends[order]].mean()) / target)
            for rule in RULES:
                control = ShareControl(target, beta=beta_0, rule=rule)
                run, _ = aimed(
                    ladder,
                    control,
                    lambda row, tier: float(sizes[row, tier]),
                    order,
                    capacity=MOST_SCORES,
                    seed=number,
                )
                spent = sizes[order, run.ends[order]] / target
                by_rule[rule].append([float(part.mean()) for part in np.array_split(spent, 4)])
                if rule == "exact":
                    last.append(control.beta)
        exact = np.array(by_rule["exact"])
        passes = exact.mean(axis=1)
        found.append(
            Aimed(
                target / hop,
                beta_0,
                float(np.mean(constant)),
                float(np.mean(by_rule["paper"])),
                float(passes.mean()),
                float(passes[np.abs(passes - 1.0).argmax()]),
                tuple(exact.mean(axis=0).tolist()),
                float(np.mean(last)),
            )
        )
    return found
