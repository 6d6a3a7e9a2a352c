"""Which endpoints may start because another one is silent, and how a policy's budget pays for that."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from disco.dispatch.arranging import Arrangement
from disco.plan import Candidate, Start

__all__ = ["Debt", "has_data", "heirs_of"]


def has_data(able: Sequence[Candidate]) -> bool:
    """Whether enough is known about any endpoint to call a silence unusual."""
    return any(c.silence_s is not None or c.slow_start is not None for c in able)


def heirs_of(able: Sequence[Candidate], arranged: Arrangement, excluded: Collection[str]) -> tuple[str, ...]:
    """Return the names of the endpoints that may start on a silence, in order of preference.

    In a cascade these are the endpoints of the tier that starts: a silence is no reason to rise. Otherwise all that
    the preset does not spare.

    Args:
        able: the endpoints that may serve the request, in order of preference.
        arranged: what the policy decided.
        excluded: names of endpoints that cool down or are probed, and those that a budget in debt limits.
    """
    if len(arranged.tiers) > 1:
        first = arranged.starts[0].endpoint
        tier = next((t for t in arranged.tiers if first in t), ())
        return tuple([name for name in tier if name not in excluded])
    out = arranged.spared | arranged.last
    return tuple([c.name for c in able if c.name not in excluded and c.name not in out])


class Debt:
    """Prompt tokens that the side with a budget has read because another endpoint was silent.

    A policy plans for exactly its budget, so what a hedge reads there is too much. It is taken from later requests: one
    that would have started that side beside another endpoint does not. While tokens are owed, nothing more is hedged
    there. So in any sequence of requests the side reads at most one prompt more than under the policy alone.

    Mutable: `tokens`.

    Attributes:
        tokens: how many are owed; below 0: so many were saved more than owed.
    """

    __slots__ = ("tokens",)

    def __init__(self) -> None:
        self.tokens = 0

    @property
    def is_owed(self) -> bool:
        """Whether a later request has to make up for a hedge."""
        return self.tokens > 0

    def owe(self, tokens: int) -> None:
        """Add what a hedge has read."""
        self.tokens += tokens

    def repaid_by(
        self, starts: tuple[Start, ...], limited: Collection[str], tokens: int
    ) -> tuple[Start, ...]:
        """Return the starts without those of `limited` that would start at once beside another; they repay the debt.

        A start that waits for the other side to be slow often does not happen. To leave it out would repay too little.
        """
        if not self.is_owed:
            return starts
        left = tuple([s for s in starts if s.endpoint not in limited or s.after_s > 0])
        if not left or len(left) == len(starts) or min(s.after_s for s in left) > 0:
            return starts
        self.tokens -= tokens * (len(starts) - len(left))
        return left
