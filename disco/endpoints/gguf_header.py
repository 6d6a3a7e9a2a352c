"""The header of a GGUF file: whether the file is whole, which tokenizer and which chat template it holds.

Source: the GGUF specification, version 3 (ggml's docs/gguf.md). Versions 2 and 3 share this layout.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import struct
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from disco.errors import ModelFileError

__all__ = ["GgufError", "Header", "read_chat_template", "read_header", "read_tokens"]

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip

# ggml tensor type -> (elements in a block, bytes of a block). A type that is not listed weakens only the
# check for truncation.
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110),
    22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8),
    29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip

_MOST_DIMENSIONS = 4  # GGML_MAX_DIMS
_MOST_LAYERS = 65_536  # more numbers are no list of layers

# The entries that decide how text becomes ids, besides the list of tokens itself.
_TOKENIZER_KEYS = (
    "tokenizer.ggml.model",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.add_space_prefix",
    "tokenizer.ggml.remove_extra_whitespaces",
)


class GgufError(ValueError):
    """The file is not a whole GGUF file; the message says what is wrong, without the file's name."""


@dataclass(frozen=True, slots=True)
class Header:
    """What the header contains.

    Attributes:
        metadata: scalar and string entries; of the arrays only the key-value heads of each layer, as a tuple.
        vocabulary: fingerprint of the tokenizer, None where the file has no list of tokens.
        size_bytes: the least size of a whole file.
        tokens: number of tokens in the tokenizer's list; None where it was not read.
    """

    metadata: dict[str, object] = field(repr=False)
    vocabulary: str | None
    size_bytes: int
    tokens: int | None = None

    @property
    def trained_context_tokens(self) -> int | None:
        """Return the context length that the model was trained with, in tokens."""
        value = self.metadata.get(f"{self.metadata.get('general.architecture')}.context_length")
        return value if isinstance(value, int) else None


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def number(self, layout: str) -> int:
        value: int = struct.unpack_from(layout, self.data, self.at)[0]
        self.at += struct.calcsize(layout)
        return value

    def string(self) -> bytes:
        length = self.number("<Q")
        end = self.at + length
        if end > len(self.data):
            raise GgufError("it is truncated inside its header")
        text = self.data[self.at : end]
        self.at = end
        return text

    def skip_strings(self, count: int) -> None:
        # The one long loop of a header (50,000 to 500,000 strings).
        unpack, at, data, size = struct.Struct("<Q").unpack_from, self.at, self.data, len(self.data)
        for _ in range(count):
            at += 8 + unpack(data, at)[0]
            if at > size:
                raise GgufError("it is truncated inside its header")
        self.at = at

    def value(self, kind: int) -> object:
        if kind == _STRING:
            return self.string().decode("utf-8", "replace")
        if kind == _ARRAY:
            self.skip_array()
            return None
        if kind not in _SCALARS:
            raise GgufError(f"its header holds an entry of unknown type {kind}")
        return self.number(_SCALARS[kind])

    def numbers(self) -> tuple[int, ...] | None:
        """Return an array of whole numbers; None where it holds something else."""
        begin = self.at
        kind, count = self.number("<I"), self.number("<Q")
        layout = _SCALARS.get(kind, "")
        if layout[1:] not in ("b", "B", "h", "H", "i", "I", "q", "Q") or count > _MOST_LAYERS:
            self.at = begin
            self.skip_array()
            return None
        return tuple(int(self.number(layout)) for _ in range(count))

    def skip_array(self) -> None:
        kind, count = self.number("<I"), self.number("<Q")
        if kind == _STRING:
            self.skip_strings(count)
        elif kind == _ARRAY:
            for _ in range(count):
                self.skip_array()
        elif kind in _SCALARS:
            self.at += count * struct.calcsize(_SCALARS[kind])
        else:
            raise GgufError(f"its header holds an array of unknown type {kind}")


def _open(path: Path) -> BinaryIO:
    """Open a file that somebody else may have named: a local server says which one its model is.

    Raises:
        GgufError: it is no regular file. To open a named pipe would otherwise wait for somebody to write to it.
        OSError: it cannot be opened.
    """
    file = os.fdopen(
        os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb"
    )
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise GgufError("it is not a regular file")
    return file


