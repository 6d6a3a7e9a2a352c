"""Runs the checks: each within its limit, none stopped by another, in four lines side by side."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from disco.cli.doctor.desk_servers import check_found_servers, check_local_server
from disco.cli.doctor.finding import Check, Facts, Finding, Found, Setup, unchecked
from disco.cli.doctor.hidden_secrets import clean, known_secrets
from disco.cli.doctor.kept_settings import check_client, check_cool_downs, check_preset, check_state_file
from disco.cli.doctor.local_model import check_first_tokens, check_model_file_of, check_profile
from disco.cli.doctor.machine import check_disk, check_memory, check_python
from disco.cli.doctor.packages import check_extras, check_required, check_runtime
from disco.cli.doctor.plugged import check_plugged_endpoint, check_plugins
from disco.cli.doctor.serve_port import check_attach, check_port
from disco.cli.doctor.server import check_answer, check_api, check_continuation, check_model, check_price
from disco.cli.doctor.server_address import check_connection, check_key_form

__all__ = ["TITLES", "examine"]

_QUICK_S: Final = 15.0
_SERVER_S: Final = 40.0  # of a server that answers slowly, one request after another
_ASKING_S: Final = 150.0

TITLES: Final = ("This machine", "The local model", "The server", "Settings and files", "disco serve")


def _lines(setup: Setup) -> tuple[tuple[Check, ...], ...]:
    """Return the checks, by title. Those of a line run one after another: later ones need what earlier ones found."""
    loading_s = 2 * setup.within_s + _QUICK_S
    return (
        (
            Check("python", _QUICK_S, check_python),
            Check("packages", _QUICK_S, check_required),
            Check("extras", _QUICK_S, check_extras),
            Check("plug-ins", _QUICK_S, check_plugins),
            Check("disk", _QUICK_S, check_disk),
        ),
        (
            Check("runtime", _QUICK_S, check_runtime),
            Check("model file", _QUICK_S, check_model_file_of),
            Check("memory", _QUICK_S, check_memory),
            Check("local model", loading_s, check_first_tokens),
            Check("local model", loading_s, check_plugged_endpoint),
            Check("profile", _QUICK_S, check_profile),
            Check("local server", loading_s, check_local_server),
            Check("found server", _QUICK_S, check_found_servers),
        ),
        (
            Check("key", _QUICK_S, check_key_form),
            Check("connection", _QUICK_S, check_connection),
            Check("server", _SERVER_S, check_api),
            Check("model", _QUICK_S, check_model),
            Check("price", _QUICK_S, check_price),
            Check("answer", _SERVER_S, check_answer),
            Check("continuation", _ASKING_S, check_continuation),
        ),
        (
            Check("preset", _QUICK_S, check_preset),
            Check("settings", _QUICK_S, check_client),
            Check("state file", _QUICK_S, check_state_file),
            Check("cool-down", _QUICK_S, check_cool_downs),
        ),
        (
            Check("attach", _QUICK_S, check_attach),
            Check("port", _QUICK_S, check_port),
        ),
    )


async def examine(setup: Setup, show: Callable[[int, Finding], None]) -> tuple[list[Finding], Facts]:
    """Run all checks; return what they found, in the report's order, and what they know.

    Args:
        setup: what is examined.
        show: called with each finding as soon as it and all before it are known, and with the number of its title.

    Raises:
        BrokenPipeError: `show` has raised it; the other checks are cancelled.
    """
    facts, lines, secrets = Facts(), _lines(setup), known_secrets()
    found: list[list[list[Finding] | None]] = [[None] * len(line) for line in lines]
    ordered: list[Finding] = []

    def tell() -> None:
        flat = [(title, one) for title, line in enumerate(found) for one in line]
        known = 0
        for title, findings in flat:
            if findings is None:
                return
            for finding in findings:
                known += 1
                if known > len(ordered):
                    ordered.append(finding)
                    show(title, finding)

    async def run_line(number: int, line: Sequence[Check]) -> None:
        for place, check in enumerate(line):
            findings = await _run(check, setup, facts)
            found[number][place] = [
                replace(one, what=clean(one.what, secrets), remedy=clean(one.remedy, secrets))
                for one in findings
            ]
            tell()

    is_read = True
    try:
        async with anyio.create_task_group() as group:
            for number, line in enumerate(lines):
                group.start_soon(run_line, number, line)
    except* BrokenPipeError:  # of `show`, as in `disco doctor | head`
        is_read = False
    if not is_read:
        raise BrokenPipeError
    return ordered, facts


async def _run(check: Check, setup: Setup, facts: Facts) -> list[Finding]:
    result: Found = None
    try:
        with anyio.move_on_after(check.limit_s) as scope:
            if inspect.iscoroutinefunction(check.look):
                result = await check.look(setup, facts)
            else:
                # A thread that hangs is left alone; it does not hold up the end of the program.
                result = await anyio.to_thread.run_sync(check.look, setup, facts, abandon_on_cancel=True)  # type: ignore[arg-type]
        if scope.cancelled_caught:
            what = f"This took longer than {check.limit_s:.0f} s and was given up."
            return [unchecked(check.subject, what, "Try again on a quieter machine")]
    except Exception as error:  # noqa: BLE001 - a check that is at fault must not hide what the others find
        return [_crashed(check, error)]
    if result is None:
        return []
    return [result] if isinstance(result, Finding) else result


def _crashed(check: Check, error: Exception) -> Finding:
    """Return that a check is at fault: where, and by what kind of error. Its message may hold anything."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if "disco" in Path(one.filename).parts] or frames
    where = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "nowhere"
    return unchecked(
        check.subject,
        f"The check itself failed: {type(error).__name__} in {where}.",
        "Report it with the output of: disco doctor --json",
    )
