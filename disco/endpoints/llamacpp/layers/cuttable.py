"""Which GGUF files can be cut: those whose layers pass on a state and nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from disco.endpoints.llamacpp.layers.layer_files import KEY
from disco.errors import ConfigurationError, ModelFileError

__all__ = ["ARCHITECTURES", "HEAD", "LAYER", "SHARED", "check_cuttable", "number_in", "text_in"]

ARCHITECTURES: Final = ("llama", "qwen2", "qwen3")
"""Architectures whose layers only pass a state on. Others scale or mix in what is not in the state."""
LAYER: Final = re.compile(r"blk\.(\d+)\.(.+)")
HEAD: Final = frozenset({"output_norm.weight", "output.weight", "token_embd.weight"})
SHARED: Final = frozenset({"rope_freqs.weight"})
"""Tensors that every layer uses."""
# A file with one of these would compute other numbers from states than from tokens, or needs more than they hold.
_STRANGE: Final = ("expert_count", "embedding_scale", "residual_scale", "logit_scale", "nextn_predict_layers")
_ROTATION: Final = ("rope_factors_long.weight", "rope_factors_short.weight")


def check_cuttable(reader: Any, source: Path, layers: int) -> int:
    """Return how many layers a model has, if it can be cut there.

    Args:
        reader: gguf's reader of the file.
        source: the file, for messages.
        layers: how many layers the device would keep.

    Raises:
        ConfigurationError: the number of layers does not fit.
        ModelFileError: the model cannot be cut.
    """
    if text_in(reader, f"{KEY}part", ""):
        raise ModelFileError(f"{source} is a part of a model that was cut already. Cut the whole model.")
    if (pieces := _content(reader, "split.count")) and pieces > 1:
        raise ModelFileError(
            f"{source} is one of {pieces} pieces of a file. Join them first: "
            "llama-gguf-split --merge FIRST_PIECE WHOLE.gguf"
        )
    architecture = text_in(reader, "general.architecture")
    if architecture not in ARCHITECTURES:
        raise ModelFileError(
            f"{source} has the architecture {architecture!r}, which disco cannot cut: what its layers pass on may be "
            f"more than a state. Known to work: {', '.join(ARCHITECTURES)}."
        )
    for name in _STRANGE:
        if _content(reader, f"{architecture}.{name}") not in (None, 0, 1.0):
            raise ModelFileError(
                f"{source} has {architecture}.{name}, with which disco cannot cut a model of this architecture."
            )
    for field in reader.fields.values():
        if field.name.startswith(f"{architecture}.") and isinstance(field.contents(), list):
            raise ModelFileError(
                f"{source} has a {field.name} for each layer; disco cannot cut such a model."
            )
    total = number_in(reader, "block_count")
    _check_tensors({one.name: tuple(map(int, one.shape)) for one in reader.tensors}, source, total)
    if not 1 <= layers < total:
        raise ConfigurationError(
            f"The device can keep 1 to {total - 1} of the {total} layers of {source.name}, not {layers}."
        )
    return total


def _check_tensors(shapes: Mapping[str, tuple[int, ...]], source: Path, total: int) -> None:
    """Raise ModelFileError where a tensor is missing, or has no place in the parts."""
    if "token_embd.weight" not in shapes or "output_norm.weight" not in shapes:
        raise ModelFileError(f"{source} has no embedding or no output norm, so it is no whole model.")
    if rotation := sorted(shapes.keys() & set(_ROTATION)):
        raise ModelFileError(
            f"{source} has {rotation[0]}: its rotation depends on how long a context is, and the two sides may differ "
            "in that. disco cannot cut it."
        )
    by_layer: list[dict[str, tuple[int, ...]]] = [{} for _ in range(total)]
    for name, shape in shapes.items():
        found = LAYER.fullmatch(name)
        if found is not None and int(found[1]) < total:
            by_layer[int(found[1])][found[2]] = shape
        elif name not in HEAD | SHARED:
            raise ModelFileError(f"{source} has a tensor that disco does not know where to put: {name}.")
    for number, of_layer in enumerate(by_layer):
        if of_layer != by_layer[0]:
            raise ModelFileError(
                f"The tensors of layer {number} of {source} are not those of layer 0; disco cannot cut it."
            )


def number_in(reader: Any, name: str) -> int:
    """Return a whole number of the model's architecture.

    Raises:
        ModelFileError: it is missing, or differs by layer.
    """
    whole = f"{text_in(reader, 'general.architecture')}.{name}"
    value = _content(reader, whole)
    if not isinstance(value, int):
        raise ModelFileError(f"The model says nothing of its {whole}, or not for all layers alike.")
    return value


def text_in(reader: Any, name: str, usual: str | None = None) -> str:
    """Return a text of the model's metadata.

    Raises:
        ModelFileError: it is missing, and there is no usual one.
    """
    value = _content(reader, name)
    if value is None:
        value = usual
    if not isinstance(value, str):
        raise ModelFileError(f"The model says nothing of its {name}.")
    return value


def _content(reader: Any, name: str) -> Any:
    field = reader.get_field(name)
    return None if field is None else field.contents()
