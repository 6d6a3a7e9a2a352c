"""Which model a server has: a short name for all that decides which tokens come."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from disco.endpoints.llamacpp.model.added_files import Lora
from disco.endpoints.llamacpp.model.model_files import locate
from disco.errors import DiscoError

__all__ = ["model_fingerprint", "named_fingerprint"]

_PIECES: Final = 64
_PIECE: Final = 4096
_HEAD: Final = 65_536  # of a GGUF: its metadata begin here


def model_fingerprint(
    path: str | os.PathLike[str],
    chat_template: str | None,
    loras: Sequence[Lora] = (),
    mmproj: str | os.PathLike[str] | None = None,
) -> str:
    """Return a fingerprint of a model file and what is beside it: 32 hexadecimal digits.

    The file is not read in whole: its size, its beginning, and 64 pieces that are spread over it. A model that was
    trained further or quantised otherwise differs in nearly every piece.

    Args:
        path: the model's file.
        chat_template: the one in place of the file's own.
        loras: adapters; their files are read in the same way.
        mmproj: a projector's file.

    Raises:
        OSError: the file cannot be read.
    """
    found = hashlib.sha256((chat_template or "").encode())
    with Path(path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        found.update(b"%d" % size)
        file.seek(0)
        found.update(file.read(_HEAD))
        for piece in range(_PIECES):
            file.seek(size * piece // _PIECES)
            found.update(file.read(_PIECE))
    for lora in loras:
        found.update(f"lora {lora.scale!r} {model_fingerprint(lora.file, None)}".encode())
    if mmproj is not None:
        found.update(f"mmproj {model_fingerprint(mmproj, None)}".encode())
    return found.hexdigest()[:32]


def named_fingerprint(
    model: str | os.PathLike[str],
    chat_template: str | None,
    loras: Sequence[Lora] = (),
    mmproj: str | os.PathLike[str] | None = None,
) -> str | None:
    """Return what tells the model that `model` names from others; None where its file is not here.

    Of `hf:owner/repo/file` it is that name, which means the same file everywhere: to look for the file may ask the
    network.
    """
    text = os.fspath(model)
    if text.startswith("hf:"):
        return text if chat_template is None and not loras and mmproj is None else None
    try:
        return model_fingerprint(locate(model), chat_template, loras, mmproj)
    except (DiscoError, OSError):
        return None
