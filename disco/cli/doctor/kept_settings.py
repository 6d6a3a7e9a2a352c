"""The preset, whether a client can be made of it all, and the state file."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Final

from disco.cli.doctor.finding import Facts, Finding, Setup, does_not, sets, split_message, unchecked, works
from disco.cli.doctor.hidden_secrets import bare
from disco.cli.doctor.machine import existing
from disco.cli.doctor.server_address import ADDRESS, KEY, address, why_no_client
from disco.client.endpoint_catalog.local_servers import LocalServer, is_address
from disco.client.learnt.kept_breakers import BREAKER
from disco.dispatch import load_preset
from disco.dispatch.breakers.circuit_breaker import REFUSED, BreakerConfig
from disco.endpoints.runtimes import Runtime
from disco.errors import ConfigurationError, DiscoError, FailureKind
from disco.session.failed_answer import WORDS
from disco.state import Database, state_path
from disco.state.facts import Fact, read_facts
from disco.state.file_faults import why_and_remedy
from disco.state.schema import damage_of

__all__ = ["check_client", "check_cool_downs", "check_preset", "check_state_file"]

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
            remedy or _CORRECT,
        )
    return works(
        "preset", f"{preset.name}: {preset.summary}" if preset.summary else f"{preset.name} is valid."
    )


async def check_client(setup: Setup, facts: Facts) -> Finding | None:
    """Make a client of the settings; nothing is loaded, and no request is sent."""
    from disco.client.async_client import AsyncDisco  # noqa: PLC0415 - the clients load with it

    del facts
    key = bare(os.environ.get(KEY, "")) or None
    if key is None and setup.local is None:
        what = "There is neither a local model nor a server, so nothing could answer."
        return does_not("settings", what, f"Name a model with --local, or {sets(KEY, '...')}")
    try:
        preset = load_preset(setup.preset)
        _ = setup.local is None or not is_address(setup.local) or LocalServer.at(setup.local)
    except ConfigurationError:
        return unchecked("settings", "No client was made, because of a fault above.")
    named = os.environ.get(ADDRESS, "")
    if (key is not None and (address() is None or named != bare(named))) or why_no_client() is not None:
        return unchecked("settings", "No client can be made of the environment: see the server above.")
    runtime: Runtime = setup.runtime if setup.names_a_model else "auto"
    try:
        client = AsyncDisco(local=setup.local, runtime=runtime, preset=preset, state=False, api_key=key)
    except DiscoError as error:
        what, remedy = split_message(error)
        return does_not("settings", what, remedy or "Change --local or --preset")
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


def check_cool_downs(setup: Setup, facts: Facts) -> list[Finding]:  # noqa: ARG001 - as all checks
    """Say which endpoints rest now in the programs of this user, as the state file has it, and why."""
    try:
        path = state_path(setup.state)
    except ConfigurationError:  # told under "state file"
        return []
    if path is None or not path.exists():
        return []
    database, now = Database(path, warns=False), time.time()
    nothing: list[Fact] = []
    try:
        kept = database.read(lambda connection: read_facts(connection, BREAKER), nothing)
    finally:
        database.close()
    if database.fault is not None:  # told under "state file"
        return []
    resting = [finding for fact in kept if (finding := _resting(fact, now)) is not None]
    return resting or [works("cool-down", "No endpoint is left alone after failures.")]


def _resting(fact: Fact, now: float) -> Finding | None:
    """Return what is known of an endpoint that rests; None where it does not, or the file says nothing of use."""
    name, where, model = (*fact.key, "", "", "")[:3]
    try:
        kind, left_s = FailureKind(fact.value["why"]), float(fact.value["until"]) - now
    except (KeyError, TypeError, ValueError):
        return None
    if not 0 < left_s <= BreakerConfig().longest_asked_s:
        return None
    what, remedy = WORDS[kind]
    of_model = f" for the model {model!r}" if model else ""
    remedy = remedy[:1].upper() + remedy[1:] if remedy else "It is tried again by itself"
    rests = f"{name!r} ({where}) is left alone{of_model} for {left_s:.0f} s more: it {what}."
    # Programs do not share these: a refusal concerns a key, and another program may have another one.
    if kind in REFUSED:
        return works("cool-down", f"In a program of yours, endpoint {rests} Others ask it as usual.", remedy)
    return does_not("cool-down", f"Endpoint {rests}", remedy)


def _rewritten(connection: sqlite3.Connection) -> bool:
    """Write the file's version over itself, which changes nothing; raise an error where its content is damaged."""
    damage = damage_of(connection)
    if damage is not None:
        raise damage
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
