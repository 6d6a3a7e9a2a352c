"""What the application chose about saved prompts: whether, where, how much, and which."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import platformdirs

from disco.errors import ConfigurationError

__all__ = ["MAX_BYTES", "PromptCache", "default_folder"]

MAX_BYTES: Final = 512 * 2**20
_MAX_ENTRIES: Final = 64


def default_folder() -> Path:
    """Return the folder of saved prompts where the application names none: in the platform's folder for caches."""
    return platformdirs.user_cache_path("disco", appauthor=False) / "prompts"


@dataclass(frozen=True, slots=True)
class PromptCache:
    """Lets a model on this machine save what it has read of prompts, so that the next start need not read it again.

    The files are data derived from texts: they hold the tokens of prompts and answers, from which anyone who can read
    them can restore the texts. They are not encrypted; only the user's account can read them. Prompts that were marked
    as private are not saved: those of requests that may not go anywhere (`local_only`, a `reach`, the preset
    `private`, the local model asked for by its name), and of clients with a `redact` hook.

    Attributes:
        folder: where the files lie; None: in the platform's folder for caches. Several programs may share one.
        max_bytes: the most that all files in the folder take, bytes. What was used least recently goes first.
        max_entries: the most files.
        private: save private prompts, too.

    Raises:
        ConfigurationError: a number is below 1, or the folder is a file.
    """

    folder: str | os.PathLike[str] | None = None
    max_bytes: int = MAX_BYTES
    max_entries: int = _MAX_ENTRIES
    private: bool = False

    def __post_init__(self) -> None:
        for name, value in (("max_bytes", self.max_bytes), ("max_entries", self.max_entries)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(
                    f"prompt_cache: {name} must be a whole number above 0, not {value!r}."
                )
        if self.folder is not None and not os.fspath(self.folder):
            raise ConfigurationError("prompt_cache: the folder's name is empty. Name one, or leave it out.")
        if self.path.exists() and not self.path.is_dir():
            raise ConfigurationError(
                f"prompt_cache: {self.path} is a file. Name a folder; it is made if it does not exist."
            )

    @property
    def path(self) -> Path:
        """The folder."""
        return default_folder() if self.folder is None else Path(self.folder).expanduser()

    @property
    def settings(self) -> dict[str, str | int | bool]:
        """The arguments of an equal cache in another process: numbers and texts."""
        sizes = {"max_bytes": self.max_bytes, "max_entries": self.max_entries}
        return {"folder": str(self.path.absolute()), **sizes, "private": self.private}

    @classmethod
    def of(cls, given: bool | str | os.PathLike[str] | PromptCache | None) -> PromptCache | None:  # noqa: FBT001 - as the client's
        """Return what an argument `prompt_cache` means; None: nothing is saved.

        Args:
            given: True: the usual folder and size. A path: that folder. False or None: no prompt is saved.

        Raises:
            ConfigurationError: it is something else, or the folder is a file.
        """
        if given is None or given is False:
            return None
        if given is True:
            return cls()
        if isinstance(given, PromptCache):
            return given
        if isinstance(given, str | os.PathLike):
            return cls(folder=given)
        raise ConfigurationError(
            f"prompt_cache is a {type(given).__name__}. Give True, a folder, or disco.PromptCache(...)."
        )
