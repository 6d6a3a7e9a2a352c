"""Text files of traces: opened and unpacked, with an error that names the file where it cannot be read."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from disco import ConfigurationError

__all__ = ["open_text"]


@contextmanager
def open_text(path: str | Path, *, encoding: str = "UTF-8") -> Iterator[IO[str]]:
    """Open a file as text, unpacked if its name ends in .gz, with its line ends as they are.

    Raises:
        ConfigurationError: there is no such file, or it cannot be read to its end.
    """
    file = Path(path)
    try:
        opened = gzip.open if file.suffix == ".gz" else open
        codec = "utf-8-sig" if encoding == "UTF-8" else encoding  # a byte order mark is no text
        with opened(file, "rt", encoding=codec, newline="") as text:
            yield text
    except FileNotFoundError as broken:
        raise ConfigurationError(f"there is no file {file}; check the path") from broken
    except EOFError as broken:
        raise ConfigurationError(
            f"{file} is cut off: the compressed data end too early; fetch the file again"
        ) from broken
    except (gzip.BadGzipFile, zlib.error) as broken:
        raise ConfigurationError(
            f"{file}: the compressed data are damaged ({broken}); fetch the file again"
        ) from broken
    except UnicodeError as broken:
        raise ConfigurationError(f"{file} is not {encoding} text; save it as UTF-8") from broken
    except OSError as broken:
        raise ConfigurationError(f"{file} cannot be read: {broken.strerror or broken}") from broken
