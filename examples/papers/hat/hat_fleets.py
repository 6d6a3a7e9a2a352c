"""The paper's fleets: data sets, models, devices and links, with what is calibrated and what is assumed.

Calibrated on the U-shape row of Table V alone ("none"), four numbers for its four cells:

| constant | from |
|---|---|
| factor on the printed rates of the links, for each data set | TTFT |
| slowness of the devices | TBT of SpecBench, at 6 requests/s (where HAT's TTFT in Figure 6 is that of Table V) |
| request rate of CNN/DM in Table V, which is not given | TBT of CNN/DM |

`calibrate` finds them again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Final

from disco.replay import DraftedRequest
from disco.speculate import Reply
from papers.hat.hat_printed import CNN_DM, SPEC_BENCH, Ablation
from papers.hat.split_fleet import (
    DevicePool,
    DeviceTimes,
    SplitArm,
    SplitFleet,
    SplitModel,
    arm_of,
)
from papers.hat.split_requests import Drafts, lengths, with_drafts

__all__ = [
    "BEHIND",
    "COUNTED",
    "DATA",
    "DOWN",
    "MAKESPAN",
    "RTT_S",
    "SKIPPED",
    "SLOWNESS",
    "UP",
    "DataSet",
    "ablation_arm",
    "paper_arm",
    "paper_fleet",
    "paper_requests",
]

UP: Final = (5e6, 10e6)
DOWN: Final = (10e6, 15e6)
"""As printed, bytes/s, with 1 MB = 10^6 bytes."""
RTT_S: Final = 0.002
SKIPPED, COUNTED, BEHIND = 40, 320, 60
"""Requests while the load grows, those that count, and those behind them that keep the load up."""
OUTPUT_TOKENS: Final = 128
MAKESPAN: Final = "hat_makespan"
SLOWNESS: Final = 1.09
"""Mean of the devices' times, relative to an Orin that reads its weights at the full rate of its memory; calibrated."""

_ORIN_BPS: Final = 204.8e9  # LPDDR5 of an AGX Orin, data sheet
_PREFILL_ROW_S: Final = 0.09 / 2048  # two layers of the 7B on an Orin, the paper's own first experiment
_LAYER_7B: Final = 12_952_010_752 / 32
# Modes: 10 times between an Orin's fastest and a Xavier's slowest; a Xavier's memory and peak are below an Orin's. The
# mean of both log-uniform ranges over 20 and 10 devices is 4.142.
_ORIN, _XAVIER, _MEAN = (1.0, 5.0), (2.0, 10.0), 4.142


@dataclass(frozen=True, slots=True)
class DataSet:
    """Requests of one data set, and the model that answers them.

    Attributes:
        name: in the paper.
        model: of the cloud; the A40 stands in for the A6000, and 40/60 of InternLM-20B for Vicuna-13B.
        prompt_tokens, p90_tokens, sd_tokens: of prompts, Table III.
        server_rows: of U-Sarathi's passes.
        rate: requests/s where the paper gives none. SpecBench: as Figure 6; CNN/DM: calibrated.
        link_factor: on the printed rates; calibrated.
        drafter: whose accept length is HAT's (2.06, 1.98): an input.
        tree: probability that a level of the tree is right, for U-Medusa's 1.89, 1.75: an input.
        shallow_layers: on the device.
        layer_bytes, head_bytes, adapter_bytes, tree_bytes: fp16 weights; the last two from the trained parameters.
    """

    name: str
    model: SplitModel
    prompt_tokens: float
    p90_tokens: float
    sd_tokens: float
    server_rows: int
    rate: float
    link_factor: float
    drafter: Drafts
    tree: float
    shallow_layers: int
    layer_bytes: float
    head_bytes: float
    adapter_bytes: float
    tree_bytes: float

    @property
    def times(self) -> DeviceTimes:
        """On an Orin at full speed: the weights over the memory's rate; of prompts the paper's own figure."""
        shallow = self.shallow_layers * self.layer_bytes
        return DeviceTimes(
            shallow_s=shallow / _ORIN_BPS,
            shallow_row_s=_PREFILL_ROW_S * shallow / (2 * _LAYER_7B),
            head_s=self.head_bytes / _ORIN_BPS,
            step_s=(shallow + self.adapter_bytes + self.head_bytes) / _ORIN_BPS,
            tree_s=self.tree_bytes / _ORIN_BPS,
        )

    def up_ms(self, bps: float) -> float:
        """Return how long the mean prompt's states take at a rate, ms."""
        return 1e3 * self.prompt_tokens * self.model.state_bytes / bps


