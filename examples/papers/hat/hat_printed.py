"""The figures that the HAT paper prints (Xie et al., 2025): its tables, and what its text says of plots.

Its plots are images; of them only what the text names is here.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = [
    "ABLATION",
    "ARM_NAMES",
    "CNN_DM",
    "DATASETS",
    "FIGURE_8",
    "GAINS",
    "HAT",
    "SARATHI",
    "SLA",
    "SPEC_BENCH",
    "STEPS",
    "TABLE_4",
    "TABLE_5",
    "TBT_11",
    "TBT_GROWTH",
    "TTFT_AT",
    "U_MEDUSA",
    "U_SHAPE",
    "Ablation",
    "Gain",
    "Sla",
]

HAT, SARATHI, U_MEDUSA, U_SHAPE = "hat", "u_sarathi", "u_medusa", "u_shape"
ARM_NAMES: Final = (HAT, SARATHI, U_MEDUSA, U_SHAPE)
"""In the paper's order, which is that of all tuples here."""
SPEC_BENCH, CNN_DM = "SpecBench", "CNN/DM"
DATASETS: Final = (SPEC_BENCH, CNN_DM)

TTFT_AT: Final = {
    ("6", SPEC_BENCH): (384.2, 609.2, 644.6, 646.2),
    ("7", CNN_DM): (1027.4, 1750.6, 2214.8, 2140.8),
    ("11", SPEC_BENCH): (431.4, 1080.0, 727.1, 694.0),
}
"""TTFT in ms by figure: at 6 requests/s, at 4, and with one GPU in the pipeline (rate not given)."""


class Gain(NamedTuple):
    """What HAT changes against the others, %."""

    figure: str
    dataset: str
    what: str
    rate: float | None
    sarathi: float
    u_medusa: float
    u_shape: float


GAINS: Final = (
    Gain("6", SPEC_BENCH, "tbt_ms", 4.0, -31.9, -22.5, -41.3),
    Gain("7", CNN_DM, "tbt_ms", 4.0, -40.8, -77.2, -74.7),
    Gain("12", CNN_DM, "ttft_ms", None, -36.9, -40.7, -40.1),
    Gain("12", CNN_DM, "tbt_ms", None, -32.3, -33.9, -47.1),
)
TBT_GROWTH: Final = (5.3, 7.8, 64.5, 44.0)
"""Figure 6: TBT at 9 requests/s above that at 4, %."""
TBT_11: Final = (39.2, 67.5, 65.3, 88.6)
"""Figure 11: TBT, ms."""

FIGURE_8: Final = {
    SPEC_BENCH: ((6.8, 1.3), (6.5, 1.2), (10.0, 8.1), (8.4, 7.1)),
    CNN_DM: ((12.4, 1.1), (11.9, 3.4), (23.3, 27.5), (18.9, 24.6)),
}
"""Time of a batch on one GPU: mean and standard deviation, ms."""


class Sla(NamedTuple):
    """Figures 9 and 10.

    Attributes:
        figure: its number.
        limit_ms: of prefill for 128 tokens.
        met: share of requests within it, %.
        share: of ten tokens each.
        ten_ms: which that share meets.
    """

    figure: str
    limit_ms: float
    met: tuple[float, ...]
    share: float
    ten_ms: tuple[float, ...]


SLA: Final = {
    SPEC_BENCH: Sla("9", 350.0, (100.0, 76.8, 78.8, 86.6), 0.5, (489.3, 565.0, 659.8, 786.1)),
    CNN_DM: Sla("10", 300.0, (100.0, 64.7, 68.9, 76.3), 0.9, (1352.7, 1561.5, 3109.6, 3357.8)),
}

TABLE_4: Final = {
    SPEC_BENCH: {U_SHAPE: (1.00, 1.00), U_MEDUSA: (1.89, 1.41), HAT: (2.06, 1.65)},
    CNN_DM: {U_SHAPE: (1.00, 1.00), U_MEDUSA: (1.75, 1.45), HAT: (1.98, 1.60)},
}
"""Accept length and decode speed-up. The former is said to count accepted draft tokens, yet is 1.00 without drafts: it
counts the model's own token, too."""


class Ablation(NamedTuple):
    """A column of Table V: what of HAT is on."""

    name: str
    chunks: bool
    drafts: bool
    parallel: bool


ABLATION: Final = (
    Ablation("none", chunks=False, drafts=False, parallel=False),
    Ablation("PC", chunks=True, drafts=False, parallel=False),
    Ablation("SD", chunks=False, drafts=True, parallel=False),
    Ablation("SD+PD", chunks=False, drafts=True, parallel=True),
    Ablation("SD+PC", chunks=True, drafts=True, parallel=False),
    Ablation("all", chunks=True, drafts=True, parallel=True),
)
STEPS: Final = tuple(column.name for column in ABLATION)
TABLE_5: Final = {
    SPEC_BENCH: dict(
        zip(
            STEPS,
            ((655.6, 52.3), (384.0, 39.4), (655.3, 38.3), (657.9, 33.8), (384.3, 30.6), (384.2, 26.4)),
            strict=True,
        )
    ),
    CNN_DM: dict(
        zip(
            STEPS,
            (
                (1989.0, 128.1),
                (1038.7, 74.2),
                (1993.5, 84.3),
                (1992.1, 74.9),
                (1039.1, 49.3),
                (1039.9, 43.5),
            ),
            strict=True,
        )
    ),
}
"""TTFT and TBT, ms; the request rate is not given."""
