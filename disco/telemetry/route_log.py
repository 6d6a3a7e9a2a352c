"""Write route records to a file, one line of JSON per answer, for bills, for analysis and for `disco replay`."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from disco.errors import ConfigurationError
from disco.notices import warn

if TYPE_CHECKING:
    from disco.session.records.route_record import RouteRecord

__all__ = ["RouteLog"]


# Readable by the owner only: even without text, the records tell who asked which endpoint how often and when.
_MODE = 0o600
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


class RouteLog:
    """Appends every route record it is called with to a file: `AsyncDisco(on_route=RouteLog("routes.jsonl"))`.

    The records contain numbers and endpoint names only, never prompts or answers. Each record is one line. It is
    passed to the operating system in one piece as soon as its answer is complete. So any number of clients, threads
    and processes may write to the same file, and a crash of the program loses no record. Lines are in the order in
    which answers were completed.

    A record that cannot be written (the disk is full) is dropped, with one warning in the log "disco". An answer
    never fails because of that. After `close()`, which `with` also calls, the next record opens the file again.

    Mutable: `_file`, `_broken` (the last line has no end), `_warned`, `failed`.

    Args:
        path: a file to append to. It is created if it does not exist, with its folders; only its owner can read it.
        timelines: whether to include the time of every piece of text, some 15 bytes a token. The replay of token
            times needs that.

    Attributes:
        path: the file.
        failed: number of records that could not be written.

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
                # After a full disk, one broken line is left, and the next record starts on a new line.
                line = b"\n" + line if self._broken else line
                written = os.write(self._file, line)
                self._broken = written != len(line)
                if self._broken:
                    raise OSError(errno.ENOSPC, "the disk is full")
        except Exception as error:  # noqa: BLE001 - no error here may affect the answer
            self.failed += 1
            if not self._warned:
                self._warned = True
                why = getattr(error, "strerror", None) or type(error).__name__
                warn(
                    f"Route records cannot be written to {self.path} ({why}). Make room, or give another path. This "
                    "warning is given only once."
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
        """Check now that the file can be written, before the first answer."""
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
        # A missing file is created only when there is something to write.
        place = self.path if self.path.exists() else self.path.parent
        if not os.access(place, os.W_OK):
            raise ConfigurationError(
                f"route records cannot be written to {self.path}: no permission to write to {place}"
            )
