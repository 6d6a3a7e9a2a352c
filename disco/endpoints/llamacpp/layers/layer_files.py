"""The three files that a model is cut into: what each is for, what it is called, and which belong together."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from disco.endpoints.gguf_header import Header
from disco.endpoints.llamacpp.model.model_files import check_model_file
from disco.errors import ModelFileError

__all__ = ["KEY", "PARTS", "LayerFile", "Part", "cut_files", "head_file", "read_layer_file"]

Part = Literal["device", "cloud", "head"]
PARTS: Final[tuple[Part, ...]] = ("device", "cloud", "head")
KEY: Final = "disco.split."
"""What the names of disco's own metadata in a cut file begin with."""
_DEVICE: Final = ".device.gguf"
_HEAD: Final = ".head.gguf"


@dataclass(frozen=True, slots=True)
class LayerFile:
    """What a cut file says of itself.

    Attributes:
        path: the file.
        part: "device": the embedding, the first layers, the adapter, the output norm, the head and the vocabulary;
            "cloud": the layers behind them; "head": the output norm and the head alone.
        fingerprint: of the model that was cut; files belong together where it, `layers` and the model's sizes agree.
        layers: how many of the model's layers the device has.
        total_layers: how many the model has.
        weights: how many weights the model has; None where the file does not say.
        hidden: length of a state.
        vocabulary: fingerprint of the tokenizer; None in a file without one.
        has_adapter: whether the device's last layer was trained; otherwise it changes nothing.
        context_tokens: the longest context that the model was trained with.
    """

    path: Path
    part: Part
    fingerprint: str
    layers: int
    total_layers: int
    weights: int | None
    hidden: int
    vocabulary: str | None
    has_adapter: bool
    context_tokens: int


def cut_files(source: Path, folder: Path) -> dict[Part, Path]:
    """Return where the parts of a model are kept, by part."""
    return {part: folder / f"{source.stem}.{part}.gguf" for part in PARTS}


def read_layer_file(path: str | os.PathLike[str], part: Part) -> LayerFile:
    """Read what a cut file says of itself.

    Raises:
        ModelFileError: it is not a usable GGUF file, was not cut, or is another part.
    """
    path = Path(path).expanduser()
    header = check_model_file(path)
    found = header.metadata.get(f"{KEY}part")
    if found not in PARTS:
        raise ModelFileError(
            f"{path} is a whole model, or was not cut by disco. Cut it: disco split cut {path.name}"
        )
    if found != part:
        raise ModelFileError(f"{path} is the part {found!r} of a model, and the part {part!r} is needed.")
    try:
        return _described(path, part, header)
    except (KeyError, TypeError, ValueError):
        raise ModelFileError(f"{path} does not say how it was cut. Cut the model again.") from None


def head_file(device: LayerFile) -> Path:
    """Return the head's file beside the device's.

    Raises:
        ModelFileError: it is not there, not usable, or of another cut.
    """
    name = device.path.name
    if not name.endswith(_DEVICE):
        raise ModelFileError(
            f"{device.path} has another name than `disco split cut` gave it, so the head's file beside it cannot be "
            f"found. Name them NAME{_DEVICE} and NAME{_HEAD}."
        )
    path = device.path.with_name(name.removesuffix(_DEVICE) + _HEAD)
    head = read_layer_file(path, "head")
    if (head.fingerprint, head.layers) != (device.fingerprint, device.layers):
        raise ModelFileError(
            f"{path} and {device.path} were not cut from the same model, or not behind the same layer. Cut the model "
            "again: both files of one cut are needed."
        )
    return path


def _described(path: Path, part: Part, header: Header) -> LayerFile:
    known = header.metadata
    architecture = known["general.architecture"]
    numbers = [known[f"{KEY}layers"], known[f"{KEY}total_layers"], known[f"{architecture}.embedding_length"]]
    context = known[f"{architecture}.context_length"]
    if not all(type(one) is int and one > 0 for one in (*numbers, context)):
        raise ValueError
    layers, total_layers, hidden = numbers
    weights = known.get(f"{KEY}weights")
    return LayerFile(
        path=path,
        part=part,
        fingerprint=str(known[f"{KEY}fingerprint"]),
        layers=layers,  # type: ignore[arg-type]
        total_layers=total_layers,  # type: ignore[arg-type]
        weights=weights if type(weights) is int else None,
        hidden=hidden,  # type: ignore[arg-type]
        vocabulary=header.vocabulary if part == "device" else None,
        has_adapter=known.get(f"{KEY}adapter") is True,
        context_tokens=context,  # type: ignore[arg-type]
    )
