"""`disco plugins`: the policies and the kinds of endpoint that installed packages add, and whether they load."""

from __future__ import annotations

import argparse
from collections import Counter

from disco._plugins import ENDPOINTS, POLICIES, Installed, installed
from disco.cli.console import Screen
from disco.client.endpoint_catalog.plugged import can_be_kind
from disco.dispatch.policies.plugged_policy import takes
from disco.dispatch.policies.policy_registry import OWN_NAMES, check_options
from disco.errors import ConfigurationError

__all__ = ["add", "plugin_faults"]


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
    options = takes(one)[1]
    return f"loads; options: {', '.join(sorted(options))}" if options else "loads"


def plugin_faults() -> dict[Installed, str | None]:
    """Import every plug-in; return what is wrong with each, in words, or None where it can be used."""
    found = (*installed(POLICIES), *installed(ENDPOINTS))
    declared = Counter((one.group, one.name) for one in found)
    return {one: _fault(one, declared[one.group, one.name]) for one in found}


def _fault(one: Installed, declared: int) -> str | None:
    if declared > 1:
        return f"declared by {declared} packages: uninstall all but one"
    if one.group == POLICIES and one.name in OWN_NAMES:
        return "never used: disco has a policy of this name"
    if one.group == ENDPOINTS and not can_be_kind(one.name):
        return "never used: texts that begin with this name mean something else"
    try:
        if one.group == POLICIES:
            check_options(one.name, {})
        else:
            one.load()
    except ConfigurationError as error:
        return str(error)
    return None
