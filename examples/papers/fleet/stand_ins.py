"""What stands in for measurements that the tables lack: other hardware, models of the same shape, attention.

A figure that rests on one of these is called a stand-in (`Prediction.basis`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = [
    "ATTENTION_BANDWIDTH_SHARE",
    "ATTENTION_FLOPS_SHARE",
    "ATTENTION_LAYER_S",
    "GPUS",
    "MODELS",
    "NODES",
    "Gpu",
    "SameShape",
]


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU by its data sheet.

    Attributes:
        bandwidth: of its memory, bytes/s.
        flops: fp16 tensor operations per second, dense.
        like: the GPU whose tables are scaled to this one where it has none of its own; "" where there is none.
    """

    bandwidth: float
    flops: float
    like: str = ""


# Data sheets of the makers: SXM versions of A100 (80 GB), H100 and V100.
GPUS: Final = {
    "a40": Gpu(696e9, 149.7e12, like="a100"),
    "a100": Gpu(2039e9, 312e12),
    "h100": Gpu(3350e9, 989e12, like="a100"),
    "v100": Gpu(900e9, 125e12, like="a40"),
    "a6000": Gpu(768e9, 154.8e12, like="a40"),
}

NODES: Final = {"a40": "a40", "a6000": "a40", "a100": "a100_dgx", "h100": "h100_dgx"}
"""Whose all-reduce times a GPU's servers have; the A6000's are the A40's, without NVLink."""


@dataclass(frozen=True, slots=True)
class SameShape:
    """A model by the name that scenarios use.

    Attributes:
        table: the model of the tables whose figures it has.
        scale: by which they are multiplied (another number of layers).
        exact: whether the shape of the layers is the same, so that the figures are this model's own.
    """

    table: str
    scale: float = 1.0
    exact: bool = True


_7B, _70B = "meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-70b-hf"
_LLAMA_3_8B, _LLAMA_3_70B = "meta-llama/Meta-Llama-3-8B", "meta-llama/Meta-Llama-3-70B"

# Names of scenarios. The tables have Llama 3 on the A100 only: on other GPUs the 70B of Llama 2 stands for it, whose
# layers have the same shape, and the 8B is scaled from the A100.
MODELS: Final = {
    "llama-2-7b": SameShape(_7B),
    "llama-2-70b": SameShape(_70B),
    "llama-3-8b": SameShape(_LLAMA_3_8B),
    "llama-3.1-8b": SameShape(_LLAMA_3_8B),
    "llama-3-70b": SameShape(_LLAMA_3_70B),
    "qwen-7b": SameShape(_7B, exact=False),  # the same layers, a larger vocabulary
    "qwen-72b": SameShape("Qwen/Qwen-72B"),
    "codellama-34b": SameShape("codellama/CodeLlama-34b-Instruct-hf"),
    "internlm-20b": SameShape("internlm/internlm-20b"),
    "vicuna-7b": SameShape(_7B),
    "vicuna-13b": SameShape("internlm/internlm-20b", scale=40 / 60),
    "phi-2": SameShape("microsoft/phi-2"),
}
SAME_LAYERS: Final = {_LLAMA_3_70B: _70B}
"""Models without a table of some GPU: the model whose layers have the same shape."""

# Attention, from the one table there is (Llama-2-70B, A100, 2 GPUs): 128 sequences of 4,032 tokens read their cache at
# 78 % of the memory's bandwidth; the least a layer takes is 0.015 ms, which adds to that; a prompt's chunk multiplies
# at 38 % of the GPU's peak, with no half saved by the causal mask. `test_costs` measures how far this is off.
ATTENTION_BANDWIDTH_SHARE: Final = 0.78
ATTENTION_FLOPS_SHARE: Final = 0.38
ATTENTION_LAYER_S: Final = 0.015e-3
