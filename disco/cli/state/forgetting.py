"""`disco state export` and `disco state forget`."""

from __future__ import annotations

import argparse
import json
import sqlite3
import time
from functools import partial
from pathlib import Path

from disco.cli.console import Screen
from disco.cli.output_files import check_output, write
from disco.cli.state.opening import chosen_path, existing_path, fault_of, read
from disco.errors import ConfigurationError
from disco.state import Database, state_path
from disco.state.contents import Chosen, export, forget
from disco.state.file_faults import NotOursError, files_of, is_broken

__all__ = ["run_export", "run_forget"]

_HEADER = b"SQLite format 3\0"


def run_export(screen: Screen, given: str | None, out: str) -> int:
    """Write everything that is learnt as JSON.

    Raises:
        ConfigurationError: the output would overwrite the state file, or one of them cannot be used.
    """
    path = existing_path(given)
    check_output(argparse.Namespace(state=None if path is None else str(path)), out=out)
    learnt = {} if path is None else read(path, export)
    write(screen, out, json.dumps(learnt, indent=1), "Everything that is learnt")
    return 0


def run_forget(screen: Screen, arguments: argparse.Namespace) -> int:
    """Delete what is chosen, and print what that was.

    Raises:
        ConfigurationError: nothing is chosen, the number of days is below 0, or the file cannot be changed.
    """
    if arguments.older_than is not None and not arguments.older_than >= 0:
        raise ConfigurationError(
            f"--older-than is a number of days, at least 0, not {arguments.older_than:g}"
        )
    before = None if arguments.older_than is None else time.time() - 86_400.0 * arguments.older_than
    chosen = Chosen(arguments.endpoint, arguments.model, arguments.kind, before)
    is_all = bool(arguments.all)
    if is_all == (chosen != Chosen()):
        raise ConfigurationError(
            "Choose what is forgotten: --all, or some of --endpoint, --model, --kind and --older-than."
        )
    path = existing_path(arguments.state)
    if path is None:
        screen.line(f"Nothing to forget: there is no file {chosen_path(arguments.state)}.")
        return 0
    database = Database(path, warns=False)
    try:
        gone = database.write(partial(_forget, chosen, is_all), None)
        if gone is not None:
            database.tidy()
    finally:
        database.close()
    if gone is None:
        if not is_all:
            raise fault_of(database)
        if not _may_delete(database, arguments.state):
            raise _refusal(database)
        for file in files_of(path):  # the state file last: another program may make a new one at once
            file.unlink(missing_ok=True)
            screen.line(f"Deleted {file}, which was damaged.")
        return 0
    told = ", ".join(f"{count} {what}" for what, count in gone.items())
    screen.line(f"Forgotten: {told or 'nothing, there was none of that'}.")
    return 0


def _forget(chosen: Chosen, is_all: bool, connection: sqlite3.Connection) -> dict[str, int]:  # noqa: FBT001
    connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
    gone = forget(connection, chosen)
    if is_all and (count := connection.execute("DELETE FROM budgets").rowcount):
        gone["budgets"] = count
    return gone


def _refusal(database: Database) -> ConfigurationError:
    fault = database.fault
    if fault is None or isinstance(fault, NotOursError) or not is_broken(fault):
        return fault_of(database)
    return ConfigurationError(
        f"{database.path} does not look like a state file, not even like a damaged one, so it is left alone. Delete it "
        "yourself, or name another file."
    )


def _may_delete(database: Database, given: str | None) -> bool:
    """Return whether a file is a damaged state file, and no other file that was named by mistake."""
    fault = database.fault
    if fault is None or isinstance(fault, NotOursError) or not is_broken(fault):
        return False
    return (
        given is None or Path(given) == state_path() or database.path.read_bytes()[: len(_HEADER)] == _HEADER
    )
