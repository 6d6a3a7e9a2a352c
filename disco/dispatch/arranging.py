"""What decides which endpoints start, among any number of them that may serve a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from disco.dispatch.request_features import Features
from disco.plan import Candidate, Start
from disco.profiles.length_distribution import Lengths
from disco.profiles.time_distribution import Empirical

__all__ = ["Arrangement", "Arranging", "BudgetClass"]

BudgetClass = Literal["background", "standard", "urgent"]
"""What a request may spend: nothing of the budget, what the policy says, or whatever is fastest."""

_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What is decided for one request; all other endpoints that may serve it stand by.

    Attributes:
        starts: at least one; the earliest at 0.
        chosen: names of the endpoints that were decided between. One on standby gets an answer moved to it only
            where it is among them.
        spared: names of the endpoints that no answer moves to.
    """

    starts: tuple[Start, ...]
    chosen: tuple[str, ...]
    spared: frozenset[str] = _NONE


class Arranging(Protocol):
    """Decides for one request after the other. `two_sided.TwoSided` has the policies of a device and a server."""

    def arrange(
        self, features: Features, able: Sequence[Candidate], budget_class: BudgetClass
    ) -> Arrangement:
        """Decide.

        Args:
            features: of the request.
            able: the endpoints that may serve it, in order of preference; at least one.
            budget_class: see `Dispatcher.plan`.
        """
        ...

    def limited(self, able: Sequence[Candidate]) -> frozenset[str]:
        """Names of the endpoints whose tokens its budget counts. They join no race unless the policy asks for it."""
        ...

    def refit(self, lengths: Lengths, ttft: Empirical) -> None:
        """Follow the distributions as they change."""
        ...
