"""What training must know of a model file: its sizes, and the weights that the adapter works between."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.layers.cuttable import check_cuttable
from disco.endpoints.llamacpp.model.gguf_files import require_gguf
from disco.endpoints.llamacpp.model.model_files import check_model_file
from disco.errors import ModelFileError

__all__ = ["ModelFacts", "read_facts"]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model's sizes and some of its weights, all as float32 numbers in the file's own layout.

    Attributes:
        path: the file.
        architecture: llama, qwen2 or qwen3.
        total_layers, hidden, heads, kv_heads, head_size: sizes.
        rope_base, rope_size: of the rotation of queries and keys.
        rope_factors: that divide its angles, shape (rope_size / 2,).
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
    rope_base: float
    rope_size: int
    rope_factors: npt.NDArray[np.float32] = field(repr=False)
    epsilon: float
    output_norm: npt.NDArray[np.float32] = field(repr=False)
    head: npt.NDArray[np.float32] = field(repr=False)
    layer: dict[str, npt.NDArray[np.float32]] = field(repr=False)

    @property
    def rotates_halves(self) -> bool:
        """Whether RoPE turns the first half of a head against the second (Qwen), or neighbours (llama)."""
        return self.architecture != "llama"


def read_facts(path: Path, layers: int) -> ModelFacts:
    """Read a model file.

    Args:
        path: a whole model, not cut.
        layers: how many of them the device keeps; the weights of the next one are read.

    Raises:
        ConfigurationError: the package `gguf` is missing, or the number of layers does not fit.
        ModelFileError: the file is not usable, or adapters for such a model cannot be trained.
    """
    gguf = require_gguf()
    check_model_file(path)
    reader = gguf.GGUFReader(path)
    total = check_cuttable(reader, path, layers)
    fields = {
        name: one.contents() for name, one in reader.fields.items() if not name.startswith("tokenizer.")
    }
    architecture = fields["general.architecture"]
    tensors = {one.name: one for one in reader.tensors}
    scaling = fields.get(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none":
        raise ModelFileError(
            f"{path} scales its rotation ({architecture}.rope.scaling.type is {scaling!r}), and disco cannot train an "
            "adapter for such a model. The pair works without one."
        )

    def number(name: str, usual: Any = None) -> Any:
        value = fields.get(f"{architecture}.{name}", usual)
        if not isinstance(value, int | float):
            raise ModelFileError(f"{path} does not say its {architecture}.{name}.")
        return value

    def weights(name: str) -> npt.NDArray[np.float32]:
        one = tensors[name]
        # A copy: torch takes no read-only memory.
        return np.array(gguf.quants.dequantize(one.data, one.tensor_type), np.float32)

    hidden, heads = number("embedding_length"), number("attention.head_count")
    head_size = number("attention.key_length", hidden // heads)
    rope_size = number("rope.dimension_count", head_size)
    prefix = f"blk.{layers}."
    return ModelFacts(
        path=path,
        architecture=architecture,
        total_layers=total,
        hidden=hidden,
        heads=heads,
        kv_heads=number("attention.head_count_kv", heads),
        head_size=head_size,
        rope_base=float(number("rope.freq_base", 10000.0)),
        rope_size=rope_size,
        rope_factors=weights("rope_freqs.weight")
        if "rope_freqs.weight" in tensors
        else np.ones(rope_size // 2, np.float32),
        epsilon=float(number("attention.layer_norm_rms_epsilon")),
        output_norm=weights("output_norm.weight"),
        head=weights("output.weight" if "output.weight" in tensors else "token_embd.weight"),
        layer={name.removeprefix(prefix): weights(name) for name in tensors if name.startswith(prefix)},
    )
