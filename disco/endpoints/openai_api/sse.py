"""Server-sent events, split from raw bytes many at a time.

Written for speed: a read that holds whole `data: {...}` events, as nearly every read does, costs one
`bytes.split` and one slice per event. A slower path handles everything else that the format allows.
https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

from __future__ import annotations

import json
import math
import re

__all__ = [
    "MAX_EVENT_BYTES",
    "ErrorData",
    "EventSplitter",
    "EventTooLargeError",
    "PerhapsErrorData",
    "last_event",
]

MAX_EVENT_BYTES = 64 * 2**20  # images come in base64 in one event, and once more in the last one of all
MAX_EVENT_LINES = 20_000
_COMMENTS = re.compile(rb"^:[^\n]*\n", re.MULTILINE)
_BOM = b"\xef\xbb\xbf"
# Types of events that say that the connection lives; what data they have is no chunk, or nearly never.
_LIFE_SIGNS = (b"ping", b"heartbeat", b"keepalive", b"keep-alive")


class EventTooLargeError(ValueError):
    """An event has more than `MAX_EVENT_BYTES`, or `MAX_EVENT_LINES`."""


class ErrorData(bytes):
    """The data of an event that has the type `error` (`event: error`)."""

    __slots__ = ()


class PerhapsErrorData(ErrorData):
    """The data of an event whose type only sounds like an error (`event: exception`)."""

    __slots__ = ()


class EventSplitter:
    """Splits reads of any size into the data of the events that they complete.

    Bytes stay bytes until an event is complete, so a character split over two reads survives.
    """

    # Mutable: _rest, the bytes of an unfinished event; _skip_lf, the last read ended in CR; _at_start.
    __slots__ = ("_at_start", "_most_bytes", "_most_lines", "_rest", "_skip_lf")

    def __init__(self, *, most_bytes: float = MAX_EVENT_BYTES) -> None:
        """Take the size of an event, in bytes, above which the splitter gives up; `inf`: it never does."""
        self._most_bytes = most_bytes
        self._most_lines = MAX_EVENT_LINES if most_bytes < math.inf else math.inf
        self._rest = bytearray()
        self._skip_lf = False
        self._at_start = True

    def feed(self, data: bytes) -> list[bytes]:
        """Return the data of every event that `data` completes, in order. Events without data are left out.

        Takes time in proportion to `data`: whoever cannot tell how long it is gives it in parts.

        Raises:
            EventTooLargeError: an event is larger than `MAX_EVENT_BYTES`, or has too many lines.
        """
        if (
            data.startswith(b"data: ")
            and data.find(b"\n") == len(data) - 2
            and data.endswith(b"\n\n")
            and data[-3] > _SPACE
            and not (self._rest or self._at_start or self._skip_lf or b"\r" in data)
        ):
            return [data[6:-2]]  # one whole event, as most servers write them
        if self._skip_lf and data:
            # The CR at the end of the last read already ended the line; this LF belongs to it.
            self._skip_lf = False
            if data[:1] == b"\n":
                data = data[1:]
        if b"\r" in data:
            self._skip_lf = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._rest:
            if b"\n\n" not in data and not (data[:1] == b"\n" and self._rest.endswith(b"\n")):
                self._append(data)
                self._check_size()
                return []
            data = bytes(self._rest) + data
        else:
            data = data.lstrip(b"\n")
        parts = data.split(b"\n\n")
        self._rest = bytearray(parts.pop())
        self._check_size()
        if not parts:
            return parts
        if self._at_start:
            self._at_start = False
            parts[0] = parts[0].removeprefix(_BOM)
        events = []
        for part in parts:
            if part.startswith(b"data: ") and part[-1] > _SPACE and b"\n" not in part:
                events.append(part[6:])
            elif part and (event := self._event(part)) is not None:
                events.append(event)
        return events

    def end(self) -> bytes | None:
        """Return the data of a last event that was not ended by an empty line, if there is one.

        The standard drops such an event; some servers omit the last empty line after `[DONE]`.
        """
        rest, self._rest = bytes(self._rest), bytearray()
        return self._event(rest.removeprefix(_BOM) if self._at_start else rest) if rest else None

    def _event(self, block: bytes) -> bytes | None:
        """Return the data of an event with several lines, comments or other fields; None without data."""
        if block.count(b"\n") > self._most_lines:
            raise EventTooLargeError(f"an event of more than {self._most_lines} lines")
        data: list[bytes] = []
        kind = b""
        for line in block.split(b"\n"):
            name, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if name == b"data":
                data.append(value)
            elif name == b"event":
                kind = value
        joined = b"\n".join(data)
        if kind == b"error":
            return ErrorData(joined)
        if any(word in kind.lower() for word in (b"error", b"exception")):
            return PerhapsErrorData(joined)
        is_sign = kind in _LIFE_SIGNS and b'"choices"' not in joined
        return None if is_sign or not joined.strip() else joined

    def _append(self, data: bytes) -> None:
        """Add to the unfinished event, in place: one that comes byte by byte is not copied for each byte.

        Comments between its lines are dropped as they come: a server may send them for as long as it thinks.
        """
        if not self._rest.endswith(b"\n"):
            line, end, data = data.partition(b"\n")
            self._rest += line + end
        self._rest += _COMMENTS.sub(b"", data)

    def _check_size(self) -> None:
        if self._rest.startswith(b":") and b"\n" not in self._rest:
            del self._rest[1:]  # a comment between two events may be of any length
        if len(self._rest) > self._most_bytes:
            raise EventTooLargeError(f"an event of more than {self._most_bytes / 2**20:g} MiB")


_SPACE = 0x20  # an event that ends in one may have no data but spaces


def last_event(splitter: EventSplitter) -> list[bytes] | None:
    """Return the data after the last empty line of a stream that has ended; None where its event is cut."""
    last = splitter.end()
    if last is None:
        return []
    try:
        if not last.startswith(b"[DONE]"):
            json.loads(last)
    except (ValueError, RecursionError):
        return None
    return [last]
