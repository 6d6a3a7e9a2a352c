"""Route records into a file, one line of JSON per answer, for bills, for questions and for `disco replay`."""

from __future__ import annotations

import errno
import logging
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from disco.errors import ConfigurationError

if TYPE_CHECKING:
    from disco.session.records.route_record import RouteRecord

__all__ = ["RouteLog"]

log = logging.getLogger("disco")

# Who asked what, how often and when is nobody else's business, even without the words.
_MODE = 0o600
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


class RouteLog:
    """Appends every route record it is called with to a file: `AsyncDisco(on_route=RouteLog("routes.jsonl"))`.

    Numbers and endpoint names only; prompts and answers never. Each record is one line, handed to the operating
    system in one piece as soon as its answer is complete, so any number of clients, threads and processes may write
    to the same file, and nothing is lost when the program dies. Lines stand in the order in which answers were
    completed.

    A record that cannot be written (the disk is full) is given up with one warning in the log "disco": an answer
    never fails because of it. After `close()`, which `with` calls too, the next record opens the file again.

    Mutable: `_file`, `_broken` (the last line has no end), `_warned`, `failed`.

    Args:
        path: a file to append to; made, with the folders above it, where there is none. Readable by its owner only.
        timelines: with the time of every piece of text, which the replay of token times needs: some 15 bytes a token.

    Attributes:
        path: the file.
        failed: records that could not be written.

    Raises:
        ConfigurationError: the path is a folder or cannot be written to.
    """

    def __init__(self, path: str | os.PathLike[str], *, timelines: bool = True) -> None:
        self.path = Path(path)
        self.timelines = timelines
        self.failed = 0
        self._file: int | None = None
        self._broken = False
        self._warned = False
        self._lock = threading.Lock()
        self._check()

    def __call__(self, route: RouteRecord) -> None:
        """Append one record. Never raises."""
        try:
            line = route.to_json(timelines=self.timelines).encode() + b"\n"
            with self._lock:
                if self._file is None:
                    self._file = os.open(self.path, _FLAGS, _MODE)
                # Of a disk that was full, one broken line is left, not two records run into one.
                line = b"\n" + line if self._broken else line
                written = os.write(self._file, line)
                self._broken = written != len(line)
                if self._broken:
                    raise OSError(errno.ENOSPC, "the disk is full")
        except Exception as error:  # noqa: BLE001 - whatever it is, the answer is complete and stays so
            self.failed += 1
            if not self._warned:
                self._warned = True
                log.warning(
                    "Route records cannot be written to %s (%s); this is said once.",
                    self.path,
                    getattr(error, "strerror", None) or type(error).__name__,
                )

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def _check(self) -> None:
        """Say now what would otherwise only be found out after the first answer."""
        if self.path.is_dir():
            raise ConfigurationError(
                f"{self.path} is a folder; route records need a file, such as routes.jsonl"
            )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"the folder {self.path.parent} for route records cannot be made: {error.strerror or error}"
            ) from error
        # A file that is not there yet is not made before there is something to write.
        place = self.path if self.path.exists() else self.path.parent
        if not os.access(place, os.W_OK):
            raise ConfigurationError(
                f"route records cannot be written to {self.path}: no permission to write to {place}"
            )
