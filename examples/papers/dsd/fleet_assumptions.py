"""Every constant that the evaluation calibrates or assumes, with its source: the paper prints few of them."""

from __future__ import annotations

from typing import Final, NamedTuple

from papers.dsd.calibrated import ADMISSION, DATA
from papers.dsd.paper_fleets import PAPER_TARGETS, TARGETS

__all__ = ["ASSUMED", "Assumption"]


class Assumption(NamedTuple):
    """A constant that the paper does not print.

    Attributes:
        what: the constant.
        value: with its unit.
        source: where it comes from; "calibrated" is on Table 2, configuration 1, static window.
    """

    what: str
    value: str
    source: str


def _each(part: str, decimals: int = 0) -> str:
    return ", ".join(f"{name} {getattr(data, part):.{decimals}f}" for name, data in DATA.items())


ASSUMED: Final = (
    Assumption("tokens of an answer", _each("output_tokens"), "calibrated: drafters / throughput = TTFT + L TPOT"),
    Assumption("acceptance of a drafted token", _each("acceptance", 2), "calibrated: TPOT of each data set"),
    Assumption(
        "admission before a request is at its server",
        f"{ADMISSION[0]:.0f} ms + {ADMISSION[1]:.2f} ms per token of the prompt",
        "calibrated: TTFT of GSM8K and CNN/DM; HumanEval's is predicted",
    ),
    Assumption("prompts, tokens", _each("prompt_tokens"), "such prompts; with standard deviations of 45 %"),
    Assumption("spread of answers", "standard deviation 20 %, log-normal", "assumed"),
    Assumption(
        "spread of acceptance",
        "0.08 between requests, correlation 0.2 of neighbours",
        "assumed; the paper records sequences and prints none",
    ),
    Assumption(
        "the run",
        "a window of time in the steady state; requests/s are drafters / (TTFT + L TPOT)",
        "Little's law; the paper says nothing of a beginning or an end",
    ),
    Assumption("arrivals", "closed loop, one request per drafter", "Table 2 fits no other; the text says Poisson"),
    Assumption(
        "targets",
        "70B on 4 x A100, 4 x H100 and 4 x A6000, in equal parts",
        "the set-up names the three; shares are not given",
    ),
    Assumption(
        "drafters",
        "7B on A40 and V100, half each",
        "the set-up; an answer's drafter is any of its target's family",
    ),
    Assumption(
        "one family of three",
        f"{TARGETS} of {PAPER_TARGETS} targets with their drafters",
        "a draft needs the target's vocabulary; shapes and costs of the families are nearly the same",
    ),
    Assumption(
        "times of operations",
        "public tables of Vidur; A6000 and V100 scaled from the A40 by bandwidth and operations",
        "with all-reduce, which the paper's predictor leaves out",
    ),
    Assumption("attention", "bytes over 78 % of the bandwidth; prompts at 38 % of the peak", "as in `stand_ins`"),
    Assumption(
        "batches",
        "continuous, at most 64 sequences, attention padded to the longest",
        "not given; without padding the order of a batch makes no difference",
    ),
    Assumption("length-aware", "lengths within 25 % of the first one's", "not given"),
    Assumption("routing in Table 2, Figures 6 and 9", "join the shortest queue", "not given"),
    Assumption("prompts of the drafter", "read while the target reads them", "not said"),
    Assumption("fused mode", "7B on one card of the server, in turn with the target", "§3.3; in §4.4 the target alone"),
    Assumption("data set of the figures", "GSM8K", "as Figure 5; not said of the others"),
    Assumption("AWC", "the network that disco ships, trained on other, random fleets", "weights are not published"),
)  # fmt: skip
