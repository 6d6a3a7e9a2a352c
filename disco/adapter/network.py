"""The adapter in torch: one layer of the model's own architecture, computed as llama.cpp computes it.

Weights are in the layout of the GGUF file, so that what was trained is written as it is. llama.cpp's converter permutes
the query and key weights of the llama architecture; its rotation then turns neighbouring numbers, as here.

torch is imported where it is used: without it, these modules can be imported, and nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from disco.adapter.model_facts import ModelFacts

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["AdapterLayer", "Block", "normed"]

Block = Literal["full", "attention"]


def normed(states: Tensor, weights: Tensor, epsilon: float) -> Tensor:
    """Return RMSNorm of states, shape (..., hidden)."""
    return states * (states.pow(2).mean(-1, keepdim=True) + epsilon).rsqrt() * weights


class AdapterLayer:
    """One layer: attention over the states before, and for the full block a gated feed-forward part.

    Attributes:
        weights: what is trained, by llama.cpp's names without `blk.N.`.

    Args:
        facts: the model's sizes.
        tensors: the initial weights by the same names; those of the feed-forward part may be missing, and are then not
            trained.
    """

    def __init__(self, facts: ModelFacts, tensors: Mapping[str, npt.NDArray[np.floating[Any]]]) -> None:
        import torch  # noqa: PLC0415 - optional

        self.facts = facts
        self.weights: dict[str, Tensor] = {
            name: torch.tensor(np.asarray(one, np.float32)).requires_grad_() for name, one in tensors.items()
        }

    def tensors(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return a copy of the weights."""
        return {name: one.detach().numpy().copy() for name, one in self.weights.items()}

    def __call__(self, states: Tensor) -> Tensor:
        """Compute states of whole sequences from their first position on.

        Args:
            states: behind the device's layers, shape (sequences, tokens, hidden).

        Returns:
            The states behind the adapter, before the output norm, of the same shape.
        """
        from torch.nn.functional import silu  # noqa: PLC0415 - optional

        states = states + self._attention(self._normed("attn_norm", states))
        if "ffn_down.weight" in self.weights:
            inner = self._normed("ffn_norm", states)
            gated = silu(self._linear("ffn_gate", inner)) * self._linear("ffn_up", inner)
            states = states + self._linear("ffn_down", gated)
        return states

    def _normed(self, name: str, states: Tensor) -> Tensor:
        return normed(states, self.weights[f"{name}.weight"], self.facts.epsilon)

    def _linear(self, name: str, inputs: Tensor) -> Tensor:
        from torch.nn.functional import linear  # noqa: PLC0415 - optional

        return linear(inputs, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def _attention(self, inputs: Tensor) -> Tensor:
        from torch.nn.functional import scaled_dot_product_attention  # noqa: PLC0415 - optional

        facts = self.facts
        sequences, tokens, _ = inputs.shape

        def heads(name: str, count: int) -> Tensor:
            made = self._linear(name, inputs).view(sequences, tokens, count, facts.head_size)
            if f"{name}_norm.weight" in self.weights:  # Qwen 3
                made = self._normed(f"{name}_norm", made)
            return made.transpose(1, 2)

        query, key = heads("attn_q", facts.heads), heads("attn_k", facts.kv_heads)
        value = heads("attn_v", facts.kv_heads)
        cosine, sine = _rotation(facts, tokens)
        query, key = (_rotated(one, cosine, sine, halves=facts.rotates_halves) for one in (query, key))
        groups = facts.heads // facts.kv_heads
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self._linear("attn_output", mixed.transpose(1, 2).reshape(sequences, tokens, -1))


def _rotation(facts: ModelFacts, tokens: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the angles, shape (tokens, rope_size / 2)."""
    import torch  # noqa: PLC0415 - optional

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
    import torch  # noqa: PLC0415 - optional

    size = 2 * cosine.shape[-1]
    turned, rest = heads[..., :size], heads[..., size:]
    one, other = turned.chunk(2, -1) if halves else (turned[..., 0::2], turned[..., 1::2])
    both = (one * cosine - other * sine, one * sine + other * cosine)
    made = torch.cat(both, -1) if halves else torch.stack(both, -1).flatten(-2)
    return torch.cat((made, rest), -1)
