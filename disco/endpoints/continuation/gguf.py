"""The chat template out of a GGUF file's metadata, read without loading llama.cpp.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from disco.errors import ModelFileError

__all__ = ["read_chat_template"]

_KEY = "tokenizer.chat_template"
# Byte widths of the scalar types by their number: u8 i8 u16 i16 u32 i32 f32 bool; u64 i64 f64.
_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_MAX_STRING_BYTES = 64 * 1024 * 1024


@lru_cache(maxsize=16)
def read_chat_template(path: str) -> str:
    """The model's own chat template (Jinja source).

    Raises:
        ModelFileError: the file is missing, is not a little-endian GGUF of version 2 or later, or has no
            chat template.
    """
    try:
        with Path(path).open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelFileError(f"{path} is not a GGUF file. Give the path of a GGUF model.")
            version, _, entries = struct.unpack("<IQQ", _exactly(file, 20))
            if not 2 <= version < 1 << 16:
                raise ModelFileError(
                    f"{path} is a GGUF of an unknown version or byte order. Convert it again."
                )
            for _ in range(entries):
                key = _string(file)
                (kind,) = struct.unpack("<I", _exactly(file, 4))
                if key == _KEY and kind == _STRING:
                    return _string(file)
                _skip(file, kind)
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read ({type(error).__name__}). Check the path.") from error
    except (struct.error, ValueError) as error:
        raise ModelFileError(f"{path} is a damaged GGUF file. Download it again.") from error
    raise ModelFileError(f"{path} holds no chat template. Give the template itself to `Continuation`.")


def _exactly(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise ValueError("the file ends early")
    return data


def _length(file: BinaryIO) -> int:
    (length,) = struct.unpack("<Q", _exactly(file, 8))
    return int(length)


def _string(file: BinaryIO) -> str:
    length = _length(file)
    if length > _MAX_STRING_BYTES:
        raise ValueError("an impossible string length")
    return _exactly(file, length).decode("utf-8")


def _skip(file: BinaryIO, kind: int) -> None:
    if kind in _WIDTHS:
        _exactly(file, _WIDTHS[kind])
    elif kind == _STRING:
        file.seek(_length(file), 1)
    elif kind == _ARRAY:
        (item,) = struct.unpack("<I", _exactly(file, 4))
        count = _length(file)
        if item in _WIDTHS:
            file.seek(count * _WIDTHS[item], 1)
        else:
            for _ in range(count):
                _skip(file, item)
    else:
        raise ValueError("an unknown value type")
