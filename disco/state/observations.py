"""Observations in the state file: what was measured, of whom, and when; the newest of each kind are kept.

An observation is a number, with a second one where its kind needs it. What the numbers mean is known to those that
learn from them. So a new kind of observation changes nothing here.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

__all__ = [
    "EVERYONE",
    "HALVED_AFTER_S",
    "OLDEST_S",
    "Learnt",
    "Observation",
    "Subject",
    "append_observations",
    "counting",
    "is_storable",
    "observations_since",
    "prune_series",
    "read_observations",
]

KEPT: Final = 512
"""How many observations of one kind are kept of one subject."""

KEPT_OF: Final[Mapping[str, int]] = {"answer_tokens": 1000, "prompt_tokens": 1000}
"""The kinds of which another number is kept."""

MOST_SERIES: Final = 512
"""How many pairs of a subject and a kind are kept; those go first that were not observed for the longest time."""

_KEPT_SHARE = (
    7 / 8
)  # of them where they became too many: to find the oldest means to read all, so it is done rarely

OLDEST_S: Final = 28 * 86_400.0
"""Observations are deleted after this time, seconds."""

HALVED_AFTER_S: Final = 3 * 86_400.0
"""Of observations that are so old, half as many count as of new ones; seconds."""

_MOST_NAME = 200  # characters
_MOST_VALUE = (
    1e9  # seconds, tokens or joules: a greater one was not measured, and nothing can be fitted to it
)
_MOST_NEWS = 256  # observations of other processes that are read at once; of more, the newest


class Subject(NamedTuple):
    """What observations are about. All fields are empty for those that are about no endpoint.

    Attributes:
        endpoint: the endpoint's name in its client.
        address: "host:port" of a server, without credentials; "" for a model that disco runs.
        model: the name of the model that answers; "" where the server decides that, and does not say it.
    """

    endpoint: str = ""
    address: str = ""
    model: str = ""


EVERYONE: Final = Subject()


class Observation(NamedTuple):
    """One measured value.

    Attributes:
        kind: what was measured, with its unit ("ttft_s").
        at: when, Unix time, seconds.
        value: the value.
        extra: a second value, whose meaning the kind gives.
        number: of an observation in the file: its place in the order in which they were written.
    """

    kind: str
    at: float
    value: float
    extra: float = 0.0
    number: int = 0


class Learnt(NamedTuple):
    """Observations that were read, oldest first, and the number of the newest one in the whole file."""

    observations: list[tuple[Subject, Observation]]
    newest: int


def is_storable(names: Iterable[str]) -> bool:
    """Return whether names may be stored: of a request's own making, a name may be as long as a prompt."""
    return all(len(name) <= _MOST_NAME and name.isprintable() for name in names)


def counting(observations: Sequence[Observation], now: float) -> list[Observation]:
    """Return those that still count, of any number of kinds; the older the newest ones are, the fewer count.

    The i-th newest of its kind (from 0), of age a, counts if i < n * 2^(-a / HALVED_AFTER_S), where n is the number of
    this kind that is kept. Age is not negative, whatever a clock that was set says.
    """
    seen: dict[str, int] = {}
    kept = []
    for one in reversed(observations):
        number = seen.get(one.kind, 0)
        age_s = max(0.0, now - one.at)
        if number < KEPT_OF.get(one.kind, KEPT) * 2.0 ** (-age_s / HALVED_AFTER_S) and age_s < OLDEST_S:
            seen[one.kind] = number + 1
            kept.append(one)
    kept.reverse()
    return kept


def append_observations(
    connection: sqlite3.Connection, writer: int, observations: Iterable[tuple[Subject, Observation]]
) -> None:
    """Add observations in their order; of each kind and subject, the newest are kept.

    Args:
        connection: within a transaction.
        writer: number of the writer, by which it knows its own observations again.
        observations: what was measured, of whom.
    """
    before = _newest_series(connection)
    for subject, one in observations:
        if not (is_storable(subject) and 0 <= one.value < _MOST_VALUE and 0 <= one.extra < _MOST_VALUE):
            continue
        series = _series(connection, one.kind, subject)
        connection.execute(
            "INSERT INTO observations (series, writer, at, value, extra) VALUES (?, ?, ?, ?, ?)",
            (series, writer, one.at, one.value, one.extra),
        )
        connection.execute(
            "DELETE FROM observations WHERE series = ? AND id <= "
            "(SELECT id FROM observations WHERE series = ? ORDER BY id DESC LIMIT 1 OFFSET ?)",
            (series, series, KEPT_OF.get(one.kind, KEPT)),
        )
    if _newest_series(connection) != before:
        (count,) = connection.execute("SELECT count(*) FROM series").fetchone()
        if count > MOST_SERIES:
            _keep_series(connection, int(_KEPT_SHARE * MOST_SERIES))


