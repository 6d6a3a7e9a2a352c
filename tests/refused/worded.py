"""Reads the two lists of wordings: `too_long.txt` and `not_too_long.txt`, which say what their rows are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from faults.in_memory import Reply

__all__ = ["NOT_TOO_LONG", "TOO_LONG", "Worded"]

_HERE = Path(__file__).parent


class Worded(NamedTuple):
    """The kind of failure that an error is, who says it, its status and its whole body."""

    kind: str
    who: str
    status: int
    body: Any

    def __str__(self) -> str:
        return f"{self.kind}: {self.who}"

    @property
    def data(self) -> bytes:
        """The body as it is sent."""
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()

    @property
    def reply(self) -> Reply:
        """It as a response."""
        sort = "text/plain" if isinstance(self.body, str) else "application/json"
        return Reply([self.data], self.status, {"content-type": sort})


def _rows(name: str, *kind: str) -> list[Worded]:
    rows = []
    for line in (_HERE / name).read_text(encoding="utf-8").split("\n"):
        if line and not line.startswith("#"):
            what, who, status, body = [*kind, *line.split(" | ", 3 - len(kind))]
            rows.append(Worded(what, who, int(status), json.loads(body)))
    return rows


TOO_LONG = _rows("too_long.txt", "context_length")
NOT_TOO_LONG = _rows("not_too_long.txt")
