"""Functions to open and read text files, with clear errors for files that are not valid."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import IO, Any

from disco.errors import ConfigurationError

__all__ = ["existing_file", "lines", "open_packed", "open_text", "readable", "rest", "text_of"]

LONGEST = 1 << 28
"""Characters in one line, or in one JSON document. A small compressed file may expand to more than fits in memory."""

_MAGIC = {
    b"PAR1": "a Parquet file; give it the suffix .parquet",
    b"\x1f\x8b": "compressed with gzip; give it the suffix .gz",
    b"PK\x03\x04": "a ZIP archive or a spreadsheet; unpack it, or export it as CSV",
    b"\xff\xfe": "text in UTF-16; save it as UTF-8",
    b"\xfe\xff": "text in UTF-16; save it as UTF-8",
}


def existing_file(path: str | PathLike[str]) -> Path:
    """Return the path, if it is a file.

    Raises:
        ConfigurationError: there is no such file.
    """
    file = Path(path)
    if file.is_dir():
        raise ConfigurationError(f"{file} is a folder; name one file in it")
    if not file.exists():
        raise ConfigurationError(f"there is no file {file}; check the path")
    return file


def open_packed(path: Path) -> Any:
    """Open a file as bytes, unpacked if its name ends in .gz."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def open_text(path: Path, errors: str = "strict") -> IO[str]:
    """Open a file as text, unpacked if its name ends in .gz.

    Args:
        path: of the file.
        errors: what becomes of bytes that are no UTF-8; see `open`.

    Raises:
        ConfigurationError: the file is not text.
    """
    with readable(path, lambda: 1):
        packed = open_packed(path)
        try:
            head = packed.peek(4096)[:4096]
            for magic, what in _MAGIC.items():
                if head.startswith(magic):
                    raise ConfigurationError(f"{path} is {what}")
            if b"\0" in head:
                raise ConfigurationError(
                    f"{path} is a binary file, not text; see the documentation of its source for how to export it"
                )
        except BaseException:
            packed.close()
            raise
        return io.TextIOWrapper(packed, encoding="utf-8-sig", errors=errors, newline="")


def lines(file: IO[str], path: Path) -> Iterator[str]:
    """Yield the file's lines, each with its line end.

    Raises:
        ConfigurationError: a line is longer than `LONGEST`.
    """
    number = 0
    while line := file.readline(LONGEST):
        number += 1
        if len(line) == LONGEST and line[-1] not in "\r\n":
            raise ConfigurationError(
                f"{path}, line {number}: the line has more than {LONGEST} characters; write one request per line"
            )
        yield line


def rest(file: IO[str], path: Path) -> str:
    """Return the rest of the file.

    Raises:
        ConfigurationError: the rest has more than `LONGEST` characters.
    """
    text = file.read(LONGEST)
    if len(text) == LONGEST:
        raise ConfigurationError(
            f"{path}: the JSON document has more than {LONGEST} characters; write one request per line, as .jsonl"
        )
    return text


def text_of(path: str | PathLike[str]) -> str:
    """Return the whole text of a file that a user named.

    Raises:
        ConfigurationError: there is no such file, or it is not text.
    """
    file, found = existing_file(path), list[str]()
    with open_text(file) as text, readable(file, lambda: len(found)):
        for line in lines(text, file):
            found.append(line)
    return "".join(found).replace("\r\n", "\n").replace("\r", "\n")


@contextmanager
def readable(path: Path, line: Callable[[], int], *, encoding: str = "UTF-8") -> Iterator[None]:
    """Convert errors of reading a damaged file to errors that name the file and the line where reading stopped.

    Args:
        path: the file.
        line: returns how many lines were read so far.
        encoding: that the file is read in.

    Raises:
        ConfigurationError: the file cannot be read, is cut off, damaged, or not in this encoding.
    """
    try:
        yield
    except EOFError as broken:
        raise ConfigurationError(
            f"{path} is cut off after line {line()}: the compressed data end too early; fetch the file again"
        ) from broken
    except (gzip.BadGzipFile, zlib.error) as broken:
        raise ConfigurationError(
            f"{path}: the compressed data are damaged after line {line()} ({broken}); fetch the file again"
        ) from broken
    except UnicodeError as broken:
        raise ConfigurationError(
            f"{path} is not {encoding} text, somewhere after line {line()}; save it as UTF-8"
        ) from broken
    except OSError as broken:
        raise ConfigurationError(f"{path} cannot be read: {broken.strerror or broken}") from broken
