"""The figures that the DSD paper prints (anonymous, MLSys submission): its Table 2, and what its text says of plots.

Its plots are images; of them only what the text names is here.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

__all__ = [
    "ADAPTIVE",
    "CONFIGURATIONS",
    "CROSSOVER_MS",
    "DATASETS",
    "DYNAMIC",
    "FIGURE_5",
    "JSQ_LOWER_MS",
    "LAB_LOWER_MS",
    "STATIC",
    "TABLE_2",
    "WINDOWS",
    "Cell",
    "Configuration",
    "printed",
]

STATIC, DYNAMIC, ADAPTIVE = "static", "dynamic", "adaptive"
WINDOWS: Final = (STATIC, DYNAMIC, ADAPTIVE)
DATASETS: Final = ("GSM8K", "HumanEval", "CNN/DM")


class Configuration(NamedTuple):
    """A column of Table 2."""

    targets: int
    drafters: int
    rtt_ms: float


class Cell(NamedTuple):
    """A system's figures: requests/s, ms, ms."""

    requests_per_s: float
    ttft_ms: float
    tpot_ms: float


CONFIGURATIONS: Final = {
    1: Configuration(20, 600, 10.0),
    2: Configuration(20, 1000, 10.0),
    3: Configuration(20, 600, 30.0),
    4: Configuration(20, 1000, 30.0),
}

_Rows: TypeAlias = dict[str, tuple[tuple[float, float, float], ...]]
TABLE_2: Final[dict[str, _Rows]] = {
    "requests/s": {
        "GSM8K": ((25.8, 26.1, 28.3), (30.6, 30.7, 31.5), (17.8, 18.9, 18.5), (21.4, 21.8, 22.3)),
        "HumanEval": ((16.2, 16.7, 17.2), (17.4, 17.6, 18.2), (11.2, 11.0, 11.3), (12.8, 13.1, 13.2)),
        "CNN/DM": ((8.0, 8.25, 8.4), (12.1, 12.2, 12.6), (6.0, 6.2, 6.2), (9.3, 9.5, 9.7)),
    },
    "TTFT ms": {
        "GSM8K": ((352, 334, 347), (368, 354, 362), (462, 457, 443), (478, 465, 463)),
        "HumanEval": ((803, 792, 799), (2102, 2178, 2038), (1138, 1125, 1120), (2578, 2520, 2497)),
        "CNN/DM": ((1602, 1625, 1569), (2412, 2408, 2352), (2024, 1993, 2006), (2986, 2934, 2925)),
    },
    "TPOT ms": {
        "GSM8K": ((40.1, 38.9, 36.2), (72.2, 69.7, 67.4), (62.3, 62.9, 58.3), (99.4, 98.1, 91.5)),
        "HumanEval": ((50.8, 48.6, 46.3), (75.4, 73.4, 70.5), (79.2, 78.1, 73.6), (102.7, 100.2, 96.8)),
        "CNN/DM": ((67.4, 66.9, 62.8), (82.1, 82.6, 76.8), (92.4, 88.6, 86.7), (108.3, 108.5, 98.2)),
    },
}
"""By figure and data set: for each configuration static, dynamic (there "Simple") and adaptive (AWC)."""

FIGURE_5: Final = (("random, FIFO, static", Cell(25.1, 351, 45)), ("JSQ, LAB, AWC", Cell(28.1, 345, 37)))
"""Its first and last bar, on GSM8K; those between have no numbers in the text."""

CROSSOVER_MS: Final = (50.0, 60.0)
"""Figure 6: the round trip from which on the fused mode is faster."""
JSQ_LOWER_MS: Final = (5.0, 20.0)
"""Figures 7 and 8: TPOT of JSQ below that of round-robin, up to about 1,000 drafters."""
LAB_LOWER_MS: Final = (1.0, 2.0)
"""Figure 9: TPOT of length-aware batches below that of FIFO."""


def printed(dataset: str, configuration: int, window: str) -> Cell:
    """Return a cell of Table 2."""
    place = WINDOWS.index(window)
    return Cell(*(float(TABLE_2[name][dataset][configuration - 1][place]) for name in TABLE_2))
