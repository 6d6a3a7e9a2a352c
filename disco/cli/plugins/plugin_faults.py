"""What is wrong with the plug-ins of the installed packages."""

from __future__ import annotations

from collections import Counter

from disco._plugins import ENDPOINTS, POLICIES, Installed, installed
from disco.errors import ConfigurationError

__all__ = ["plugin_faults"]


def plugin_faults() -> dict[Installed, str | None]:
    """Import every plug-in; return what is wrong with each, in words, or None where it can be used."""
    found = (*installed(POLICIES), *installed(ENDPOINTS))
    declared = Counter((one.group, one.name) for one in found)
    return {one: _fault(one, declared[one.group, one.name]) for one in found}


def _fault(one: Installed, declared: int) -> str | None:
    from disco.client.endpoint_catalog.plugged import can_be_kind  # noqa: PLC0415 - as below
    from disco.dispatch.policies.policy_registry import OWN_NAMES, check_options  # noqa: PLC0415 - numpy comes with it

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
