"""How the constants of `calibrated` were found. They are kept there; a slow test finds them again."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import Final

from papers.dsd.calibrated import DATA, DataSet
from papers.dsd.printed_values import CONFIGURATIONS, STATIC, Cell, printed
from papers.dsd.steady_state import SPAN, steady_point

__all__ = ["calibrate", "loop_tokens"]

_COLUMN: Final = 1
_STEPS: Final = 8


def loop_tokens(dataset: str, configuration: int = _COLUMN, window: str = STATIC) -> float:
    """Return L of a closed loop with one request per drafter: `drafters / throughput = TTFT + L TPOT`."""
    cell = printed(dataset, configuration, window)
    drafters = CONFIGURATIONS[configuration].drafters
    return (1e3 * drafters / cell.requests_per_s - cell.ttft_ms) / cell.tpot_ms


def calibrate(*, seeds: int = 2) -> tuple[tuple[float, float], dict[str, DataSet]]:
    """Return admission (ms, ms per token of the prompt) and the data sets with L and acceptance.

    Args:
        seeds: runs of each step, whose means are compared with the column.
    """
    found: dict[str, DataSet] = {}
    without: dict[str, float] = {}
    for name, assumed in DATA.items():
        wanted = printed(name, _COLUMN, STATIC)
        data = replace(assumed, output_tokens=round(loop_tokens(name)))
        low, high = 0.3, 0.99
        for _ in range(_STEPS):
            middle = (low + high) / 2
            runs = _runs(replace(data, acceptance=middle), seeds)
            if fmean(run.tpot_ms for run in runs) > wanted.tpot_ms:
                low = middle
            else:
                high = middle
        found[name] = replace(data, acceptance=round((low + high) / 2, 2))
        runs = _runs(found[name], seeds)
        without[name] = wanted.ttft_ms - fmean(run.ttft_ms for run in runs) + data.admission_ms
    short, long = "GSM8K", "CNN/DM"
    slope = (without[long] - without[short]) / (found[long].prompt_tokens - found[short].prompt_tokens)
    return (without[short] - slope * found[short].prompt_tokens, slope), found


def _runs(data: DataSet, seeds: int) -> list[Cell]:
    """Return the column's figures; TTFT with the admission that `data` has."""
    column = CONFIGURATIONS[_COLUMN]
    return [
        steady_point(data, SPAN, drafters=column.drafters, rtt_ms=column.rtt_ms, seed=seed).cell
        for seed in range(1, seeds + 1)
    ]
