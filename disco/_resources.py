"""Finds the data files that are installed with disco, and reads the settings files that a user names.

Profiles and presets are package data in a wheel; in a checkout they are folders at the top of the repository. Style
sheets and scripts are in the package that uses them.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal

from disco.errors import ConfigurationError

__all__ = ["resource_dir", "resource_text", "settings_text", "settings_toml"]

_MOST_BYTES: Final = 2**20
_MOST_SHOWN: Final = 300  # characters of a path in a message


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


def settings_text(path: Path, what: str) -> str:
    """Return the text of a file that a user named.

    Args:
        path: the file.
        what: what it is to the user, such as "the preset"; the message begins with it.

    Raises:
        ConfigurationError: it cannot be read, is no regular file (/dev/zero never ends), too long for settings, or no
            UTF-8 text.
    """
    named = f"{what} {_short(path)}"
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ConfigurationError(f"{named} is no regular file. Name a text file.")
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{named} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:  # a path that no file can have
        raise ConfigurationError(f"{named} cannot be read: {error}.") from error
    if len(data) > _MOST_BYTES:
        raise ConfigurationError(f"{named} is longer than 1 MiB, so it holds no settings. Name another file.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:  # PowerShell 5 writes UTF-16 with ">"
        raise ConfigurationError(f"{named} is no UTF-8 text. Save it as UTF-8.") from error


def settings_toml(path: Path, what: str) -> dict[str, Any]:
    """Return the content of a TOML file that a user named. Raises as `settings_text`, and where it is no TOML."""
    try:
        return tomllib.loads(settings_text(path, what))
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{what} {_short(path)} is not valid TOML: {error}.") from error
    except RecursionError:
        raise ConfigurationError(f"{what} {_short(path)} is nested too deep to be settings.") from None


def _short(path: Path) -> str:
    text = str(path)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
