"""Cuts a GGUF file into the three of a split model, weight by weight: nothing is computed, and nothing rounded.

device: embedding, first layers, a layer for the adapter, output norm, head, vocabulary.
cloud:  the other layers. It holds neither vocabulary nor head; its output norm is there because llama.cpp wants one.
head:   output norm and head behind a layer that changes nothing, because llama.cpp wants at least one.

States go up and down as they are behind a layer, before any norm. (A norm in the cloud would be harmless in theory,
because the head's norm takes the scale away anyway. But it changes last bits, and quantised matrices make more of them:
up to 0.03 in a logit of SmolLM2-135M.)

The adapter's layer is all zeros until it is trained: attention and feed-forward then add nothing to what passes. It is
there even so, because llama.cpp computes the last layer of a file for the rows with logits only, and the states of all
rows are needed from the layer before it.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.batching.model_fingerprint import model_fingerprint
from disco.endpoints.llamacpp.layers.layer_files import KEY, Part, cut_files
from disco.endpoints.llamacpp.model.model_files import check_model_file
from disco.errors import ConfigurationError, ModelFileError

__all__ = ["ARCHITECTURES", "cut_model", "require_gguf"]

ARCHITECTURES: Final = ("llama", "qwen2", "qwen3")
"""Architectures whose layers only pass a state on. Others scale or mix in what is not in the state."""
_LAYER: Final = re.compile(r"blk\.(\d+)\.(.+)")
_HEAD: Final = frozenset({"output_norm.weight", "output.weight", "token_embd.weight"})
_SHARED: Final = frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})
# A file with one of these would compute other numbers from states than from tokens, or needs more than they hold.
_STRANGE: Final = ("expert_count", "embedding_scale", "residual_scale", "logit_scale")
_COPIED: Final = 2**24  # bytes of a tensor between two reports of progress


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor to write: its name, gguf's type, and its data as gguf's reader gives them."""

    name: str
    kind: Any
    data: npt.NDArray[Any]


def require_gguf() -> Any:
    """Import and return the package `gguf`.

    Raises:
        ConfigurationError: it is not installed.
    """
    if importlib.util.find_spec("gguf") is None:
        raise ConfigurationError(
            'Cutting a model needs the packages of the extra "split": pip install "disco-llm[split]"'
        )
    import gguf  # noqa: PLC0415 - optional

    return gguf


def cut_model(
    source: Path,
    layers: int,
    folder: Path,
    *,
    adapter: Mapping[str, npt.NDArray[np.float32]] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[Part, Path]:
    """Cut a model, and return the files by part. Files of the same name are replaced once all are written.

    Args:
        source: a GGUF file in one piece.
        layers: how many layers the device keeps.
        folder: where the files are written; made if it does not exist.
        adapter: the trained layer: its tensors by llama.cpp's names without `blk.N.`, each in the shape in which
            gguf's reader gives it (outputs, inputs); those that are missing are zeros. None: all are.
        progress: called with the bytes written, and all.

    Raises:
        ConfigurationError: `gguf` is not installed, the number of layers does not fit, or the folder cannot be written.
        ModelFileError: the file is not usable, or its architecture cannot be cut.
    """
    gguf = require_gguf()
    check_model_file(source)
    reader = gguf.GGUFReader(source)
    total = _checked(reader, source, layers)
    named = {
        "fingerprint": model_fingerprint(source, None),
        "layers": layers,
        "total_layers": total,
    }
    tensors = {one.name: one for one in reader.tensors}
    parts: dict[Part, list[_Tensor]] = {
        "device": list(_device(gguf, tensors, layers, adapter or {})),
        "cloud": list(_cloud(gguf, tensors, layers, total, _number(reader, "embedding_length"))),
        "head": list(_head(gguf, tensors)),
    }
    files = cut_files(source, folder)
    all_bytes = sum(one.data.nbytes for several in parts.values() for one in several)
    written = 0

    def told(count: int) -> None:
        nonlocal written
        written += count
        if progress is not None:
            progress(written, all_bytes)

    drafts: dict[Part, Path] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for part, file in files.items():
            drafts[part] = file.with_suffix(f".{os.getpid()}.part")
            of_part = {**named, "part": part}
            if part == "device":
                of_part["adapter"] = bool(adapter)
            _write(gguf, reader, drafts[part], part, parts[part], of_part, told)
        for part, draft in drafts.items():
            draft.replace(files[part])
    except OSError as broken:
        raise ConfigurationError(f"{folder} cannot be written: {broken.strerror or broken}") from broken
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)
    return files


def _checked(reader: Any, source: Path, layers: int) -> int:
    """Return how many layers a model has, if it can be cut there."""
    architecture = _text(reader, "general.architecture")
    if architecture not in ARCHITECTURES:
        raise ModelFileError(
            f"{source} has the architecture {architecture!r}, which disco cannot cut: what its layers pass on may be "
            f"more than a state. Known to work: {', '.join(ARCHITECTURES)}."
        )
    for name in _STRANGE:
        if _number(reader, name, 0) or (
            (field := reader.get_field(f"{architecture}.{name}")) and field.contents()
        ):
            raise ModelFileError(
                f"{source} has {architecture}.{name}, with which disco cannot cut a model of this architecture."
            )
    known = {one.name for one in reader.tensors}
    if strange := sorted(
        name for name in known if not _LAYER.fullmatch(name) and name not in _HEAD | _SHARED
    ):
        raise ModelFileError(f"{source} has tensors that disco does not know where to put: {strange[0]}.")
    if "token_embd.weight" not in known or "output_norm.weight" not in known:
        raise ModelFileError(f"{source} has no embedding or no output norm, so it is no whole model.")
    total = _number(reader, "block_count")
    if _text(reader, f"{KEY}part", ""):
        raise ModelFileError(f"{source} is a part of a model that was cut already. Cut the whole model.")
    if not 1 <= layers < total:
        raise ConfigurationError(
            f"The device can keep 1 to {total - 1} of the {total} layers of {source.name}, not {layers}."
        )
    return total


