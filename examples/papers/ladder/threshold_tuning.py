"""Fixed thresholds, chosen on tuning requests for the most quality within a byte budget."""

from __future__ import annotations

from itertools import product
from typing import Final

import numpy as np

from papers.ladder.arms import climb, fixed_thresholds
from papers.ladder.ladder_columns import Ladder
from papers.ladder.node_bytes import chain_bytes

__all__ = ["tuned_thresholds"]

SHARES: Final = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def tuned_thresholds(ladder: Ladder, ratio: float) -> tuple[float, ...]:
    """Return the thresholds of the tiers below the top, for `fixed_thresholds`.

    Tried are the quantiles `SHARES` of each tier's confidences. Of those whose bytes are at most `ratio` of all
    requests sent to the top tier, the ones with the highest quality are returned; of equals, those with the fewest
    bytes.

    Args:
        ladder: the tuning requests; never those that are evaluated.
        ratio: the byte budget, as a share of the bytes of all requests sent directly to the top tier.
    """
    order = np.arange(len(ladder.sent_bytes))
    budget = ratio * 2.0 * float((ladder.sent_bytes + ladder.answer_bytes[:, -1]).sum())
    levels = []
    for tier in range(ladder.tiers - 1):
        judged = ladder.answers(tier, order).confidence
        judged = judged[np.isfinite(judged)]
        # Below the 0-quantile is no score, so nothing goes up; for the share 1 everything does.
        levels.append([*np.quantile(judged, SHARES[:-1]).tolist(), np.inf] if len(judged) else [-np.inf])
    tried = []
    for thresholds in product(*levels):
        run = climb(ladder, fixed_thresholds(thresholds), order)
        spent = float(chain_bytes(ladder, run).sum())
        if spent <= budget:
            tried.append((float(run.quality.mean()), -spent, thresholds))
    if not tried:  # not even the quantile 0 is within the budget: nothing goes up
        return (-np.inf,) * (ladder.tiers - 1)
    return max(tried)[2]
