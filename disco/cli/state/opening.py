"""The state file that a command works on."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from disco.errors import ConfigurationError
from disco.state import Database, state_path
from disco.state.file_faults import why_and_remedy
from disco.state.schema import damage_of

__all__ = ["chosen_path", "existing_path", "fault_of", "read"]

T = TypeVar("T")


def chosen_path(given: str | None) -> Path:
    """Return the path of the file that `--state` means.

    Raises:
        ConfigurationError: there is none, because it is off; or the path is no file's.
    """
    if given is not None and Path(given).is_dir():
        raise ConfigurationError(f"--state {given}: this is a folder. Name a file in it.")
    path = state_path(given)
    if path is None:
        raise ConfigurationError(
            "There is no state file: --state or DISCO_STATE switches it off, or the user has no home. Name one with "
            "--state FILE."
        )
    return path


def existing_path(given: str | None) -> Path | None:
    """Return the same; None where nothing has been kept there yet."""
    path = chosen_path(given)
    return path if path.exists() else None


def read(path: Path, work: Callable[[sqlite3.Connection], T]) -> T:
    """Return what `work` reads from the file.

    Raises:
        ConfigurationError: the file cannot be read; the message says why, and what can be done.
    """

    def checked(connection: sqlite3.Connection) -> T:
        if (damage := damage_of(connection)) is not None:
            raise damage
        return work(connection)

    database = Database(path, warns=False)
    try:
        found = database.read(checked, None)
    finally:
        database.close()
    if found is None:
        raise fault_of(database)
    return found


def fault_of(database: Database) -> ConfigurationError:
    """Return the error that says what is wrong with the file."""
    assert database.fault is not None
    why, remedy = why_and_remedy(database.fault, database.path)
    return ConfigurationError(f"The state file {database.path} cannot be used: {why}. {remedy}.")
