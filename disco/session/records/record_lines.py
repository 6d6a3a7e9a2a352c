"""Lines of a recording: which of them are route records, and what is wrong with the others. The same for every reader.

A recording is a file to which programs append (`disco.RouteLog`). One that is killed, or a full disk, leaves half a
line. So a reader uses the lines that are records, and names and counts the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from disco.errors import ConfigurationError
from disco.session.records.record_versions import is_record, present

__all__ = ["RecordLine", "lines_of", "record_row"]


class RecordLine(NamedTuple):
    """A line of a recording that is not empty; its number counts from 1, as editors count."""

    number: int
    text: bytes


def lines_of(path: Path) -> Iterator[RecordLine]:
    """Yield the lines of a recording that are not empty, one at a time.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    yield RecordLine(number, text)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from error


def record_row(line: str | bytes | Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record, as the present version writes them; their values are not checked.

    Args:
        line: JSON as `RouteRecord.to_json` writes it; or the same, decoded.

    Raises:
        ConfigurationError: it is no route record, or one of a newer version of disco, or has a number beyond all that
            is measured, which nothing can be calculated with. The message has nothing of the line.
    """
    if not isinstance(line, Mapping):
        try:
            line = json.loads(line, parse_int=_integer, parse_float=_real)
        except ConfigurationError:  # a ValueError itself
            raise
        except (ValueError, RecursionError):
            raise ConfigurationError(
                "this is not JSON; a program that was killed may leave half a line"
            ) from None
    if not isinstance(line, Mapping) or not is_record(line):
        raise ConfigurationError("this is not a route record, as disco.RouteLog writes them")
    return present(line)


_MOST: Final = 1e18  # more than any count, time or amount in a record
_BEYOND: Final = f"it has a number beyond {_MOST:g}"


def _integer(digits: str) -> int:
    if len(digits) > len("-1000000000000000000"):
        raise ConfigurationError(_BEYOND)
    return int(digits)


def _real(digits: str) -> float:
    value = float(digits)
    if abs(value) > _MOST:
        raise ConfigurationError(_BEYOND)
    return value
