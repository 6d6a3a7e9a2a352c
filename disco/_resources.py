"""Finds the data files that are installed with disco.

Profiles and presets are package data in a wheel; in a checkout they are folders at the top of the repository. Style
sheets and scripts are in the package that uses them.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Literal

from disco.errors import ConfigurationError

__all__ = ["resource_dir", "resource_text"]


def resource_dir(kind: Literal["profiles", "policies"]) -> Path:
    """Return the folder that holds the shipped `*.toml` files of one kind.

    Raises:
        ConfigurationError: the installation has no such folder.
    """
    package = Path(__file__).resolve().parent
    for folder in (package / "_data" / kind, package.parent / kind):
        # A folder of that name without data belongs to another package (site-packages/policies, say).
        if folder.is_dir() and any(folder.glob("*.toml")):
            return folder
    raise ConfigurationError(
        f"this installation of disco has no {kind}/*.toml; reinstall the package disco-llm"
    )


def resource_text(package: str, file: str) -> str:
    """Return the text of a file in a package, as in `resource_text("disco.replay.report", "page.css")`."""
    return files(package).joinpath(file).read_text(encoding="utf-8")
