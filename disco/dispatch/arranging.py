"""The interface that decides which of the endpoints that may serve a request start, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from disco.candidate import Candidate
from disco.dispatch.request_features import Features
from disco.plan import Assist, Spend, Start
from disco.profiles.length_distribution import Lengths
from disco.profiles.time_distribution import Empirical

__all__ = ["Arrangement", "Arranging", "BudgetClass"]

BudgetClass = Literal["background", "standard", "urgent"]
"""How a request uses the policy's budget: not at all, as the policy decides, or for the fastest start."""

_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The starts for one request; the other endpoints that may serve it are its fallbacks.

    Attributes:
        starts: at least one; the earliest at 0.
        chosen: names of the endpoints that the policy chose between. An answer moves to a standby endpoint only if
            the endpoint is one of these.
        spared: names of the endpoints that no answer moves to.
        tiers: see `plan.Cascade.tiers`; fewer than two: the answer is not judged.
        last: names of the endpoints that are fallbacks only after all others.
        assist: how the answer is divided between a writer and its heir, which are the two starts; None: it is not.
        undivided: why it is not, under the policy "assist" (`dispatch.assist.Undivided`); None under any other policy.
        spend: the request in the policy's budget; None: it is not counted.
        used_up: names of the endpoints whose budget keeps no room for this request: none of them starts on a silence.
    """

    starts: tuple[Start, ...]
    chosen: tuple[str, ...]
    spared: frozenset[str] = _NONE
    tiers: tuple[tuple[str, ...], ...] = ()
    last: frozenset[str] = _NONE
    assist: Assist | None = None
    undivided: str | None = None
    spend: Spend | None = None
    used_up: frozenset[str] = _NONE


class Arranging(Protocol):
    """Decides for one request after another; `two_sided.TwoSided` uses the policies of a device and a server."""

    def arrange(
        self, features: Features, able: Sequence[Candidate], budget_class: BudgetClass
    ) -> Arrangement:
        """Decide which endpoints start for one request.

        Args:
            features: the request's features.
            able: the endpoints that may serve the request, in order of preference; at least one.
            budget_class: see `Dispatcher.plan`.
        """
        ...

    def limited(self, able: Sequence[Candidate]) -> frozenset[str]:
        """Return the names of the endpoints whose tokens the policy's budget counts; only the policy starts these.

        Args:
            able: the endpoints that may serve the request.
        """
        ...

    def refit(self, lengths: Lengths, ttft: Empirical) -> None:
        """Use these distributions from now on: prompt lengths, and the server's time to first token.

        Args:
            lengths: prompt lengths, tokens.
            ttft: the server's time to first token, s.
        """
        ...
