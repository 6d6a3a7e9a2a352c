"""The preset, whether a client can be made of it all, and the state file."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Final

from disco.cli.doctor.finding import Facts, Finding, Setup, does_not, split_message, works
from disco.cli.doctor.machine import existing
from disco.dispatch import load_preset
from disco.errors import ConfigurationError, DiscoError
from disco.state import Database, state_path
from disco.state.file_faults import why_and_remedy

__all__ = ["check_client", "check_preset", "check_state_file"]

_LEAST_BYTES: Final = 2**20  # of a disk, for what one answer adds to the file
_CORRECT: Final = "Correct the file, or name a preset with --preset"


def check_preset(setup: Setup, facts: Facts) -> Finding:  # noqa: ARG001 - as all checks
    """Load the preset."""
    try:
        preset = load_preset(setup.preset)
    except ConfigurationError as error:
        what, remedy = split_message(error)
        return does_not(
            "preset",
            f"{what[0].upper()}{what[1:]}",
            remedy or "Correct the file, or name a preset with --preset",
        )
    return works(
        "preset", f"{preset.name}: {preset.summary}" if preset.summary else f"{preset.name} is valid."
    )


async def check_client(setup: Setup, facts: Facts) -> Finding | None:
    """Make a client of the settings; nothing is loaded, and no request is sent."""
    from disco.client.async_client import AsyncDisco  # noqa: PLC0415 - the clients load with it

    try:
        load_preset(setup.preset)
        client = AsyncDisco(local=setup.local, preset=setup.preset, state=False, api_key=facts.key)
    except (DiscoError, ValueError) as error:
        if not isinstance(error, DiscoError):
            return does_not("settings", "The settings do not make a client.", "Look at the lines above")
        what, remedy = split_message(error)
        return does_not("settings", what, remedy)
    await client.close()
    return works("settings", "Local model, server and preset go together.")


def check_state_file(setup: Setup, facts: Facts) -> Finding:  # noqa: ARG001 - as all checks
    """Write into the state file what it holds already; where there is none yet, try its folder."""
    try:
        path = state_path(setup.state)
    except ConfigurationError as error:
        what, remedy = split_message(error)
        return does_not("state file", what, remedy)
    if path is None:
        return works(
            "state file",
            "There is none: switched off, or the user has no home. What is learnt lasts as long as a program.",
        )
    if not path.exists():
        return _not_yet(path)
    database = Database(path, warns=False)
    try:
        done = database.write(_rewritten, None)
    finally:
        database.close()
    if done is None:
        assert database.fault is not None
        why, remedy = why_and_remedy(database.fault, path)
        return does_not("state file", f"{path} cannot be used: {why}.", remedy)
    left = shutil.disk_usage(path.parent).free
    if left < _LEAST_BYTES:
        return does_not("state file", f"The disk of {path} is full.", "Delete what you do not need on it")
    return works("state file", f"{path} can be read and written.")


def _rewritten(connection: sqlite3.Connection) -> bool:
    """Write the file's version over itself: a write to the disk that changes nothing."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.execute(f"PRAGMA user_version = {int(version)}")
    return True


def _not_yet(path: Path) -> Finding:
    folder = existing(path.parent)
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"0" * 4096)
            file.flush()
    except OSError as error:
        return does_not(
            "state file",
            f"{path} cannot be made: {folder} is not writable ({error.strerror or type(error).__name__}).",
            f"Make {folder} a folder that you can write, or name another file: DISCO_STATE=FILE (off: none)",
        )
    return works("state file", f"There is none yet; the first answer makes {path}.")
