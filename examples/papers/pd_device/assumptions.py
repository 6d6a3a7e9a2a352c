"""Every constant that the evaluation assumes, with its source: the paper prints few of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from disco.profiles import load_device

__all__ = [
    "ASSUMED",
    "CLOUD",
    "KEPT",
    "LENGTHS",
    "LONGEST_ANSWER",
    "LOST_AT_CUT",
    "NPU",
    "SLOWEST_S",
    "WHOLE_ANSWER",
    "Assumption",
    "Cloud",
    "DeviceSpeed",
    "devices",
]

LENGTHS: Final = (500, 1_000, 2_000, 4_096, 8_192, 16_384, 32_768)
"""Prompt lengths of the tables, tokens: those of the paper's Figures 7c and 9a, and shorter ones."""
SLOWEST_S: Final = 0.1
"""τ, s per token."""
KEPT: Final = (0.25, 0.6)
"""r: the default of the paper's Table 2, and the share that its Figure 4a finds harmless."""
WHOLE_ANSWER: Final = 200
"""Tokens of an answer in the paper's Figure 7d."""
LONGEST_ANSWER: Final = 1_000
"""The largest L of ours: the longest answer of the service that requests are drawn from."""
LOST_AT_CUT: Final = 2
"""Tokens that a hand-over at a word boundary drops."""


@dataclass(frozen=True, slots=True)
class Cloud:
    """The paper's cloud.

    Attributes:
        fixed_s: round trip and preparation, s.
        read_s: k_c, s per prompt token.
        refine_s: refinement, s per prompt token.
        tpot_s: TPOT_c, s.
        decompress_s: until the device has the kept text from the mask, s.
    """

    fixed_s: float = 0.05
    read_s: float = 0.15 / 8192
    refine_s: float = 0.15 / 8192
    tpot_s: float = 0.05
    decompress_s: float = 0.01

    def token_s(self, prompt_tokens: float) -> float:
        """Return the time to first token without refinement, s."""
        return self.fixed_s + self.read_s * prompt_tokens

    def refined_token_s(self, prompt_tokens: float) -> float:
        """Return the paper's TTFT_c (Eq. 2), s: the first token waits for the refinement."""
        return self.token_s(prompt_tokens) + self.refine_s * prompt_tokens


class DeviceSpeed(NamedTuple):
    """A device.

    Attributes:
        name: in tables.
        read_s: k_d, s per prompt token.
        tpot_s: TPOT_d, s.
        overhead_s: constant part of its time to first token, s.
    """

    name: str
    read_s: float
    tpot_s: float
    overhead_s: float = 0.0


class Assumption(NamedTuple):
    """A constant that the paper does not print.

    Attributes:
        what: the constant.
        value: with its unit.
        source: where it comes from.
    """

    what: str
    value: str
    source: str


CLOUD: Final = Cloud()
NPU: Final = DeviceSpeed("NPU-like", 1 / 800, 0.035)


def _profiled(name: str, profile: str) -> DeviceSpeed:
    device = load_device(profile)
    return DeviceSpeed(name, device.line.k_s_per_token, 1 / device.decode_tps, device.line.c_s)


def devices() -> tuple[DeviceSpeed, ...]:
    """Return the NPU-like device and the phones of the shipped profiles."""
    return (
        NPU,
        _profiled("Xiaomi 14, 0.5B", "xiaomi14-qwen1.5-0.5b"),
        _profiled("Pixel 7 Pro, 1.1B", "pixel7pro-bloom-1.1b"),
    )


ASSUMED: Final = (
    Assumption(
        "cloud: prefill k_c", "0.15 s per 8k tokens", "Figs. 9b, 9d: half of the time is refinement, 100-200 ms at 8k"
    ),
    Assumption("cloud: refinement", "0.15 s per 8k tokens", "Fig. 9d: in proportion to l, mostly 100-200 ms at 8k"),
    Assumption("cloud: round trip and preparation", "0.05 s", "Fig. 9a: tens of ms; the paper gives no RTT"),
    Assumption("cloud: TPOT_c", "0.05 s", "Fig. 3c: 20 decoded tokens take about 1 s"),
    Assumption("device: decompression", "0.01 s", "ours: gunzip of 1 KB takes microseconds, the rest is tokenising"),
    Assumption("NPU-like device: prefill k_d", "1/800 s", "Table 1: more than 10 s for 8k, so at most 800 tokens/s"),
    Assumption("NPU-like device: TPOT_d", "0.035 s", "set-up: a budget of 35 ms a token"),
    Assumption("phones", "79.9 and 31.3 tokens/s read, 21.5 and 13.9 written", "shipped profiles: the DiSCo paper's"),
    Assumption("slowest pace tau", "0.1 s a token", "Fig. 7c"),
    Assumption("kept share r", "0.25 and 0.6", "Table 2's default; Fig. 4a's bound for a small loss"),
    Assumption("whole answer", "200 tokens", "Fig. 7d"),
    Assumption("our largest L", "1,000", "the longest answer of the Azure trace; a larger L is called infeasible"),
    Assumption("tokens lost at our cut", "2", "ours: the cut goes back to a word boundary"),
    Assumption("device energy", "0 USD", "ours: only the server's tokens are charged in these tables"),
)  # fmt: skip
