"""What can be wrong with a state file: why it cannot be used, and what its user can do about that."""

from __future__ import annotations

import contextlib
import os
import shlex
import sqlite3
import stat
from pathlib import Path

__all__ = [
    "NotOursError",
    "check_regular",
    "content_at",
    "file_at",
    "files_of",
    "is_broken",
    "is_locked",
    "is_of_file",
    "keep_private",
    "why_and_remedy",
]


class NotOursError(Exception):
    """The file is left alone: its arguments say why, and what to do."""


def is_of_file(error: Exception) -> bool:
    """Return whether an error is one of opening, reading or writing a file."""
    return isinstance(error, sqlite3.Error | OSError | UnicodeError | NotOursError)


def is_broken(error: Exception) -> bool:
    """Return whether the file itself is at fault, and will be so at the next call."""
    if isinstance(error, NotOursError):
        return True
    if isinstance(error, sqlite3.OperationalError):
        return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR  # another schema than ours
    return isinstance(error, sqlite3.DatabaseError) and not isinstance(
        error, sqlite3.IntegrityError | sqlite3.ProgrammingError
    )


def is_locked(error: Exception) -> bool:
    """Return whether another process, or another connection of this one, holds the file."""
    codes = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in codes


def why_and_remedy(error: Exception, path: Path) -> tuple[str, str]:
    """Return why the file at `path` cannot be used, and what can be done: the middle and the end of a message."""
    if isinstance(error, NotOursError):
        why, remedy = error.args
        return why, remedy
    if is_broken(error):
        # With its name: without it, the command would forget all that is in the user's own file.
        command = f"disco state forget --all --state {shlex.quote(os.fspath(path))}"
        return "it is damaged or no state file", f"Delete it (`{command}`)"
    if is_locked(error):
        return "another process keeps it locked", "Find that process if this happens again"
    said = str(error) if isinstance(error, sqlite3.Error) else getattr(error, "strerror", None)
    why = said or type(error).__name__
    return why, "Make the file and its folder writable, and the disk less full"


def file_at(path: Path) -> tuple[int, int] | None:
    """Return which file is at a path now: its device and its number there; None: there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def content_at(path: Path) -> tuple[int, int, int] | None:
    """Return the same, and when it was last written: the number of a file that was deleted is used again."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def files_of(path: Path) -> list[Path]:
    """Return the files that a state file consists of, those that exist, the state file itself last."""
    return [file for end in ("-wal", "-shm", "") if (file := Path(f"{path}{end}")).exists()]


def check_regular(path: Path) -> None:
    """Raise `NotOursError` for a device, a pipe or a folder: as root, SQLite and `keep_private` would change it."""
    if not path.is_file():
        raise NotOursError("it is no regular file", "Name a file")


def keep_private(path: Path) -> None:
    """Let only the user read the file, and the two files that SQLite keeps beside it and gives its permissions.

    Raises:
        NotOursError: it belongs to another user.
        OSError: its permissions cannot be changed.
    """
    if not hasattr(os, "geteuid"):  # Windows: files in a user's folders are the user's alone
        return
    found, user = path.stat(), os.geteuid()
    if user not in (found.st_uid, 0):
        raise NotOursError("it belongs to another user", "Delete it")
    for file in reversed(files_of(path)):  # the state file first: then nothing new gets its old permissions
        with contextlib.suppress(FileNotFoundError):  # the last program that used it has just removed it
            mode = stat.S_IMODE(file.stat().st_mode)
            if mode & 0o077:
                file.chmod(mode & ~0o077)
