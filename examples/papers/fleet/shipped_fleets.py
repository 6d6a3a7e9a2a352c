"""The scenarios that the package carries."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from disco.errors import ConfigurationError, nearest

__all__ = ["fleet_path", "shipped_fleets"]

_FOLDER: Final = Path(__file__).resolve().parent / "setups"


def shipped_fleets() -> list[str]:
    """Return the names of the shipped scenarios."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def fleet_path(name: str) -> Path:
    """Return the path of a scenario.

    Args:
        name: of a shipped one, or a path (it ends in ".toml" or has a path separator).

    Raises:
        ConfigurationError: no shipped scenario has the name.
    """
    if name.endswith(".toml") or {"/", os.sep} & set(name):
        return Path(name)
    if name not in shipped_fleets():
        raise ConfigurationError(
            f"no scenario is called {name!r}. {nearest(name, shipped_fleets())} "
            'To use a file of your own, give its path, such as "./mine.toml".'
        )
    return _FOLDER / f"{name}.toml"
