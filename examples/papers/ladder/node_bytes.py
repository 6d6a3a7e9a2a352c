"""Bytes at every node of a ladder: for the paper's chain of tiers, and for the star that a client makes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from papers.ladder.arms import LadderRun
from papers.ladder.ladder_columns import Ladder

__all__ = ["chain_bytes", "request_bytes", "star_bytes"]


def chain_bytes(ladder: Ladder, run: LadderRun) -> NDArray[np.float64]:
    """Return the bytes that pass each node, shape (tiers,), as in the paper's tables (Eqs. 34-35).

    A request that ends at tier i goes up i hops, and its answer comes down the same hops. Both ends of a hop count,
    so its total is 2*i*(|x|+|y|). A direct request has one hop, between tier 0 and the tier that answers.
    """
    sizes = _final_sizes(ladder, run)
    nodes = np.zeros(ladder.tiers)
    for end in range(1, ladder.tiers):
        mine = float(sizes[run.ends == end].sum())
        if run.direct:
            nodes[[0, end]] += mine
            continue
        for hop in range(end):
            nodes[[hop, hop + 1]] += mine
    return nodes


def star_bytes(ladder: Ladder, run: LadderRun) -> NDArray[np.float64]:
    """Return the bytes that pass each node, shape (tiers,), where the client asks one tier after the other.

    The client (tier 0) carries every hop, and it also gets the answers that are overruled.
    """
    sizes = ladder.sent_bytes[:, None] + ladder.answer_bytes
    nodes = np.zeros(ladder.tiers)
    for tier in range(1, ladder.tiers):
        asked = run.ends == tier if run.direct else run.ends >= tier
        nodes[tier] = sizes[asked, tier].sum()
    nodes[0] = nodes[1:].sum()
    return nodes


def request_bytes(ladder: Ladder) -> NDArray[np.float64]:
    """Return a climbing request's bytes on the chain, both ends counted: shape (n, tiers), by the tier that ends it."""
    hops = np.arange(ladder.tiers)
    return np.asarray(2.0 * hops * (ladder.sent_bytes[:, None] + ladder.answer_bytes))


def _final_sizes(ladder: Ladder, run: LadderRun) -> NDArray[np.float64]:
    final = ladder.answer_bytes[np.arange(len(run.ends)), run.ends]
    return np.asarray(ladder.sent_bytes + final)
