"""What an unfinished measurement has found so far, so that Ctrl-C loses nothing: JSON lines beside the output file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from disco.errors import ConfigurationError

__all__ = ["Unfinished", "remove_finished"]


class Unfinished:
    """A file that grows by one row for each text; a context manager. Mutable: `rows`, `_file`.

    A file without rows does not outlive the context: it would only be in the way of the next command.

    Args:
        path: the file; an existing one is continued.
        settings: what the rows depend on; of texts only a hash.

    Attributes:
        rows: those in the file, as JSON gives them, in the order of the texts.

    Raises:
        ConfigurationError: the file belongs to a measurement with other settings, or it cannot be read or written.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.rows: list[Any] = []
        self._path = path
        head = json.dumps(settings, sort_keys=True).encode() + b"\n"
        try:
            found = path.read_bytes() if path.exists() else b""
        except OSError as broken:
            raise ConfigurationError(f"{path} cannot be read: {broken.strerror or broken}") from broken
        if found and not found.startswith(head):
            raise ConfigurationError(
                f"{path} belongs to a measurement with other settings or texts. Finish that one, delete the file, "
                "or name another output."
            )
        whole = found[: found.rfind(b"\n") + 1]  # the last line may have been cut off
        try:
            self.rows = [json.loads(line) for line in whole[len(head) :].splitlines()]
        except ValueError as broken:
            raise ConfigurationError(f"{path} is damaged. Delete it to begin anew.") from broken
        try:
            self._file = path.open("ab")
            self._file.truncate(len(whole))
            self._file.write(b"" if whole else head)
        except OSError as broken:
            raise ConfigurationError(f"{path} cannot be written: {broken.strerror or broken}") from broken

    def add(self, row: Any) -> None:
        """Add the next text's row, as JSON has it; the row is in the file when this returns."""
        self.rows.append(row)
        self._file.write(json.dumps(row).encode() + b"\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._file.close()
        if not self.rows:
            self._path.unlink(missing_ok=True)


def remove_finished(path: Path, used: int) -> None:
    """Remove the file once `used` of its rows are in the output; one with more rows stays for a longer measurement."""
    if path.read_bytes().count(b"\n") - 1 <= used:  # the first line is the settings
        path.unlink()
