"""The file of one saved prompt: the tokens, and the model's state behind them.

    head (struct `_HEAD`, little-endian) | checksum of the head, u32 | token ids, i32 each | state, bytes

The checksums (CRC-32) find damage, not forgery: a file is as trustworthy as the account that can write it. So only a
file of this user counts that nobody else may write to. The state is llama.cpp's own (`llama_state_seq_get_data`), which
it checks again when it takes it.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import FileIO
from math import inf
from pathlib import Path
from typing import Final, Literal

__all__ = [
    "NAMES",
    "PART",
    "PromptHead",
    "UnusableFileError",
    "file_name",
    "is_own",
    "read_all",
    "read_head",
    "write_file",
]

MAGIC: Final = b"disco kv"
VERSION: Final = 1
SUFFIX: Final = ".kv"
PART: Final = ".part"
NAMES: Final = re.compile(r"[0-9a-f]{16}-[0-9a-f]{24}\.kv|\.[0-9a-f]{16}-[0-9a-f]{24}\.[0-9a-f]{12}\.part")
"""Names of finished files, and of those that are half written. Other files in the folder are left alone."""

# magic, version, model, kind, tokens, bytes of the state, read_s, saved_at, checksums of ids and state
_HEAD: Final = struct.Struct("<8sI16sIIQddII")
_CHECKSUM: Final = struct.Struct("<I")
_MOST_TOKENS: Final = 2**24
_CHUNK: Final = 4 * 2**20  # written between two looks at whether to go on

Kind = Literal["leading", "conversation"]
_KINDS: Final[tuple[Kind, ...]] = ("leading", "conversation")


class UnusableFileError(Exception):
    """A file that cannot be used; the message says why.

    Attributes:
        why: "damaged": it was made by disco, and changed or cut off since. "later": a later version of disco made it.
            "foreign": it is no file of disco's, another model's, or one that another user may have written.
    """

    def __init__(self, why: Literal["damaged", "later", "foreign"]) -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True, slots=True)
class PromptHead:
    """What a file says of itself.

    Attributes:
        path: the file.
        model: fingerprint of the model and of how it was loaded, 16 bytes.
        kind: "leading": what prompts have in common at their beginning; "conversation": all of one.
        ids: the tokens. Not in repr.
        state_bytes: length of the model's state, bytes.
        read_s: how long it takes to read these tokens anew, s, as measured where they were saved; 0: not known.
        saved_at: Unix time, s.
        state_checksum: of the state.
    """

    path: Path
    model: bytes
    kind: Kind
    ids: array[int] = field(repr=False)
    state_bytes: int
    read_s: float
    saved_at: float
    state_checksum: int


def file_name(model: bytes, ids: Sequence[int]) -> str:
    """Return the file's name: the model's fingerprint and the prompt's, so that neither is saved twice."""
    prompt = hashlib.sha256(_bytes_of(array("i", ids))).hexdigest()[:24]
    return f"{model.hex()[:16]}-{prompt}{SUFFIX}"


def write_file(head: PromptHead, state: memoryview, *, keeps_going: Callable[[], bool]) -> bool:
    """Write a file all at once: another process sees all of it or none. Only the user may read it.

    Args:
        head: what it says; its `state_checksum` and `state_bytes` are computed here.
        state: the model's state.
        keeps_going: asked between chunks; False gives the file up.

    Returns:
        Whether the file was written.

    Raises:
        OSError: it cannot be written.
    """
    ids = _bytes_of(head.ids)
    packed = _HEAD.pack(
        MAGIC,
        VERSION,
        head.model,
        _KINDS.index(head.kind),
        len(head.ids),
        len(state),
        head.read_s,
        head.saved_at,
        zlib.crc32(ids),
        zlib.crc32(state),
    )
    draft = head.path.with_name(f".{head.path.stem}.{secrets.token_hex(6)}{PART}")
    try:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(draft, flags, 0o600), "wb", buffering=0) as file:
            _write_all(file, memoryview(packed + _CHECKSUM.pack(zlib.crc32(packed)) + ids))
            for at in range(0, len(state), _CHUNK):
                if not keeps_going():
                    return False
                _write_all(file, state[at : at + _CHUNK])
        draft.replace(head.path)
    finally:
        draft.unlink(missing_ok=True)
    return True


