"""The adapter in torch: one layer of the model's own architecture, computed as llama.cpp computes it.

Weights are in the layout of the GGUF file, so that what was trained is written as it is. llama.cpp's converter permutes
the query and key weights of the llama architecture; its rotation then turns neighbouring numbers, as here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from disco.adapter.model_facts import ModelFacts

__all__ = ["AdapterLayer", "Block", "normed"]

Block = Literal["full", "attention"]


def normed(states: Tensor, weights: Tensor, epsilon: float) -> Tensor:
    """Return RMSNorm of states, shape (..., hidden)."""
    return states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + epsilon) * weights


class AdapterLayer(nn.Module):  # type: ignore[misc] # torch is not read
    """One layer: attention over the states before, and for the full block a gated feed-forward part.

    Args:
        facts: the model's sizes.
        tensors: the initial weights by llama.cpp's names without `blk.N.`; those of the feed-forward part may be
            missing, and are then not trained.
    """

    def __init__(self, facts: ModelFacts, tensors: Mapping[str, npt.NDArray[np.floating[Any]]]) -> None:
        super().__init__()
        self.facts = facts
        # torch takes no dots in the names of parameters.
        self.weights = nn.ParameterDict(
            {_escaped(name): torch.tensor(np.asarray(one, np.float32)) for name, one in tensors.items()}
        )

    def tensors(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return a copy of the weights by llama.cpp's names."""
        return {name.replace("__", "."): one.detach().numpy().copy() for name, one in self.weights.items()}

    def forward(self, states: Tensor) -> Tensor:
        """Compute states of whole sequences from their first position on.

        Args:
            states: behind the device's layers, shape (sequences, tokens, hidden).

        Returns:
            The states behind the adapter, before the output norm, of the same shape.
        """
        states = states + self._attention(self._normed("attn_norm", states))
        if "ffn_down__weight" in self.weights:
            inner = self._normed("ffn_norm", states)
            states = states + self._linear(
                "ffn_down", fn.silu(self._linear("ffn_gate", inner)) * self._linear("ffn_up", inner)
            )
        return states

    def _normed(self, name: str, states: Tensor) -> Tensor:
        return normed(states, self.weights[f"{name}__weight"], self.facts.epsilon)

    def _linear(self, name: str, inputs: Tensor) -> Tensor:
        return fn.linear(inputs, self.weights[f"{name}__weight"], self.weights.get(f"{name}__bias"))

    def _attention(self, inputs: Tensor) -> Tensor:
        facts = self.facts
        sequences, tokens, _ = inputs.shape

        def heads(name: str, count: int) -> Tensor:
            made = self._linear(name, inputs).view(sequences, tokens, count, facts.head_size)
            if f"{name}_norm__weight" in self.weights:  # Qwen 3
                made = self._normed(f"{name}_norm", made)
            return made.transpose(1, 2)

        query, key = heads("attn_q", facts.heads), heads("attn_k", facts.kv_heads)
        value = heads("attn_v", facts.kv_heads)
        cosine, sine = _rotation(facts, tokens)
        query, key = (_rotated(one, cosine, sine, halves=facts.rotates_halves) for one in (query, key))
        groups = facts.heads // facts.kv_heads
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        mixed = fn.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self._linear("attn_output", mixed.transpose(1, 2).reshape(sequences, tokens, -1))


def _escaped(name: str) -> str:
    return name.replace(".", "__")


def _rotation(facts: ModelFacts, tokens: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the angles, shape (tokens, rope_size / 2)."""
    pairs = torch.arange(0, facts.rope_size, 2, dtype=torch.float32) / facts.rope_size
    angles = torch.arange(tokens, dtype=torch.float32)[:, None] * facts.rope_base**-pairs
    angles = angles / torch.from_numpy(facts.rope_factors)
    return angles.cos(), angles.sin()


def _rotated(heads: Tensor, cosine: Tensor, sine: Tensor, *, halves: bool) -> Tensor:
    """Turn pairs of numbers by their angles: neighbours, or those of the first half with those of the second.

    Args:
        heads: shape (sequences, heads, tokens, head_size).
        cosine: of `_rotation`.
        sine: of `_rotation`.
        halves: which pairs.
    """
    size = 2 * cosine.shape[-1]
    turned, rest = heads[..., :size], heads[..., size:]
    one, other = turned.chunk(2, -1) if halves else (turned[..., 0::2], turned[..., 1::2])
    both = (one * cosine - other * sine, one * sine + other * cosine)
    made = torch.cat(both, -1) if halves else torch.stack(both, -1).flatten(-2)
    return torch.cat((made, rest), -1)
