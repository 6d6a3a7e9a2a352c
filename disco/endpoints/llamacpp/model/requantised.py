"""The same model with fewer bits in a weight, made by llama.cpp's own function from a GGUF file."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from pathlib import Path

from disco.endpoints.llamacpp.model.model_files import check_model_file, require_llama_cpp
from disco.endpoints.llamacpp.model.native import load_library
from disco.errors import ConfigurationError, LocalModelError, nearest

__all__ = ["requantised"]

_TYPE = "LLAMA_FTYPE_MOSTLY_"
_ALL_F32 = "LLAMA_FTYPE_ALL_F32"


def requantised(source: Path, kind: str, folder: Path) -> Path:
    """Return the file of a model in another quantisation, which is made once and kept.

    llama.cpp reads the weights of `source` as they are: a type with more bits than `source` has adds no accuracy. Where
    a tensor's rows do not fit the blocks of a type, llama.cpp takes another type for that tensor.

    Args:
        source: a GGUF file.
        kind: llama.cpp's name of the type, such as "Q2_K", "Q8_0", "F16" or "F32"; upper or lower case.
        folder: where the file is kept; made if it does not exist.

    Raises:
        ConfigurationError: llama-cpp-python is not installed, there is no such type, or the folder cannot be written.
        ModelFileError: `source` is not a usable GGUF file.
        LocalModelError: llama.cpp failed.
    """
    require_llama_cpp()
    check_model_file(source)
    library = load_library()
    kinds = {name.removeprefix(_TYPE): name for name in dir(library) if name.startswith(_TYPE)}
    kinds["F32"] = _ALL_F32
    kind = kind.upper()
    if kind not in kinds:
        raise ConfigurationError(f"llama.cpp has no quantisation {kind!r}. {nearest(kind, kinds)}")
    version = importlib.metadata.version("llama-cpp-python")
    # The size tells two files of one name apart.
    made = folder / f"{source.stem}-{source.stat().st_size}-{kind.lower()}-{version}.gguf"
    if made.exists():
        return made
    draft = made.with_suffix(f".{os.getpid()}.part")  # two commands may make it at once
    settings = library.llama_model_quantize_default_params()
    settings.ftype, settings.allow_requantize = getattr(library, kinds[kind]), True
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft.touch()
    except OSError as broken:
        raise ConfigurationError(f"{folder} cannot be written: {broken.strerror or broken}") from broken
    try:
        code = library.llama_model_quantize(os.fsencode(source), os.fsencode(draft), ctypes.byref(settings))
        if code != 0:
            raise LocalModelError(f"llama.cpp could not write {source.name} as {kind} (it returned {code}).")
        draft.replace(made)
    finally:
        draft.unlink(missing_ok=True)
    return made