def read_head(path: Path) -> PromptHead:
    """Return what a file says of itself, checked, but for its state.

    Raises:
        UnusableFileError: it is damaged, of a later version, no such file, or one that others may write to.
        OSError: it cannot be read.
    """
    with _opened(path) as file:
        return _read_head(path, file)


def read_all(path: Path) -> tuple[PromptHead, bytearray]:
    """Return what a file says of itself, and the model's state, both checked.

    Raises:
        UnusableFileError, OSError: as for `read_head`.
    """
    with _opened(path) as file:
        head = _read_head(path, file)
        state = bytearray(head.state_bytes)
        view, at = memoryview(state), 0
        while at < len(state):
            count = file.readinto(view[at:])
            if not count:
                raise UnusableFileError("damaged")
            at += count
    if zlib.crc32(state) != head.state_checksum:
        raise UnusableFileError("damaged")
    return head, state


def is_own(found: os.stat_result) -> bool:
    """Return whether it is a file, no link or pipe, and the user's. On Windows, the folder decides whose it is."""
    return stat.S_ISREG(found.st_mode) and (os.name != "posix" or found.st_uid == os.getuid())


def _opened(path: Path) -> FileIO:
    """Open a file that only the user can have written.

    Raises:
        UnusableFileError: it is another.
        OSError: it cannot be read, or is a link.
    """

    def opener(name: str, flags: int) -> int:
        # A folder that others may write to may have a link or a pipe in its place by now.
        opened = os.open(name, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        found = os.fstat(opened)
        if not is_own(found) or (os.name == "posix" and found.st_mode & 0o022):
            os.close(opened)
            raise UnusableFileError("foreign")
        return opened

    return FileIO(path, opener=opener)


def _read_head(path: Path, file: FileIO) -> PromptHead:
    packed = file.read(_HEAD.size)
    if packed[: len(MAGIC)] != MAGIC[: len(packed)]:
        raise UnusableFileError("foreign")
    if len(packed) >= len(MAGIC) + 4 and int.from_bytes(packed[8:12], "little") > VERSION:
        raise UnusableFileError("later")
    checksum = file.read(_CHECKSUM.size)
    if len(packed) < _HEAD.size or checksum != _CHECKSUM.pack(zlib.crc32(packed)):
        raise UnusableFileError("damaged")
    _, _, model, kind, tokens, state_bytes, read_s, saved_at, ids_sum, state_sum = _HEAD.unpack(packed)
    is_sound = 0 < tokens <= _MOST_TOKENS and state_bytes > 0 and 0 <= read_s < inf and 0 <= saved_at < inf
    if not is_sound or kind >= len(_KINDS):
        raise UnusableFileError("damaged")
    data = file.read(4 * tokens)
    whole = _HEAD.size + _CHECKSUM.size + 4 * tokens + state_bytes
    if zlib.crc32(data) != ids_sum or os.fstat(file.fileno()).st_size != whole:
        raise UnusableFileError("damaged")
    ids = array("i", data)
    if sys.byteorder == "big":
        ids.byteswap()
    return PromptHead(path, model, _KINDS[kind], ids, state_bytes, read_s, saved_at, state_sum)


def _bytes_of(ids: array[int]) -> bytes:
    assert ids.itemsize == 4
    if sys.byteorder == "big":
        ids = ids[:]
        ids.byteswap()
    return ids.tobytes()


def _write_all(file: FileIO, data: memoryview) -> None:
    while data:
        data = data[file.write(data) or 0 :]
