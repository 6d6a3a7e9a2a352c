"""Plug-ins: whether those of the installed packages load, and whether the one that is the local side answers."""

from __future__ import annotations

import time

import anyio.to_thread

from disco.cli.doctor.finding import Facts, Finding, Setup, does_not, split_message, unchecked, works
from disco.cli.doctor.local_model import tried
from disco.cli.plugins import plugin_faults
from disco.errors import ConfigurationError, DiscoError, EndpointFailure

__all__ = ["check_plugged_endpoint", "check_plugins"]


async def check_plugins(setup: Setup, facts: Facts) -> list[Finding]:
    """Import every plug-in; say nothing where none is installed."""
    del setup, facts
    faults = await anyio.to_thread.run_sync(plugin_faults, abandon_on_cancel=True)
    found = [
        does_not(
            "plug-ins",
            f"{one.label}: {fault}.",
            f"pip uninstall {one.package.partition(' ')[0]}, or update it",
        )
        for one, fault in faults.items()
        if fault is not None
    ]
    usable = sorted(one.name for one, fault in faults.items() if fault is None)
    if usable:
        found.append(works("plug-ins", f"Installed packages add {', '.join(usable)}."))
    return found


async def check_plugged_endpoint(setup: Setup, facts: Facts) -> Finding | None:
    """Make the endpoint that `local` names, and let it write a few tokens; elsewhere, that may cost money."""
    del facts
    plugin, shown = setup.plugin, setup.shown_local
    if plugin is None or shown is None:
        return None
    try:
        endpoint = plugin.make("device")
    except ConfigurationError as error:
        what, remedy = split_message(error)
        return does_not("local model", what, remedy or "disco plugins")
    try:
        if endpoint.reach == "any" and not setup.ask:
            what = f"{shown} was made, and not asked: it may send the question anywhere, and cost money."
            return unchecked("local model", what, "disco doctor --ask")
        began_at = time.perf_counter()
        await endpoint.warm_up()
        return await tried(endpoint, shown, time.perf_counter() - began_at)
    except (EndpointFailure, DiscoError) as error:
        what, remedy = split_message(error.error if isinstance(error, EndpointFailure) else error)
        return does_not(
            "local model", what, remedy or "Try what it runs by hand, or name another with --local"
        )
    finally:
        await endpoint.aclose()
