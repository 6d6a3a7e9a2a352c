"""What a layer server says of itself, and why it refuses rows, as plain data and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from math import isfinite
from typing import Any, Final, Self

from disco.speculate.messages import BadMessageError

__all__ = ["Code", "LayerFacts"]

Points = tuple[tuple[int, float], ...]


class Code(IntEnum):
    """Why rows were refused."""

    LOST = 1
    """The server does not have what comes before the rows; the client sends rows from what it has on."""
    BAD_FRAME = 2
    """The frame breaks the protocol; the connection closes."""
    BUSY = 3
    """A limit of the session or the server; later it may go."""
    TOO_LONG = 4
    """The rows end behind the server's context."""
    NOT_FINITE = 5
    """A state is NaN or infinite, going up or coming out."""
    FAILED = 6
    """The computation failed; the server has nothing of the sequence."""


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """What a layer server says of itself.

    Attributes:
        model: its name.
        fingerprint: of the model that was cut; a device needs the same, and as many `layers`.
        layers: the first layers, which the device has.
        total_layers: of the whole model.
        hidden: length of a state.
        context_tokens: positions of one sequence.
        slots: sequences whose caches it keeps at the same time.
        most_rows: of one pass; longer chunks take several.
        most_sequences: that one session may have.
        hold_s: how long a session's sequences are kept without a connection, s.
        most_frame_bytes: of the longest message that is read.
        compute_s: (rows, seconds) of one pass, rising in rows; measured before the first device came. Times may fall.
        seen_s: the same of the passes of late, with rows of all devices: the paper's g.
        load: rows of a pass of late: the paper's mu. Where a session asks, those of others only.
        busy: sequences that are kept now.
        waiting: chunks that wait for the model now.
    """

    model: str
    fingerprint: str
    layers: int
    total_layers: int
    hidden: int
    context_tokens: int
    slots: int
    most_rows: int
    most_sequences: int = 1
    hold_s: float = 30.0
    most_frame_bytes: int = 2**24
    compute_s: Points = ()
    seen_s: Points = ()
    load: float = 0.0
    busy: int = 0
    waiting: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON values."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Read the facts.

        Raises:
            BadMessageError: they break the protocol.
        """
        if not isinstance(content, dict):
            raise BadMessageError("the facts must be a JSON object")
        values: dict[str, Any] = {}
        for name in _TEXTS:
            values[name] = content.get(name)
            if not isinstance(values[name], str):
                raise BadMessageError(f"{name} must be a text")
        for name in _WHOLE:
            lowest = 0 if name in ("busy", "waiting") else 1
            values[name] = content.get(name, 0 if lowest == 0 else None)
            if type(values[name]) is not int or not lowest <= values[name] <= 2**40:
                raise BadMessageError(f"{name} must be a whole number from {lowest} on")
        for name in ("load", "hold_s"):
            values[name] = content.get(name, 0.0)
            if type(values[name]) not in (int, float) or not 0 <= values[name] < 2**40:
                raise BadMessageError(f"{name} must be a number from 0 on")
        for name in ("compute_s", "seen_s"):
            values[name] = _points(content.get(name, []), name)
        return cls(**values)


_TEXTS: Final = ("model", "fingerprint")
_WHOLE: Final = (
    "layers",
    "total_layers",
    "hidden",
    "context_tokens",
    "slots",
    "most_rows",
    "most_sequences",
    "most_frame_bytes",
    "busy",
    "waiting",
)


def _points(content: Any, name: str) -> Points:
    try:
        points = tuple((int(rows), float(seconds)) for rows, seconds in content)
    except (TypeError, ValueError, OverflowError):
        raise BadMessageError(f"{name} must be a list of pairs of numbers") from None
    if any(rows < 1 or not (isfinite(seconds) and 0 <= seconds < 3600) for rows, seconds in points):
        raise BadMessageError(f"{name} has rows or seconds that no pass can have")
    return points
