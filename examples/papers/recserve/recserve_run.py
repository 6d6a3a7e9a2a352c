"""Run of the RecServe paper's evaluation on the shipped ladders: `run_recserve`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from disco.errors import ConfigurationError
from disco.judging import MOST_SCORES, expected_cost
from disco.replay import Figure, Progress, paired_difference, run_all
from papers.ladder.answer_trace import AnswerTrace
from papers.ladder.arms import by_confidence, climb, random_share
from papers.ladder.label_ladder import PRIOR_WINDOW, LabelLadder
from papers.ladder.label_trace import TraceTier
from papers.ladder.ladder_columns import Rows
from papers.ladder.ladder_evaluation import ArmFigures, evaluate_arms, orders_of
from papers.ladder.node_bytes import chain_bytes
from papers.recserve.ladder_material import Material, shipped_materials
from papers.recserve.ladder_sweeps import (
    Aimed,
    HistoryLength,
    LengthBin,
    OtherTop,
    aim_at_bytes,
    by_text_length,
    history_lengths,
    other_tops,
)
from papers.recserve.printed_readings import claims, derived, readings
from papers.recserve.sequences import SHARES, SequenceResult, run_sequences

__all__ = ["SHARES", "Expectation", "LadderResult", "RecServeResult", "run_recserve"]

SWEEP_BETA: Final = 0.1
"""Beta of the sweep over k, as in the paper's Figure 4."""
TOP_SHARE: Final = 0.3
"""Share of the sweep over ladders."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """Whether RecServe (exact) at beta .3 beats ColServe at .5 with at most .55 of its bytes (theory: .52).

    Attributes:
        lead: accuracy of RecServe minus that of ColServe, with the 95 % interval over texts (paired).
        of_bytes: bytes of RecServe relative to those of ColServe.
    """

    lead: Figure
    of_bytes: float

    @property
    def met(self) -> bool:
        """Whether both hold, of the figures themselves."""
        return self.lead.mean > 0.0 and self.of_bytes <= 0.55


@dataclass(frozen=True, slots=True)
class LadderResult:
    """The figures of one trace.

    Attributes:
        name: of the texts.
        rows: number of texts.
        printed: the paper's dataset beside it.
        tuned_on: what fixed thresholds were tuned on.
        tiers: what is known of each tier.
        arms: with the label prior removed.
        raw: the same arms on the scores as they are.
        histories: Figure 4.
        tops: Figure 5.
        lengths: Figure 6.
        aimed: beta aimed at bytes.
        expected: RecServe .3 against ColServe .5.
    """

    name: str
    rows: int
    printed: str | None
    tuned_on: str
    tiers: tuple[TraceTier, ...]
    arms: tuple[ArmFigures, ...]
    raw: tuple[ArmFigures, ...]
    histories: tuple[HistoryLength, ...]
    tops: tuple[OtherTop, ...]
    lengths: tuple[LengthBin, ...]
    aimed: tuple[Aimed, ...]
    expected: Expectation

    def arm(self, name: str, share: float | None = None, *, raw: bool = False) -> ArmFigures:
        """Return one arm. Raises KeyError where there is none."""
        for one in self.raw if raw else self.arms:
            if one.arm == name and one.share == share:
                return one
        raise KeyError(f"{self.name} has no arm {name} {share}")

    def compute(self, arm: ArmFigures, measure: str) -> float:
        """Return the arm's mean work of a request relative to the top tier's; `measure`: "flops" or "cpu_s"."""
        costs = self.costs(measure)
        return sum(share * cost for share, cost in zip(arm.reached, costs, strict=True)) / costs[-1]

    def predicted_compute(self, beta: float, measure: str) -> float:
        """Return the same by Eq. 43."""
        costs = self.costs(measure)
        return expected_cost(beta, costs) / costs[-1]

    def costs(self, measure: str) -> tuple[float, ...]:
        """Return the work of one answer at each tier."""
        return tuple(float(getattr(tier, measure)) for tier in self.tiers)


@dataclass(frozen=True, slots=True)
class RecServeResult:
    """All results from which the tables are made.

    Attributes:
        runs: passes through each trace, each in an order of its own.
        shares: alpha and beta.
        ladders: one per trace.
        sequences: free-text answers; None where only other traces were given.
        took_s: duration of the whole run, s.
    """

    runs: int
    shares: tuple[float, ...]
    ladders: tuple[LadderResult, ...]
    sequences: SequenceResult | None
    took_s: float

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data for JSON."""
        printed = [
            {
                **asdict(one.row),
                "unit": one.row.unit,
                "p1": one.p1,
                "p2": one.p2,
                "ratio": one.ratio,
                "theory": one.theory,
                "z": one.z,
                "sums_fit": one.sums_fit,
            }
            for one in derived()
        ]
        ladders = [
            asdict(ladder) | {"expected": asdict(ladder.expected) | {"met": ladder.expected.met}}
            for ladder in self.ladders
        ]
        return {
            "setup": {"runs": self.runs, "shares": list(self.shares)},
            "printed": printed,
            "readings": [asdict(one) for one in readings()],
            "claims": [
                {"what": one.claim, "holds": one.held, "cases": one.cases, "but": ", ".join(one.but)}
                for one in claims()
            ],
            "ladders": ladders,
            "sequences": None if self.sequences is None else self.sequences.to_dict(),
            "took_s": self.took_s,
        }


