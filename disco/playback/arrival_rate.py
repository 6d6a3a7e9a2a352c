"""How fast text arrives from an endpoint."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from math import exp

__all__ = ["MEMORY_S", "ArrivalRate"]

MEMORY_S = 1.0
"""An arrival that long ago counts 1/e, s."""

_PRIOR_SPAN_S = 0.03


@dataclass(slots=True)
class ArrivalRate:
    """Exponentially weighted mean of the rate of arrivals. Mutable: every field.

    Args:
        first_tps: the rate that is assumed to have held for some hundredths of a second before the first arrival.

    Attributes:
        span_s, tokens: weighted sums of the times between arrivals and of the tokens that came.
        last_at: when the last arrival came, s; None before the first.
    """

    first_tps: InitVar[float]
    span_s: float = field(init=False, default=_PRIOR_SPAN_S)
    tokens: float = field(init=False)
    last_at: float | None = field(init=False, default=None)

    def __post_init__(self, first_tps: float) -> None:
        self.tokens = _PRIOR_SPAN_S * first_tps

    def add(self, now: float, tokens: float) -> None:
        """Take an arrival at `now`, in seconds; the tokens of the first one were written before the clock started."""
        if self.last_at is not None:
            span_s = max(0.0, now - self.last_at)
            kept = exp(-span_s / MEMORY_S)
            self.span_s = self.span_s * kept + span_s
            self.tokens = self.tokens * kept + tokens
        self.last_at = now

    @property
    def tps(self) -> float:
        """The rate, in tokens/s."""
        return self.tokens / self.span_s
