"""`disco plugins`: the policies and the kinds of endpoint that installed packages add, and whether they load."""

from __future__ import annotations

import argparse

from disco._plugins import POLICIES, Installed
from disco.cli.console import Screen
from disco.cli.plugins.plugin_faults import plugin_faults

__all__ = ["add"]

_HEADER = ("name", "adds", "package", "state")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco plugins`."""
    parser.description = (
        "Imports every plug-in of the installed packages and says whether it loads. The exit status is 1 "
        "if one does not. See docs/how-to/plugin.md."
    )
    parser.set_defaults(run=_run)


def _run(screen: Screen, arguments: argparse.Namespace) -> int:
    del arguments
    faults = plugin_faults()
    if not faults:
        screen.line(
            "No installed package adds a policy (disco.policies) or a kind of endpoint (disco.endpoints)."
        )
        return 0
    rows = [
        (
            one.name if one.group == POLICIES else f"{one.name}:...",
            "policy" if one.group == POLICIES else "endpoint",
            one.package,
            fault or _options(one),
        )
        for one, fault in faults.items()
    ]
    screen.table("", _HEADER, rows)
    return 1 if any(faults.values()) else 0


def _options(one: Installed) -> str:
    if one.group != POLICIES:
        return "loads"
    from disco.dispatch.policies.plugged_policy import takes  # noqa: PLC0415 - numpy comes with it

    options = takes(one)[1]
    return f"loads; options: {', '.join(sorted(options))}" if options else "loads"