def _device(
    gguf: Any, tensors: Mapping[str, Any], layers: int, adapter: Mapping[str, npt.NDArray[np.float32]]
) -> Iterator[_Tensor]:
    for name, one in tensors.items():
        if name in _HEAD | _SHARED or int(_LAYER.fullmatch(name)[1]) < layers:  # type: ignore[index] # checked
            yield _Tensor(name, one.tensor_type, one.data)
    shapes = {rest: one for number, rest, one in _layers(tensors) if number == 0}
    if unknown := sorted(set(adapter) - set(shapes)):
        raise ModelFileError(f"The adapter has a tensor {unknown[0]!r} that no layer of this model has.")
    for rest, one in shapes.items():
        name, given = f"blk.{layers}.{rest}", adapter.get(rest)
        if given is None:
            yield _Tensor(name, one.tensor_type, np.zeros_like(one.data))
            continue
        if given.size != int(np.prod(one.shape)):
            raise ModelFileError(f"The adapter's tensor {rest!r} has another shape than the model's layers.")
        is_norm = given.ndim == 1
        kind = gguf.GGMLQuantizationType.F32 if is_norm else gguf.GGMLQuantizationType.F16
        yield _Tensor(name, kind, given.astype(np.float32 if is_norm else np.float16))


def _cloud(gguf: Any, tensors: Mapping[str, Any], layers: int, total: int, hidden: int) -> Iterator[_Tensor]:
    f32 = gguf.GGMLQuantizationType.F32
    yield _Tensor("token_embd.weight", f32, np.zeros((1, hidden), np.float32))  # llama.cpp wants one
    yield _Tensor("output_norm.weight", f32, np.ones(hidden, np.float32))
    for number, rest, one in _layers(tensors):
        if layers <= number < total:
            yield _Tensor(f"blk.{number - layers}.{rest}", one.tensor_type, one.data)
    yield from _shared(tensors)


def _head(gguf: Any, tensors: Mapping[str, Any]) -> Iterator[_Tensor]:
    del gguf
    # A model without a head of its own reuses its embedding, and so does this file: its embedding is the head.
    matrix = tensors.get("output.weight", tensors["token_embd.weight"])
    yield _Tensor("token_embd.weight", matrix.tensor_type, matrix.data)
    yield _Tensor(
        "output_norm.weight", tensors["output_norm.weight"].tensor_type, tensors["output_norm.weight"].data
    )
    for number, rest, one in _layers(tensors):
        if number == 0:
            yield _Tensor(f"blk.0.{rest}", one.tensor_type, np.zeros_like(one.data))
    yield from _shared(tensors)


def _layers(tensors: Mapping[str, Any]) -> Iterator[tuple[int, str, Any]]:
    """Yield the number, the rest of the name and the tensor of all tensors of layers."""
    for name, one in tensors.items():
        if (found := _LAYER.fullmatch(name)) is not None:
            yield int(found[1]), found[2], one


def _shared(tensors: Mapping[str, Any]) -> Iterator[_Tensor]:
    for name in sorted(_SHARED & tensors.keys()):
        yield _Tensor(name, tensors[name].tensor_type, tensors[name].data)


def _write(
    gguf: Any,
    reader: Any,
    path: Path,
    part: Part,
    tensors: list[_Tensor],
    named: Mapping[str, Any],
    told: Callable[[int], None],
) -> None:
    architecture = _text(reader, "general.architecture")
    writer = gguf.GGUFWriter(path, architecture)
    blocks = {"device": named["layers"] + 1, "cloud": named["total_layers"] - named["layers"], "head": 1}
    changed = {
        f"{architecture}.block_count": blocks[part],
        "general.name": f"{_text(reader, 'general.name', 'a model')} ({part})",
    }
    if part == "cloud":
        changed[f"{architecture}.vocab_size"] = 1
    for field in reader.fields.values():
        name, kinds = field.name, field.types
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        if part != "device" and name.startswith("tokenizer."):
            continue
        of_items = kinds[-1] if kinds[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, changed.pop(name, field.contents()), kinds[0], sub_type=of_items)
    for name, value in changed.items():
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(name, value)
    if part != "device":
        writer.add_tokenizer_model("no_vocab")
    for name, value in named.items():
        kinds_of = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}
        kinds_of[type(value)](f"{KEY}{name}", value)
    for one in tensors:
        writer.add_tensor_info(one.name, one.data.shape, one.data.dtype, one.data.nbytes, one.kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        since = 0
        for one in tensors:
            writer.write_tensor_data(one.data)
            since += one.data.nbytes
            if since >= _COPIED or one is tensors[-1]:
                told(since)
                since = 0
    finally:
        writer.close()


def _number(reader: Any, name: str, usual: int | None = None) -> int:
    """Return a whole number of the model's architecture.

    Raises:
        ModelFileError: it is missing, or differs by layer.
    """
    whole = f"{_text(reader, 'general.architecture')}.{name}"
    field = reader.get_field(whole)
    value = usual if field is None else field.contents()
    if isinstance(value, list):
        raise ModelFileError(f"The model's {whole} differs by layer, and disco cannot cut such a model.")
    if not isinstance(value, int):
        raise ModelFileError(f"The model says nothing of its {whole}.")
    return value


def _text(reader: Any, name: str, usual: str | None = None) -> str:
    field = reader.get_field(name)
    value = usual if field is None else field.contents()
    if not isinstance(value, str):
        raise ModelFileError(f"The model says nothing of its {name}.")
    return value
