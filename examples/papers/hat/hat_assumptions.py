"""Every constant that the evaluation calibrates, takes over or assumes, with its source: few are in the paper."""

from __future__ import annotations

from typing import Final, NamedTuple

from papers.hat.hat_fleets import COUNTED, DATA, OUTPUT_TOKENS, RTT_S, SLOWNESS
from papers.hat.hat_printed import CNN_DM

__all__ = ["ASSUMED", "Assumption"]


class Assumption(NamedTuple):
    """A constant.

    Attributes:
        what: the constant.
        value: with its unit.
        source: "calibrated" is on Table V's column "none" (U-shape); "input" is the paper's own result.
    """

    what: str
    value: str
    source: str


def _each(values: dict[str, float], decimals: int) -> str:
    return ", ".join(f"{name} {value:.{decimals}f}" for name, value in values.items())


_LINKS = _each({name: data.link_factor for name, data in DATA.items()}, 3)
_DRAFTERS = _each({name: data.drafter.mean for name, data in DATA.items()}, 3)
_TREES = _each({name: data.tree for name, data in DATA.items()}, 3)

ASSUMED: Final = (
    Assumption("factor on the printed rates of the links", _LINKS, "calibrated: TTFT of each data set"),
    Assumption(
        "mean time of the devices, relative to an Orin at the full rate of its memory",
        f"{SLOWNESS:.2f}",
        "calibrated: TBT of SpecBench at 6 requests/s",
    ),
    Assumption(
        "requests/s of Table V and Figures 8 to 12, CNN/DM",
        f"{DATA[CNN_DM].rate:.1f}",
        "calibrated: TBT of CNN/DM; the paper gives no rate",
    ),
    Assumption("the same, SpecBench", "6", "HAT's TTFT in Table V is that of Figure 6 at 6 requests/s"),
    Assumption(
        "accept length of U-Medusa",
        f"1.89, 1.75: a level of its tree is right with probability {_TREES}",
        "input: Table IV",
    ),
    Assumption(
        "accept length of HAT",
        f"2.06, 1.98: confidences from a beta distribution, mean {_DRAFTERS}, and right so often; eta 0.6",
        "input: Table IV; no adapter of the paper is published",
    ),
    Assumption(
        "branches of parallel drafting that are right behind a wrong last token",
        "half of them",
        "assumed; k is not given",
    ),
    Assumption(
        "prompts",
        "gamma distribution; P90 856 and 1,730 tokens, printed 891 and 1,772",
        "Table III, mean and standard deviation; log-normal has 744 and 1,690",
    ),
    Assumption("answers", f"{OUTPUT_TOKENS} tokens each", "at most 128; lengths are not given"),
    Assumption(
        "cloud",
        "30 of 32 layers of Llama-2-7B; 37 of 40 of InternLM-20B x 40/60; both on the A40",
        "Vidur's public tables; stand-ins for Vicuna on the A6000",
    ),
    Assumption(
        "links",
        "5-10 MB/s up, 10-15 down, in thirds for the three groups, drawn anew for each request",
        "the set-up; 1 MB = 10^6 bytes",
    ),
    Assumption("round trip without payload", f"{1e3 * RTT_S:.0f} ms", "assumed"),
    Assumption(
        "devices",
        "10 Orin, 20 Xavier: 1 to 5 and 2 to 10 times the fastest, log-uniform, a mode for 5 requests",
        "a factor of 10 between fastest and slowest is printed",
    ),
    Assumption(
        "times of devices",
        "weights over 204.8 GB/s; prompts 0.09 s for 2,048 tokens of the 7B",
        "data sheet of the Orin; the paper's first experiments",
    ),
    Assumption(
        "requests of one device",
        "do not wait for each other",
        "at 6 requests/s 44 answers of U-shape are under way, on 30 devices",
    ),
    Assumption(
        "the run",
        f"{COUNTED} requests count, behind 40 and before 60 others",
        "their prompts are the quantiles of the distribution",
    ),
)
