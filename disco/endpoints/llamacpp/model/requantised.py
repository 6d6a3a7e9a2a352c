"""The same model with other numbers of bits in a weight, made from a GGUF file."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any, Final

import numpy as np

from disco.endpoints.llamacpp.model.gguf_files import metadata_entries, require_gguf
from disco.endpoints.llamacpp.model.library import FoundLibrary, find_library, load_library
from disco.endpoints.llamacpp.model.model_files import check_model_file
from disco.errors import ConfigurationError, LocalModelError, nearest

__all__ = ["requantised"]

_MOSTLY: Final = "MOSTLY_"
_ALL_F32: Final = "ALL_F32"
_EVEN: Final = ("F32", "F16", "BF16", "Q8_0")
"""Types that all matrices of a model take alike, so that the package gguf can write them. Of the others llama.cpp has a
mixture for each kind of model."""


def requantised(source: Path, kind: str, folder: Path) -> Path:
    """Return the file of a model in another quantisation, which is made once and kept.

    The weights of `source` are read as they are: a type with more bits than `source` has adds no accuracy. F32, F16,
    BF16 and Q8_0 are written by the package gguf: of a dense model the bytes that llama.cpp would write. The others are
    written by llama.cpp; there, where a tensor's rows do not fit the blocks of a type, that tensor takes another type.

    Args:
        source: a GGUF file.
        kind: llama.cpp's name of the type, such as "Q2_K", "Q8_0", "F16" or "F32"; upper or lower case.
        folder: where the file is kept; made if it does not exist.

    Raises:
        ConfigurationError: `gguf` is not installed, there is no such type, it needs llama-cpp-python, which is not
            installed, or the folder cannot be written.
        ModelFileError: `source` is not a usable GGUF file.
        LocalModelError: llama.cpp failed.
    """
    gguf = require_gguf()
    check_model_file(source)
    types = {
        one.name.removeprefix(_MOSTLY): one for one in gguf.LlamaFileType if one.name.startswith(_MOSTLY)
    }
    types["F32"] = gguf.LlamaFileType[_ALL_F32]
    kind = kind.upper()
    if kind not in types:
        raise ConfigurationError(f"llama.cpp has no quantisation {kind!r}. {nearest(kind, types)}")
    by = "" if kind in _EVEN else f"-{_quantiser(kind)}"
    # The size tells two files of one name apart.
    made = folder / f"{source.stem}-{source.stat().st_size}-{kind.lower()}{by}.gguf"
    if made.exists():
        return made
    draft = made.with_suffix(f".{os.getpid()}.part")  # two commands may make it at once
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft.touch()
    except OSError as broken:
        raise ConfigurationError(f"{folder} cannot be written: {broken.strerror or broken}") from broken
    try:
        if by:
            _by_llama_cpp(source, draft, kind, types[kind])
        else:
            _by_gguf(gguf, source, draft, kind, types[kind])
        draft.replace(made)
    finally:
        draft.unlink(missing_ok=True)
    return made


def _quantiser(kind: str) -> str:
    """Return the version of llama-cpp-python, which has llama.cpp's quantiser."""
    found = find_library()
    if not isinstance(found, FoundLibrary) or found.path is not None:
        raise ConfigurationError(
            f"Without a compiler models can be written as {', '.join(_EVEN)}. {kind} needs llama-cpp-python: "
            "pip install llama-cpp-python (compiles llama.cpp, which takes minutes)"
        )
    return found.version


def _by_gguf(gguf: Any, source: Path, target: Path, kind: str, file_type: int) -> None:
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, bytes(reader.fields["general.architecture"].parts[-1]).decode())
    for name, content, kind_of, of_items in metadata_entries(gguf, reader):
        mine = int(file_type) if name == "general.file_type" else content
        writer.add_key_value(name, mine, kind_of, sub_type=of_items)
    wanted = gguf.GGMLQuantizationType[kind]
    rows_of = gguf.GGML_QUANT_SIZES[wanted][0]

    def as_wanted(one: Any) -> bool:
        return len(one.shape) > 1 and int(one.shape[0]) % rows_of == 0

    def data_of(one: Any) -> Any:
        numbers = gguf.dequantize(one.data, one.tensor_type)
        return gguf.quantize(numbers, wanted) if as_wanted(one) else numbers.astype(np.float32)

    try:
        for one in reader.tensors:  # their sizes come first in the file
            itself = wanted if as_wanted(one) else gguf.GGMLQuantizationType.F32
            shape = [int(length) for length in reversed(one.shape)]
            block, size = gguf.GGML_QUANT_SIZES[itself]
            writer.add_tensor_info(
                one.name, shape, np.dtype(np.float32), one.n_elements // block * size, itself
            )
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for one in reader.tensors:
            writer.write_tensor_data(data_of(one))
    finally:
        writer.close()


def _by_llama_cpp(source: Path, target: Path, kind: str, file_type: int) -> None:
    library = load_library()
    settings = library.llama_model_quantize_default_params()
    settings.ftype, settings.allow_requantize = int(file_type), True
    code = library.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(settings))
    if code != 0:
        raise LocalModelError(f"llama.cpp could not write {source.name} as {kind} (it returned {code}).")