def read_header(path: Path, *, scalars_only: bool = False) -> Header:
    """Read and check the header of a GGUF file.

    Args:
        path: an existing file.
        scalars_only: stop at the tokenizer's first array, which is long: this takes well under a millisecond instead of
            tens. The vocabulary and the size are then not known, and the number of tokens only where that array is
            their list, as it is in most files.

    Raises:
        GgufError: the file is not a GGUF file, has an unsupported version, or is truncated.
        OSError: the file cannot be read.
    """
    with _open(path) as file:
        if file.read(4) != b"GGUF":
            raise GgufError("it does not begin with the letters GGUF")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _parse(_Reader(data), scalars_only=scalars_only)
            except (struct.error, OverflowError) as exc:  # a read, or a length to be read, beyond the end
                raise GgufError("it is truncated inside its header") from exc
            except RecursionError as exc:
                raise GgufError("its header holds arrays in arrays without end") from exc


def read_tokens(path: Path) -> list[bytes]:
    """Return the tokenizer's vocabulary, by id, each token as the file spells it; empty where the file has none.

    Raises:
        GgufError: the file is not a GGUF file, has an unsupported version, or is truncated.
        OSError: the file cannot be read.
    """
    read_header(path)  # raises the error that says what is wrong with the file
    with _open(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = _Reader(data)
        reader.at = 16
        for _ in range(reader.number("<Q")):
            key, kind = reader.string(), reader.number("<I")
            if key == b"tokenizer.ggml.tokens" and kind == _ARRAY and reader.number("<I") == _STRING:
                return [reader.string() for _ in range(reader.number("<Q"))]
            reader.value(kind)
    return []


@lru_cache(maxsize=16)
def read_chat_template(path: str) -> str:
    """Return the model's own chat template (Jinja source), read without llama.cpp.

    Raises:
        ModelFileError: the file is missing, is no whole GGUF, or has no chat template.
    """
    try:
        header = read_header(Path(path))
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read ({type(error).__name__}). Check the path.") from error
    except GgufError as error:
        raise ModelFileError(f"{path} is not a GGUF file that can be read: {error}.") from error
    template = header.metadata.get("tokenizer.chat_template")
    if not isinstance(template, str):
        raise ModelFileError(f"{path} holds no chat template. Give the template itself to `Continuation`.")
    return template


def _parse(reader: _Reader, *, scalars_only: bool) -> Header:
    reader.at = 4
    version = reader.number("<I")
    if version not in (2, 3):
        raise GgufError(f"it is GGUF version {version}; versions 2 and 3 are supported")
    tensors, entries = reader.number("<Q"), reader.number("<Q")
    metadata: dict[str, object] = {}
    tokens: bytes | None = None
    count: int | None = None
    for _ in range(entries):
        key = reader.string().decode("utf-8", "replace")
        kind = reader.number("<I")
        begin = reader.at
        if kind == _ARRAY and key == "tokenizer.ggml.tokens":
            _, count = reader.number("<I"), reader.number("<Q")
            reader.at = begin
        if scalars_only and kind == _ARRAY and key.startswith("tokenizer."):
            return Header(metadata, None, 0, count)
        if kind == _ARRAY and key.endswith(".attention.head_count_kv"):
            value: object = reader.numbers()
        else:
            value = reader.value(kind)
        if kind != _ARRAY or value is not None:
            metadata[key] = value
        elif key == "tokenizer.ggml.tokens":
            tokens = hashlib.sha256(reader.data[begin : reader.at]).digest()
    size_bytes = reader.at if scalars_only else _end_of_tensors(reader, tensors, metadata)
    if size_bytes > len(reader.data):
        raise GgufError(f"it is truncated: {len(reader.data):,} of at least {size_bytes:,} bytes are there")
    return Header(metadata, _fingerprint(tokens, metadata), size_bytes, count)


def _end_of_tensors(reader: _Reader, count: int, metadata: dict[str, object]) -> int:
    if count == 0:  # a vocabulary alone: no tensor follows, so nothing is aligned
        return reader.at
    end = 0
    for _ in range(count):
        reader.string()
        elements, dimensions = 1, reader.number("<I")
        if dimensions > _MOST_DIMENSIONS:
            raise GgufError(f"it holds a tensor of {dimensions:,} dimensions")
        for _ in range(dimensions):
            elements *= reader.number("<Q")
        kind, offset = reader.number("<I"), reader.number("<Q")
        per_block, block_bytes = _BLOCKS.get(kind, (1, 0))
        end = max(end, offset + elements // per_block * block_bytes)
    alignment = metadata.get("general.alignment", 32)
    alignment = alignment if isinstance(alignment, int) and alignment > 0 else 32
    return -(-reader.at // alignment) * alignment + end


def _fingerprint(tokens: bytes | None, metadata: dict[str, object]) -> str | None:
    if tokens is None:
        return None
    digest = hashlib.sha256(tokens)
    for key in _TOKENIZER_KEYS:
        digest.update(f"{key}={metadata.get(key)!r};".encode())
    return f"gguf:{digest.hexdigest()[:24]}"
