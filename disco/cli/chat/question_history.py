"""The earlier questions of a chat, for the arrow keys."""

from __future__ import annotations

import os
from pathlib import Path

from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from disco.errors import ConfigurationError

__all__ = ["open_history"]


def open_history(path: str | None) -> History:
    """Return the history in a file, or one in memory.

    Args:
        path: the file, which is made if need be, and which only the user may then read; None: in memory, gone at the
            end of the chat.

    Raises:
        ConfigurationError: the file cannot be read or written, or is a device or a pipe, which is left as it is.
    """
    if path is None:
        return InMemoryHistory()
    if Path(path).exists() and not Path(path).is_file():
        raise ConfigurationError(
            f"--history {path}: this is no regular file. Name another file, or leave --history out: then the questions "
            "are kept in memory and gone at the end of the chat."
        )
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        if os.name == "posix":  # it may have been there, readable for others
            Path(path).chmod(0o600)
    except OSError as error:
        raise ConfigurationError(
            f"--history {path}: the file cannot be read and written ({error.strerror}). Name another file."
        ) from error
    return FileHistory(path)
