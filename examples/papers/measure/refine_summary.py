"""Makes the table of a measurement: means over questions, with bootstrap intervals over paragraphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from disco.replay import bootstrap_mean
from papers.measure.paragraph_run import Measured
from papers.measure.refine_arms import Arm
from papers.refinement import RefineRow

__all__ = ["summarise"]


def summarise(found: Sequence[Sequence[dict[Arm, Measured]]], arms: Sequence[Arm]) -> list[RefineRow]:
    """Return one row for each arm.

    Args:
        found: for each paragraph, for each of its questions, what each arm measured.
        arms: as measured; "full" is one of them.
    """
    sizes = np.array([len(questions) for questions in found])
    paragraphs = np.repeat(np.arange(len(found)), sizes)

    def column(arm: Arm, name: str) -> NDArray[np.float64]:
        return np.array([float(getattr(one[arm], name)) for questions in found for one in questions])

    def interval(values: NDArray[np.float64]) -> tuple[float, float, float]:
        """Return the mean and its 95 % interval; the questions on a paragraph are drawn together."""
        mean = bootstrap_mean(values, paragraphs, seed=40)
        return mean.mean, mean.low, mean.high

    full = next(arm for arm in arms if arm.name == "full")
    rows = []
    for arm in arms:
        nats, f1 = column(arm, "nats"), column(arm, "f1")
        rival = next((one for one in arms if one.name == "random" and one.keep == arm.keep), None)
        over_random = nats - (np.nan if rival is None else column(rival, "nats"))
        figures = [
            *interval(nats),
            *interval(nats - column(full, "nats")),
            *interval(over_random),
            *interval(f1),
            *interval(f1 - column(full, "f1")),
            *interval(column(arm, "gold_kept")),
        ]
        kept, tokens = (float(column(arm, name).mean()) for name in ("kept_share", "prompt_tokens"))
        rows.append(RefineRow(arm.name, arm.keep, arm.begun, int(sizes.sum()), kept, tokens, *figures))
    return rows