def run_recserve(
    *,
    runs: int = 10,
    shares: Sequence[float] = SHARES,
    materials: Sequence[Material] | None = None,
    answers: AnswerTrace | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
    seed: int = 0,
) -> RecServeResult:
    """Run all arms and sweeps on every ladder.

    Args:
        runs: passes through each trace, each in a random order.
        shares: alpha and beta, each in (0, 1).
        materials: traces of label scores; None: the shipped ones.
        answers: a trace of free-text answers; None: the shipped one, or none where `materials` are given.
        executor: runs the parts; None: in this process. Every executor gives the same figures.
        progress: called with the number of parts done, and the total.
        seed: of the orders.

    Raises:
        ConfigurationError: a number out of range, or a trace that does not have three tiers and some texts.
    """
    began_at = time.monotonic()
    if runs < 1 or seed < 0:
        raise ConfigurationError(f"runs must be at least 1 and seed at least 0, not {runs} and {seed}")
    if not shares or not all(0.0 < share < 1.0 for share in shares):
        raise ConfigurationError(f"shares lie between 0 and 1, at least one, not {list(shares)}")
    given = shipped_materials() if materials is None else list(materials)
    for trace in (one.trace for one in given):
        if len(trace.tiers) != _TIERS or len(trace) < _LEAST_ROWS:
            raise ConfigurationError(
                f"the paper's tables are of {_TIERS} tiers on {_LEAST_ROWS} texts or more; {trace.name} has "
                f"{len(trace.tiers)} on {len(trace)}"
            )
    steps = tuple(sorted(set(shares)))
    # The longest parts first: at the end only short ones are left for the last worker.
    by_length = sorted(given, key=lambda one: -len(one.trace))
    tasks: list[tuple[str, Material | AnswerTrace | None]] = [
        (part, one) for one in by_length for part in _PARTS
    ]
    if materials is None or answers is not None:
        tasks.insert(0, (_FREE_TEXT, answers))
    done = run_all(executor, _run_part, [(*task, runs, steps, seed) for task in tasks], progress)
    sequences: SequenceResult | None = None
    by_material: dict[int, dict[str, Any]] = {}
    for (part, source), result in zip(tasks, done, strict=True):
        if part == _FREE_TEXT:
            sequences = result
        else:
            by_material.setdefault(id(source), {})[part] = result
    ladders = tuple(
        LadderResult(
            name=one.trace.name,
            rows=len(one.trace),
            printed=one.printed,
            tuned_on=one.tuned_on,
            tiers=one.trace.tiers,
            **by_material[id(one)],
        )
        for one in given
    )
    return RecServeResult(runs, steps, ladders, sequences, time.monotonic() - began_at)


_TIERS: Final = 3
_LEAST_ROWS: Final = 4
"""A quarter of the texts by length needs one."""

_PARTS: Final = ("arms", "raw", "aimed", "histories", "tops", "lengths", "expected")
"""The fields of `LadderResult` that are run, each a task of its own."""

_FREE_TEXT: Final = "sequences"


def _run_part(
    part: str, source: Material | AnswerTrace | None, runs: int, shares: tuple[float, ...], seed: int
) -> Any:
    if not isinstance(source, Material):
        return run_sequences(runs=runs, trace=source)
    trace = source.trace
    orders = orders_of(len(trace), runs, seed)
    if part in ("arms", "raw"):
        window = None if part == "raw" else PRIOR_WINDOW
        ladder, tuning = (LabelLadder.of(one, prior_window=window) for one in (trace, source.tuning))
        return tuple(evaluate_arms(ladder, tuning, orders, shares, seed=seed))
    if part == "aimed":
        return tuple(aim_at_bytes(trace, orders))
    if part == "histories":
        return tuple(history_lengths(trace, orders, SWEEP_BETA))
    if part == "tops":
        return tuple(other_tops(trace, orders, TOP_SHARE))
    if part == "lengths":
        return tuple(by_text_length(trace, orders))
    return _expectation(LabelLadder.of(trace), orders, seed)


def _expectation(ladder: LabelLadder, orders: Sequence[Rows], seed: int) -> Expectation:
    judged = [
        climb(ladder, by_confidence(0.3, capacity=MOST_SCORES, seed=seed + i), o)
        for i, o in enumerate(orders)
    ]
    blind = [climb(ladder, random_share(0.5, seed + i), o) for i, o in enumerate(orders)]
    mine, other = (np.mean([run.quality for run in runs], axis=0) for runs in (judged, blind))
    spent, allowed = (sum(float(chain_bytes(ladder, run).sum()) for run in runs) for runs in (judged, blind))
    return Expectation(paired_difference(mine, other), spent / allowed)
