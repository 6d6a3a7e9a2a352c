"""What an unfinished measurement has found so far, so that Ctrl-C loses nothing: JSON lines beside the output file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from disco.errors import ConfigurationError

__all__ = ["Unfinished"]


class Unfinished:
    """A file that grows by one row for each text; a context manager. Mutable: `rows`, `_file`.

    Args:
        path: the file; an existing one is continued.
        settings: what the rows depend on; of texts only a hash.

    Attributes:
        rows: those in the file, as JSON gives them, in the order of the texts.

    Raises:
        ConfigurationError: the file belongs to a measurement with other settings.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.rows: list[Any] = []
        head = json.dumps(settings, sort_keys=True) + "\n"
        kept = head
        if path.exists():
            first, _, rest = path.read_text(encoding="utf-8").partition("\n")
            if first + "\n" != head:
                raise ConfigurationError(
                    f"{path} belongs to a measurement with other settings or texts. Finish that one, delete the file, "
                    "or name another output."
                )
            whole = rest[: rest.rfind("\n") + 1]  # the last line may have been cut off
            self.rows = [json.loads(line) for line in whole.splitlines()]
            kept += whole
        path.write_text(kept, encoding="utf-8")
        self._file = path.open("a", encoding="utf-8")

    def add(self, row: Any) -> None:
        """Add the next text's row, as JSON has it; the row is on disk when this returns."""
        self.rows.append(row)
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._file.close()
