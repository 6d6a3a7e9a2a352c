"""Plug-ins: what installed packages add to disco through entry points. Found by name, and imported when it is used.

A fault of one package shows only where its own name is used: listing imports nothing, and two packages with one name
refuse that name alone. Every message names the package, because the reader of the message did not write it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from disco.errors import ConfigurationError

__all__ = ["ENDPOINTS", "POLICIES", "Installed", "find", "installed"]

POLICIES: Final = "disco.policies"
ENDPOINTS: Final = "disco.endpoints"

_WHAT = {POLICIES: "policy", ENDPOINTS: "kind of endpoint"}


@dataclass(frozen=True, slots=True)
class Installed:
    """One entry point of an installed package.

    Attributes:
        group: `POLICIES` or `ENDPOINTS`.
        name: how users name it.
        value: what it names, such as "package.module:attribute".
        package: the distribution that declares it, with its version.
    """

    group: str
    name: str
    value: str
    package: str

    @property
    def label(self) -> str:
        """How messages name it, such as "the policy 'coin' of the package coin-policy 1.0"."""
        return f"the {_WHAT[self.group]} {self.name!r} of the package {self.package}"

    def load(self) -> Any:
        """Import what the entry point names.

        Raises:
            ConfigurationError: the import fails, or what it names cannot be called.
        """
        try:
            loaded = EntryPoint(self.name, self.value, self.group).load()
        except (Exception, SystemExit) as error:  # a package may fail in any way when it is imported
            # The text of an ImportError names a module; any other text may quote anything.
            why = f": {error}" if isinstance(error, ImportError | AttributeError) else ""
            raise ConfigurationError(
                f"{self.label} names {self.value}, which cannot be imported ({type(error).__name__}{why}). "
                "Reinstall or update that package, or uninstall it."
            ) from error
        if not callable(loaded):
            raise ConfigurationError(
                f"{self.label} names {self.value}, which cannot be called. Its author must name a function or a class."
            )
        return loaded


def installed(group: str) -> tuple[Installed, ...]:
    """Return what the installed packages declare in a group, sorted by name; nothing is imported."""
    found = {_installed(point) for point in entry_points(group=group)}
    return tuple(sorted(found, key=lambda one: (one.name, one.package)))


def find(group: str, name: str) -> Installed | None:
    """Return the entry point of that name; None where no installed package has one.

    Raises:
        ConfigurationError: several packages declare that name.
    """
    found = {_installed(point) for point in entry_points(group=group, name=name)}
    if len(found) > 1:
        packages = _listed(sorted(one.package for one in found))
        raise ConfigurationError(
            f"The {_WHAT[group]} {name!r} is declared by {packages}. Uninstall all but one of them."
        )
    return next(iter(found), None)


def _installed(point: EntryPoint) -> Installed:
    dist = point.dist
    package = "(unknown)" if dist is None else f"{dist.name} {dist.version}"
    return Installed(point.group, point.name, point.value, package)


def _listed(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}"
