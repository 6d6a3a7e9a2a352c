"""What each tier of a ladder would answer to each request: the input of every replay of a cascade."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from disco.errors import ConfigurationError

__all__ = ["Ladder", "LadderColumns", "TierAnswers"]

Rows = NDArray[np.intp]


class TierAnswers(NamedTuple):
    """What one tier answers to the requests that reach it, in the order in which they reach it.

    Attributes:
        confidence: shape (m,); NaN where the answer is not judged.
        quality: shape (m,), in [0, 1]; for classes 1 where the answer is right.
    """

    confidence: NDArray[np.float64]
    quality: NDArray[np.float64]


class Ladder(Protocol):
    """n requests and the tiers that may answer them, from the lowest to the highest.

    Attributes:
        tiers: number of tiers, at least two.
        sent_bytes: shape (n,), bytes of each request's text, |x|.
        answer_bytes: shape (n, tiers), bytes of each tier's answer, |y|.
    """

    @property
    def tiers(self) -> int: ...
    @property
    def sent_bytes(self) -> NDArray[np.float64]: ...
    @property
    def answer_bytes(self) -> NDArray[np.float64]: ...

    def answers(self, tier: int, rows: Rows) -> TierAnswers:
        """Return the answers of one tier, if these requests reach it in this order, and no others."""
        ...

    def in_turn(self, tier: int) -> Callable[[int], tuple[float, float]]:
        """Return a tier that answers one request after the other: from a row to its confidence and quality."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class LadderColumns:
    """A ladder whose answers do not depend on the requests before. The top tier is not judged.

    Attributes:
        confidence: shape (n, tiers-1); NaN where an answer is not judged.
        quality: shape (n, tiers), in [0, 1].
        sent_bytes: shape (n,).
        answer_bytes: shape (n, tiers).

    Raises:
        ConfigurationError: shapes that do not fit each other, fewer than two tiers, or no request.
    """

    confidence: NDArray[np.float64]
    quality: NDArray[np.float64]
    sent_bytes: NDArray[np.float64]
    answer_bytes: NDArray[np.float64]

    def __post_init__(self) -> None:
        shape = self.quality.shape
        if len(shape) != 2 or shape[0] < 1 or shape[1] < 2:
            raise ConfigurationError(f"quality has one row per request and two tiers or more, not {shape}")
        n, tiers = shape
        for name, expected in (
            ("confidence", (n, tiers - 1)),
            ("sent_bytes", (n,)),
            ("answer_bytes", (n, tiers)),
        ):
            found = getattr(self, name).shape
            if found != expected:
                raise ConfigurationError(
                    f"{name} has the shape {found}; quality's {shape} asks for {expected}"
                )

    def __len__(self) -> int:
        return len(self.quality)

    @property
    def tiers(self) -> int:
        return int(self.quality.shape[1])

    def answers(self, tier: int, rows: Rows) -> TierAnswers:
        unjudged = np.full(len(rows), np.nan)
        confidence = self.confidence[rows, tier] if tier < self.tiers - 1 else unjudged
        return TierAnswers(confidence, self.quality[rows, tier])

    def in_turn(self, tier: int) -> Callable[[int], tuple[float, float]]:
        every = self.answers(tier, np.arange(len(self)))
        return lambda row: (float(every.confidence[row]), float(every.quality[row]))

    def take(self, rows: Rows) -> LadderColumns:
        """Return some of the requests, in this order."""
        return LadderColumns(
            self.confidence[rows], self.quality[rows], self.sent_bytes[rows], self.answer_bytes[rows]
        )
