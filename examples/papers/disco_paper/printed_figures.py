"""The figures that the paper prints, as data; each docstring names the table or figure.

Sun, Wang, Lai: DiSCo: Device-Server Collaborative LLM-Based Text Streaming Services, Findings of ACL 2025.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from disco.dispatch import Regime

__all__ = [
    "COST_CUT_PERCENT",
    "MEAN_CUT_PERCENT",
    "MIGRATION",
    "PLANNING_MS",
    "TAIL_CUT_PERCENT",
    "PrintedHandover",
]


@dataclass(frozen=True, slots=True)
class PrintedHandover:
    """What a reader notices of a migration.

    Attributes:
        delayed_tokens, delayed_p99: mean and P99 of late tokens, over answers that migrated.
        tbt_p99_s: P99 of the time between tokens as read.
    """

    delayed_tokens: float
    delayed_p99: float
    tbt_p99_s: float


_S: Final[Regime] = "server-constrained"
_D: Final[Regime] = "device-constrained"


def _by_device(b_1100m: float, b_560m: float, q_500m: float) -> Mapping[str, float]:
    return MappingProxyType({"B-1.1B": b_1100m, "B-560M": b_560m, "Q-0.5B": q_500m})


TAIL_CUT_PERCENT: Final[Mapping[tuple[str, Regime], Mapping[str, float]]] = MappingProxyType(
    {
        ("GPT", _S): _by_device(23.85, 37.41, 44.04),
        ("GPT", _D): _by_device(26.39, 21.48, 16.32),
        ("LLaMA", _S): _by_device(11.08, 23.09, 26.29),
        ("LLaMA", _D): _by_device(35.67, 29.30, 21.29),
        ("DeepSeek", _S): _by_device(0.0, 3.88, 15.53),
        ("DeepSeek", _D): _by_device(30.91, 28.01, 25.08),
        ("Command", _S): _by_device(47.93, 50.93, 52.23),
        ("Command", _D): _by_device(34.78, 31.53, 24.42),
    }
)
"""Table 2: how much lower P99 of TTFT is than under stochastic dispatch, averaged over budgets, in %."""

MIGRATION: Final[Mapping[tuple[str, Regime], PrintedHandover]] = MappingProxyType(
    {
        ("GPT", _S): PrintedHandover(4.21, 9.40, 0.209),
        ("GPT", _D): PrintedHandover(6.59, 6.59, 0.217),
        ("LLaMA", _S): PrintedHandover(5.53, 11.0, 0.209),
        ("LLaMA", _D): PrintedHandover(10.01, 10.01, 0.217),
        ("DeepSeek", _S): PrintedHandover(8.13, 11.0, 0.209),
        ("DeepSeek", _D): PrintedHandover(17.17, 17.17, 0.217),
        ("Command", _S): PrintedHandover(3.25, 8.0, 0.209),
        ("Command", _D): PrintedHandover(8.54, 8.54, 0.217),
    }
)
"""Table 3: what migration costs the reader."""

MEAN_CUT_PERCENT: Final = (6.0, 78.0)
"""Figure 6 and the abstract: the range of how much lower the mean TTFT is than under stochastic dispatch, in %."""

COST_CUT_PERCENT: Final[Mapping[Regime, float]] = MappingProxyType({_D: 72.7, _S: 83.6})
"""Figure 7: the most that migration saves of the cost without it, in %."""

PLANNING_MS: Final[Mapping[str, Mapping[int, float]]] = MappingProxyType(
    {
        "length_threshold": MappingProxyType({1_000: 0.128, 10_000: 0.969, 100_000: 9.082}),
        "wait_time": MappingProxyType({1_000: 0.486, 10_000: 1.741, 100_000: 14.856}),
    }
)
"""Figure 9: milliseconds to plan, by number of samples, on an Apple M1."""
