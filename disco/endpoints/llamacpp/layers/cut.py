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

import contextlib
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.batching.model_fingerprint import model_fingerprint
from disco.endpoints.llamacpp.layers.cuttable import (
    HEAD,
    LAYER,
    SHARED,
    check_cuttable,
    number_in,
    text_in,
)
from disco.endpoints.llamacpp.layers.layer_files import KEY, Part, cut_files, read_layer_file
from disco.endpoints.llamacpp.model.gguf_files import metadata_entries, require_gguf
from disco.endpoints.llamacpp.model.model_files import check_model_file
from disco.errors import ConfigurationError, DiscoError, ModelFileError

__all__ = ["cut_model"]

_COPIED: Final = 2**24  # bytes of a tensor between two reports of progress


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor to write: its name, gguf's type, and its data as gguf's reader gives them."""

    name: str
    kind: Any
    data: npt.NDArray[Any]


def cut_model(
    source: Path,
    layers: int,
    folder: Path,
    *,
    adapter: Mapping[str, npt.NDArray[np.float32]] | None = None,
    progress: Callable[[int, int], None] | None = None,
    check: Callable[[Mapping[Part, Path]], None] | None = None,
) -> dict[Part, Path]:
    """Cut a model, and return the files by part. Files of the same name are replaced once all are written and checked.

    Args:
        source: a GGUF file in one piece.
        layers: how many layers the device keeps.
        folder: where the files are written; made if it does not exist.
        adapter: the trained layer: its tensors by llama.cpp's names without `blk.N.`, each in the shape in which
            gguf's reader gives it (outputs, inputs); those that are missing are zeros. None: all are.
        progress: called with the bytes written, and all.
        check: called with the new files while they still have other names. Where it raises an error, they are removed,
            and older files stay.

    Raises:
        ConfigurationError: `gguf` is not installed, the number of layers does not fit, or the folder cannot be written.
        ModelFileError: the file is not usable, or its architecture cannot be cut.
    """
    gguf = require_gguf()
    check_model_file(source)
    try:
        reader = gguf.GGUFReader(source)
        total = check_cuttable(reader, source, layers)
    except (ValueError, KeyError, IndexError) as broken:
        if isinstance(broken, DiscoError):
            raise
        raise ModelFileError(
            f"The package gguf cannot read {source} ({type(broken).__name__}); a newer one may: "
            "pip install --upgrade gguf"
        ) from broken
    named = {
        "fingerprint": model_fingerprint(source, None),
        "layers": layers,
        "total_layers": total,
        "weights": sum(int(np.prod(one.shape)) for one in reader.tensors),
    }
    tensors = {one.name: one for one in reader.tensors}
    parts: dict[Part, list[_Tensor]] = {
        "device": list(_device(gguf, tensors, layers, adapter or {})),
        "cloud": list(_cloud(gguf, tensors, layers, total, number_in(reader, "embedding_length"))),
        "head": list(_head(gguf, tensors)),
    }
    all_bytes = sum(one.data.nbytes for several in parts.values() for one in several)
    written = 0

    def told(count: int) -> None:
        nonlocal written
        written += count
        if progress is not None:
            progress(written, all_bytes)

    files, mark = cut_files(source, folder), secrets.token_hex(4)  # two commands may cut it at once
    drafts = {part: file.with_suffix(f".{mark}.part") for part, file in files.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(folder).free) < all_bytes:
            raise ConfigurationError(
                f"The parts of {source.name} need {all_bytes / 1e6:,.0f} MB, and {folder} has room for "
                f"{free / 1e6:,.0f} MB. Make room, or name another folder."
            )
        for part, draft in drafts.items():
            of_part = {**named, "part": part}
            if part == "device":
                of_part["adapter"] = bool(adapter)
            _write(gguf, reader, draft, part, parts[part], of_part, told)
        if check is not None:
            check(drafts)
        for part, draft in drafts.items():
            draft.replace(files[part])
        _check_together(files, layers)
    except OSError as broken:
        raise ConfigurationError(f"{folder} cannot be written: {broken.strerror or broken}") from broken
    finally:
        for draft in drafts.values():
            with contextlib.suppress(OSError):
                draft.unlink()
    return files


def _check_together(files: Mapping[Part, Path], layers: int) -> None:
    """Raise ConfigurationError where another command has put files of another cut among these."""
    found = {read_layer_file(file, part).layers for part, file in files.items()}
    if found != {layers}:
        raise ConfigurationError(
            f"Another command was cutting into {next(iter(files.values())).parent} at the same time, and the files are "
            "mixed. Cut again, or into another folder."
        )


def _device(
    gguf: Any, tensors: Mapping[str, Any], layers: int, adapter: Mapping[str, npt.NDArray[np.float32]]
) -> Iterator[_Tensor]:
    for name, one in tensors.items():
        if name in HEAD | SHARED or int(LAYER.fullmatch(name)[1]) < layers:  # type: ignore[index] # checked
            yield _Tensor(name, one.tensor_type, one.data)
    shapes = {rest: one for number, rest, one in _layers(tensors) if number == 0}
    if unknown := sorted(set(adapter) - set(shapes)):
        raise ModelFileError(f"The adapter has a tensor {unknown[0]!r} that no layer of this model has.")
    for rest, one in shapes.items():
        name, given = f"blk.{layers}.{rest}", adapter.get(rest)
        if given is None:
            yield _Tensor(name, one.tensor_type, np.zeros_like(one.data))
            continue
        if given.shape != tuple(int(count) for count in reversed(one.shape)):
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
        if (found := LAYER.fullmatch(name)) is not None:
            yield int(found[1]), found[2], one


def _shared(tensors: Mapping[str, Any]) -> Iterator[_Tensor]:
    for name in sorted(SHARED & tensors.keys()):
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
    architecture = text_in(reader, "general.architecture")
    writer = gguf.GGUFWriter(path, architecture)
    blocks = {"device": named["layers"] + 1, "cloud": named["total_layers"] - named["layers"], "head": 1}
    changed = {
        f"{architecture}.block_count": blocks[part],
        "general.name": f"{text_in(reader, 'general.name', 'a model')} ({part})",
    }
    if part != "device":  # without a vocabulary llama.cpp asks for its size
        (embedding,) = (one for one in tensors if one.name == "token_embd.weight")
        changed[f"{architecture}.vocab_size"] = len(embedding.data)
    for name, content, kind, of_items in metadata_entries(gguf, reader):
        if part == "device" or not name.startswith("tokenizer."):
            writer.add_key_value(name, changed.pop(name, content), kind, sub_type=of_items)
    for name, value in changed.items():
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(name, value)
    if part != "device":
        writer.add_tokenizer_model("no_vocab")
    for name, value in named.items():
        kinds_of = {bool: writer.add_bool, int: writer.add_uint64, str: writer.add_string}
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
