"""Files that are loaded beside a model: LoRA adapters, which change its weights, and a projector, which lets it see."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from disco.endpoints.gguf_header import GgufError, Header, read_header
from disco.endpoints.llamacpp.model.model_files import locate
from disco.endpoints.runtimes import LoraChoice
from disco.errors import ConfigurationError, ModelFileError

__all__ = ["Lora", "find_lora", "find_projector", "loras_named", "loras_of", "marks_of", "named_file"]

_TO_GGUF: Final = "llama.cpp's convert_lora_to_gguf.py makes one of a PEFT adapter"


class Lora(NamedTuple):
    """A LoRA adapter.

    Attributes:
        file: its GGUF file: a path, or "hf:owner/repo/file.gguf".
        scale: how much of it is added to the weights; 1: all, 0: nothing.
    """

    file: str
    scale: float = 1.0


def loras_of(given: LoraChoice | Sequence[LoraChoice]) -> tuple[Lora, ...]:
    """Return the adapters that a user names; no file is read.

    Raises:
        ConfigurationError: an item is neither a file nor a file with its scale.
    """
    items = (given,) if isinstance(given, str | os.PathLike) else given
    return tuple(_lora(item) for item in items)


def loras_named(texts: Sequence[str]) -> tuple[Lora, ...]:
    """Return the adapters that a command line or a settings file names: "adapter.gguf", or "adapter.gguf:0.5"."""
    return tuple(_lora_named(text) for text in texts)


def _lora_named(text: str) -> Lora:
    file, _, scale = text.rpartition(":")
    try:
        return _lora((file, float(scale)))
    except ValueError:  # what follows the colon is part of a path, or there is none
        return _lora(text)


def _lora(item: object) -> Lora:
    file, scale = item if isinstance(item, tuple | list) and len(item) == 2 else (item, 1.0)
    is_number = isinstance(scale, int | float) and not isinstance(scale, bool) and math.isfinite(scale)
    if not isinstance(file, str | os.PathLike) or not os.fspath(file) or not is_number:
        raise ConfigurationError(
            f"lora contains {item!r}. Give a list of files, or of pairs of a file and its scale: "
            'lora=["adapter.gguf"], or lora=[("adapter.gguf", 0.5)].'
        )
    return Lora(named_file(file), float(scale))


def named_file(file: str | os.PathLike[str]) -> str:
    """Return how the rest of this module calls a file that a user names."""
    text = os.fspath(file)
    return text if text.startswith("hf:") else str(Path(text).expanduser())


def marks_of(loras: Sequence[Lora], mmproj: str | os.PathLike[str] | None = None) -> str:
    """Return what is added to a model's name for these files: nothing where there are none."""
    scales = {lora: "" if lora.scale == 1.0 else f":{lora.scale:g}" for lora in loras}
    marks = [f"+{Path(lora.file).stem}{scales[lora]}" for lora in loras]
    return "".join(marks) + ("" if mmproj is None else f"+{Path(mmproj).stem}")


def find_lora(lora: Lora, model: Header) -> Path:
    """Return the path of an adapter's file, downloaded if need be, whose header fits the model's.

    Whether its tensors fit is known only when it is loaded.

    Raises:
        ModelFileError: the file is missing, is no whole GGUF file, holds no LoRA adapter, or one for another kind of
            model.
    """
    path, header = _found(lora.file, "LoRA")
    kind = header.metadata.get("general.type"), header.metadata.get("adapter.type")
    if kind != ("adapter", "lora"):
        raise ModelFileError(
            f"{path} is not a LoRA adapter (general.type is {kind[0]!r}). Name a GGUF file that holds one "
            f"({_TO_GGUF}), or leave lora out."
        )
    its, own = (one.metadata.get("general.architecture") for one in (header, model))
    if its != own:
        raise ModelFileError(
            f"The LoRA adapter {path} is for a model of the architecture {its!r}, and this one is {own!r}. Name an "
            "adapter that was trained on this model, or leave lora out."
        )
    return path


def find_projector(file: str | os.PathLike[str]) -> Path:
    """Return the path of a projector's file, downloaded if need be.

    Raises:
        ModelFileError: the file is missing, is no whole GGUF file, or holds no projector.
    """
    path, header = _found(file, "mmproj")
    if header.metadata.get("general.architecture") != "clip":
        raise ModelFileError(
            f"{path} is not a multimodal projector. Name the mmproj file that is published beside the model, or leave "
            "mmproj out."
        )
    return path


def _found(file: str | os.PathLike[str], what: str) -> tuple[Path, Header]:
    path = locate(file) if os.fspath(file).startswith("hf:") else Path(file).expanduser()
    if not path.is_file():
        raise ModelFileError(f"There is no {what} file {path}. Check the path, or leave {what.lower()} out.")
    try:
        return path, read_header(path)
    except GgufError as exc:
        raise ModelFileError(
            f"The {what} file {path} is not a usable GGUF file: {exc}. Download it again, or leave {what.lower()} out."
        ) from exc
    except OSError as exc:
        raise ModelFileError(f"{path} cannot be read ({exc.strerror or type(exc).__name__}).") from exc
