"""Reads the settings files that a user names: presets, profiles, the configuration of `disco serve`, keys."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

from disco.errors import ConfigurationError, cut

__all__ = ["settings_text", "settings_toml"]

_MOST_BYTES: Final = 2**20


def settings_text(path: Path, what: str) -> str:
    """Return the text of a file that a user named.

    Args:
        path: the file.
        what: what it is to the user, such as "the preset"; the message begins with it.

    Raises:
        ConfigurationError: it cannot be read, is no regular file (/dev/zero never ends), too long for settings, or no
            UTF-8 text.
    """
    named = _named(path, what)
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
        raise ConfigurationError(f"{_named(path, what)} is not valid TOML: {error}.") from error
    except RecursionError:
        raise ConfigurationError(f"{_named(path, what)} is nested too deep to be settings.") from None


def _named(path: Path, what: str) -> str:
    return f"{what} {cut(str(path), 300)}"
