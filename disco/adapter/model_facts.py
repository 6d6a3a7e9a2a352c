"""What training must know of a model file: its sizes, and the weights that the adapter works between."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.layers.cut import require_gguf
from disco.endpoints.llamacpp.layers.cuttable import ARCHITECTURES
from disco.endpoints.llamacpp.model.model_files import check_model_file
from disco.errors import ConfigurationError, ModelFileError

__all__ = ["ModelFacts", "read_facts"]

_ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model's sizes and some of its weights, all as float32 numbers in the file's own layout.

    Attributes:
        path: the file.
        architecture: llama, qwen2 or qwen3.
        total_layers, hidden, heads, kv_heads, head_size, feed_forward: sizes.
        rope_base, rope_size: of the rotation of queries and keys.
        epsilon: of all norms.
        output_norm: shape (hidden,).
        head: shape (vocabulary, hidden).
        layer: the tensors of one of the model's own layers by their names without `blk.N.`, shapes (outputs, inputs).
    """

    path: Path
    architecture: str
    total_layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    rope_base: float
    rope_size: int
    epsilon: float
    output_norm: npt.NDArray[np.float32] = field(repr=False)
    head: npt.NDArray[np.float32] = field(repr=False)
    layer: dict[str, npt.NDArray[np.float32]] = field(repr=False)

    @property
    def rotates_halves(self) -> bool:
        """Whether RoPE turns the first half of a head against the second (Qwen), or neighbours (llama)."""
        return self.architecture != "llama"


def read_facts(path: Path, layer: int) -> ModelFacts:
    """Read a model file.

    Args:
        path: a whole model, not cut.
        layer: whose tensors are read.

    Raises:
        ConfigurationError: the package `gguf` is missing, or the model has no such layer.
        ModelFileError: the file is not usable, or adapters for such a model cannot be trained.
    """
    gguf = require_gguf()
    check_model_file(path)
    reader = gguf.GGUFReader(path)
    fields = {
        name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.")
    }
    architecture = fields.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise ModelFileError(
            f"{path} has the architecture {architecture!r}, for which disco cannot train an adapter. "
            f"Known to work: {', '.join(ARCHITECTURES)}."
        )
    tensors = {one.name: one for one in reader.tensors}
    if found := sorted(tensors.keys() & set(_ROPE_TENSORS)) or [
        name for name in (f"{architecture}.rope.scaling.type",) if fields.get(name, "none") != "none"
    ]:
        raise ModelFileError(
            f"{path} has {found[0]}: disco cannot train an adapter with such a rotation yet."
        )

    def number(name: str, usual: Any = None) -> Any:
        value = fields.get(f"{architecture}.{name}", usual)
        if not isinstance(value, int | float):
            raise ModelFileError(f"{path} does not say its {architecture}.{name}, or it differs by layer.")
        return value

    def weights(name: str) -> npt.NDArray[np.float32]:
        one = tensors.get(name)
        if one is None:
            raise ModelFileError(f"{path} has no tensor {name}, so it is no whole model.")
        # A copy: torch takes no read-only memory.
        return np.array(gguf.quants.dequantize(one.data, one.tensor_type), np.float32)

    total, hidden, heads = number("block_count"), number("embedding_length"), number("attention.head_count")
    if not 0 <= layer < total:
        raise ConfigurationError(f"{path.name} has layers 0 to {total - 1}, and no layer {layer}.")
    head_size = number("attention.key_length", hidden // heads)
    prefix = f"blk.{layer}."
    return ModelFacts(
        path=path,
        architecture=architecture,
        total_layers=total,
        hidden=hidden,
        heads=heads,
        kv_heads=number("attention.head_count_kv", heads),
        head_size=head_size,
        feed_forward=number("feed_forward_length"),
        rope_base=float(number("rope.freq_base", 10000.0)),
        rope_size=number("rope.dimension_count", head_size),
        epsilon=float(number("attention.layer_norm_rms_epsilon")),
        output_norm=weights("output_norm.weight"),
        head=weights("output.weight" if "output.weight" in tensors else "token_embd.weight"),
        layer={name.removeprefix(prefix): weights(name) for name in tensors if name.startswith(prefix)},
    )
