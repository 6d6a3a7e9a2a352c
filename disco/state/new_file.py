"""Makes an empty state file, where there is none."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":
    import fcntl

__all__ = ["make_private_file"]


def make_private_file(path: Path) -> None:
    """Make the file, which only the user can read, and its folder, unless they are there.

    If the user has deleted the file alone, its -wal and -shm lie there still, and may be in use by a program that has
    not noticed yet. SQLite would take them for the new file's. They are removed first, by one process at a time: where
    the file is there again, they belong to it.

    Raises:
        OSError: the file or its folder cannot be made.
    """
    path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    if path.exists():
        return
    with _locked(path.parent):
        if not path.exists():
            for end in ("-wal", "-shm"):
                Path(f"{path}{end}").unlink(missing_ok=True)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    if sys.platform == "win32":  # where nobody can delete a file that is in use
        yield
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)  # ends with the process, whatever ends that
        yield
    finally:
        os.close(opened)
