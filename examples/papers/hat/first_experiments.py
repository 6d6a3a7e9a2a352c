"""Figure 1 and the paper's first experiments: one Orin, U-shape, no other requests, in closed form."""

from __future__ import annotations

from typing import Final, NamedTuple

from papers.hat.hat_fleets import DATA, DOWN, UP
from papers.hat.hat_printed import SPEC_BENCH

__all__ = ["PROMPTS", "Parts", "batch_s", "parts"]

PROMPTS: Final = (128, 512, 2048)


class Parts(NamedTuple):
    """Seconds of TTFT."""

    device: float
    cloud: float
    up: float
    down: float


def parts(prompt_tokens: int) -> Parts:
    """Return the parts of TTFT of the 7B, at the means of the printed rates and not calibrated; all rows come down."""
    data = DATA[SPEC_BENCH]
    times = data.times
    size = prompt_tokens * data.model.state_bytes
    return Parts(
        device=times.shallow_s + prompt_tokens * times.shallow_row_s + times.head_s,
        cloud=batch_s(prompt_tokens),
        up=size / (sum(UP) / 2),
        down=size / (sum(DOWN) / 2),
    )


def batch_s(prompt_rows: int, before: int = 0, decodes: int = 0, context: int = 500) -> float:
    """Return the time of a batch of the 7B in the cloud, s: rows of one prompt, and single tokens of other answers."""
    model = DATA[SPEC_BENCH].model
    seconds = model.costs.layers.at(prompt_rows + decodes)
    if prompt_rows:
        seconds += model.costs.prompt_attention_s(prompt_rows, before)
    if decodes:
        seconds += model.costs.attending_s(decodes, decodes * context, decodes * context)
    return model.cloud_share * seconds