DATA: Final = {
    SPEC_BENCH: DataSet(
        SPEC_BENCH,
        SplitModel("vicuna-7b", "a40", 32, 30, 8192),
        *(351.2, 891.0, 397.3, 128),
        rate=6.0,
        link_factor=1.124,
        drafter=Drafts(0.573),
        tree=0.485,
        shallow_layers=2,
        layer_bytes=_LAYER_7B,
        head_bytes=2 * 32000 * 4096,
        adapter_bytes=2 * 67e6,
        tree_bytes=2 * 591e6,
    ),
    CNN_DM: DataSet(
        CNN_DM,
        SplitModel("vicuna-13b", "a40", 40, 37, 10240),
        *(1036.6, 1772.0, 511.8, 256),
        rate=2.0,
        link_factor=1.489,
        drafter=Drafts(0.55),
        tree=0.438,
        shallow_layers=3,
        layer_bytes=38_063_308_800 / 60,
        head_bytes=2 * 32000 * 5120,
        adapter_bytes=2 * 105e6,
        tree_bytes=2 * 760e6,
    ),
}


def paper_arm(name: str, data: DataSet, reply: Reply = "all") -> SplitArm:
    """Return an arm with the data set's server chunks."""
    arm = arm_of(name)
    return replace(arm, server_rows=data.server_rows if arm.server_rows else 0, reply=reply)


def ablation_arm(column: Ablation, reply: Reply = "all", *, makespan: bool = False) -> SplitArm:
    """Return the arm of a column of Table V; `makespan`: with our chunks in place of the paper's."""
    return SplitArm(
        column.name,
        chunks="none" if not column.chunks else "makespan" if makespan else "equation3",
        drafting="drafter" if column.drafts else "none",
        parallel=column.parallel,
        reply=reply,
    )


def paper_fleet(
    data: DataSet, arm: SplitArm, *, rate: float | None = None, pipeline: int = 4, seed: int = 1
) -> SplitFleet:
    """Return the paper's 30 devices: 20 Xavier and 10 Orin in three groups, at the calibrated rates."""
    scale = SLOWNESS / _MEAN
    return SplitFleet(
        arm,
        data.model,
        data.times,
        (
            DevicePool("xavier", 20, scale * _XAVIER[0], scale * _XAVIER[1]),
            DevicePool("orin", 10, scale * _ORIN[0], scale * _ORIN[1]),
        ),
        up=(data.link_factor * UP[0], data.link_factor * UP[1]),
        down=(data.link_factor * DOWN[0], data.link_factor * DOWN[1]),
        rate=data.rate if rate is None else rate,
        pipeline=pipeline,
        rtt_s=RTT_S,
        groups=3,
        seed=seed,
    )


@cache
def paper_requests(
    dataset: str, *, tree: bool, seed: int = 1, parts: tuple[int, ...] = (SKIPPED, COUNTED, BEHIND)
) -> tuple[DraftedRequest, ...]:
    """Return the requests of a run.

    Args:
        dataset: whose.
        tree: whether acceptance is that of a tree's levels, or a drafter's.
        seed: of what is drawn; prompts are the same for all arms.
        parts: so many, one after the other, of which each has the printed mean of prompts.
    """
    data = DATA[dataset]
    rng = Random(f"{seed} prompts")
    prompts = [each for part in parts for each in lengths(data.prompt_tokens, data.sd_tokens, part, rng)]
    drafts = data.tree if tree else data.drafter
    return tuple(with_drafts(prompts, OUTPUT_TOKENS, drafts, Random(f"{seed} drafts")))
