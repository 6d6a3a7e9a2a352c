"""Finds the data files that come with disco: package data in a wheel, the repository's top in a checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from disco.errors import ConfigurationError

__all__ = ["resource_dir"]


def resource_dir(kind: Literal["profiles", "policies"]) -> Path:
    """The folder that holds the shipped `*.toml` files of one kind.

    Raises:
        ConfigurationError: the installation carries no such folder.
    """
    package = Path(__file__).resolve().parent
    for folder in (package / "_data" / kind, package.parent / kind):
        # A folder of that name without data belongs to another package (site-packages/policies, say).
        if folder.is_dir() and any(folder.glob("*.toml")):
            return folder
    raise ConfigurationError(
        f"this installation of disco has no {kind}/*.toml; reinstall the package disco-llm"
    )
