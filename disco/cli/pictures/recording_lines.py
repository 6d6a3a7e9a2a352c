"""Finds answers in a recording without reading more of it than is needed."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from disco.errors import ConfigurationError
from disco.record.reading import RecordLine, lines_of, record_in

__all__ = ["answer_at", "newest"]

LAST = "last"


def newest(path: Path, count: int) -> tuple[list[RecordLine], int]:
    """Return the last lines, at most `count`, and how many there are in all. Only these are kept and none is parsed."""
    kept: deque[RecordLine] = deque(maxlen=count)
    total = 0
    for line in lines_of(path):
        kept.append(line)
        total += 1
    return list(kept), total


def answer_at(path: Path, which: str) -> RecordLine:
    """Return the line of one answer.

    Args:
        path: the recording.
        which: "last"; the number of a line; or when the request came (`created_s`, Unix time in seconds, with a decimal
            point).

    Raises:
        ConfigurationError: there is no such answer, or it is not told what answer.
    """
    if which == LAST:
        found, _ = newest(path, 1)
        if not found:
            raise _no_answers(path)
        return found[0]
    if which.isdecimal():
        return _line(path, int(which))
    if which.replace(".", "", 1).isdecimal():
        return _created(path, which)
    raise ConfigurationError(
        f"--answer {which}: name the number of a line, as `disco show {path}` lists them, the time of the request "
        "(created_s of its record), or last"
    )


def _no_answers(path: Path) -> ConfigurationError:
    return ConfigurationError(f"{path} has no answers yet")


def _line(path: Path, number: int) -> RecordLine:
    last = 0
    for line in lines_of(path):
        if line.number == number:
            return line
        last = line.number
    if not last:
        raise _no_answers(path)
    raise ConfigurationError(f"{path} has no answer in line {number}; its last one is in line {last}")


def _created(path: Path, which: str) -> RecordLine:
    for line in lines_of(path):
        if which.encode() in line.text and record_in(line, path).created_s == float(which):
            return line
    raise ConfigurationError(f"{path} has no answer whose created_s is {which}")