def _newest_series(connection: sqlite3.Connection) -> int | None:
    newest: int | None = connection.execute("SELECT max(id) FROM series").fetchone()[0]
    return newest


def _series(connection: sqlite3.Connection, kind: str, subject: Subject) -> int:
    key = (kind, *subject)
    found = connection.execute(
        "SELECT id FROM series WHERE kind = ? AND endpoint = ? AND address = ? AND model = ?", key
    ).fetchone()
    if found is None:
        connection.execute("INSERT INTO series (kind, endpoint, address, model) VALUES (?, ?, ?, ?)", key)
        found = connection.execute("SELECT last_insert_rowid()").fetchone()
    return int(found[0])


def read_observations(connection: sqlite3.Connection, subjects: Iterable[Subject], writer: int) -> Learnt:
    """Return all observations of these subjects but the writer's own."""
    rows: list[tuple[Subject, Observation]] = []
    for subject in subjects:
        series = connection.execute(
            "SELECT id, kind FROM series WHERE endpoint = ? AND address = ? AND model = ?", subject
        ).fetchall()
        found = []
        for number, kind in series:
            # One by one: joined, SQLite would go through all observations in their order.
            values = connection.execute(
                "SELECT at, value, extra, id FROM observations WHERE series = ? AND writer != ?",
                (number, writer),
            )
            found += [one for row in values if (one := _observation((kind, *row))) is not None]
        rows += [(subject, one) for one in sorted(found, key=lambda one: one.number)]
    return Learnt(rows, _newest(connection))


def observations_since(
    connection: sqlite3.Connection, number: int, subjects: Collection[Subject], writer: int
) -> Learnt:
    """Return what others than the writer have observed of these subjects behind that number, at most the newest."""
    found = connection.execute(
        "SELECT endpoint, address, model, kind, at, value, extra, observations.id "
        "FROM observations JOIN series ON series.id = series "
        "WHERE observations.id > ? AND writer != ? ORDER BY observations.id DESC LIMIT ?",
        (number, writer, _MOST_NEWS),
    ).fetchall()
    rows = [
        (subject, one)
        for row in reversed(found)
        if (subject := Subject(*row[:3])) in subjects and (one := _observation(row[3:])) is not None
    ]
    return Learnt(rows, _newest(connection))


def _observation(row: tuple[object, ...]) -> Observation | None:
    """Return a row as an observation; None where it holds something else than numbers that may have been measured."""
    kind, at, value, extra, number = row
    mosts = ((at, math.inf), (value, _MOST_VALUE), (extra, _MOST_VALUE), (number, math.inf))
    if not isinstance(kind, str) or not all(
        isinstance(n, float | int) and 0 <= n < most for n, most in mosts
    ):
        return None
    return Observation(*row)  # type: ignore[arg-type] # checked


def _newest(connection: sqlite3.Connection) -> int:
    found = connection.execute("SELECT max(id) FROM observations").fetchone()[0]
    return 0 if found is None else int(found)


def prune_series(connection: sqlite3.Connection, now: float) -> None:
    """Delete what is too old, and the series that are too many."""
    connection.execute("DELETE FROM observations WHERE at < ?", (now - OLDEST_S,))
    connection.execute("DELETE FROM series WHERE id NOT IN (SELECT series FROM observations)")
    _keep_series(connection, MOST_SERIES)


def _keep_series(connection: sqlite3.Connection, count: int) -> None:
    """Delete all series but so many, which were observed last."""
    connection.execute(
        "DELETE FROM series WHERE id NOT IN "
        "(SELECT series FROM observations GROUP BY series ORDER BY max(id) DESC LIMIT ?)",
        (count,),
    )
