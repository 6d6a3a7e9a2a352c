"""What is calibrated, on one column of Table 2 alone (configuration 1, static window), and what is assumed of data.

| constant | from |
|---|---|
| L, tokens of an answer | `drafters / throughput = TTFT + L TPOT` of the column, for each data set |
| acceptance | the column's TPOT, for each data set |
| admission per request and per token of the prompt | the column's TTFT of GSM8K and CNN/DM; HumanEval's is predicted |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["ADMISSION", "DATA", "DataSet"]

ADMISSION: Final = (156.8, 1.202)
"""Time before a request is at its server: ms, and ms per token of the prompt. What the paper's TTFT has beside network,
queue and prefill; the paper names no part that could be it."""


@dataclass(frozen=True, slots=True)
class DataSet:
    """Requests of one data set.

    Attributes:
        name: in the paper.
        prompt_tokens: mean length of prompts; assumed, from what such prompts look like.
        output_tokens: L, from the closed loop.
        acceptance: probability that a drafted token is right.
    """

    name: str
    prompt_tokens: float
    output_tokens: float
    acceptance: float

    @property
    def admission_ms(self) -> float:
        """Time before a request is at its server, ms."""
        return ADMISSION[0] + ADMISSION[1] * self.prompt_tokens

    @property
    def usual_ms(self) -> float:
        """About what an answer takes, ms: the unit of a run's length."""
        return 40.0 * self.output_tokens


DATA: Final = {
    "GSM8K": DataSet("GSM8K", 70, 571, 0.96),
    "HumanEval": DataSet("HumanEval", 150, 713, 0.86),
    "CNN/DM": DataSet("CNN/DM", 900, 1089, 0.74),
}
