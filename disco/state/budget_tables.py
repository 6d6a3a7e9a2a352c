"""The tallies of the state file: what was spent, in pieces of a window, what is reserved, by process, and by whom.

A row of `budgets` has in `window_s` the seconds of a sliding window, or the name of a calendar period (SQLite stores
either).

Every function works within the transaction of its caller. Times are Unix times in seconds, read within the
transaction: all processes of a machine have one clock, so no transaction sees an earlier time than one before it,
unless the clock was set back.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Callable
from typing import Final, NamedTuple

from disco.cost.tally import UNITS, TallyKey
from disco.cost.windows import PERIODS, freed_at, gone_until, piece_of

__all__ = [
    "UNSEEN_S",
    "Counted",
    "counted",
    "fall",
    "open_reservation",
    "programs",
    "spend",
    "sweep",
    "taken",
    "tidy",
    "withdraw",
]

UNSEEN_S: Final = 3600.0
"""How long a reservation counts as running whose process cannot be asked whether it runs, seconds."""

# What SQLite adds up stays below 2**63, as does the number of a piece.
_MOST_UNITS = 2**58
_LATEST_S = 1e11  # Unix time, as far as calendars go

IsAlive = Callable[[str], bool | None]


class Counted(NamedTuple):
    """What a tally has counted, in whole units, and the programs that spent it, the latest first."""

    key: TallyKey
    spent: int
    reserved: int
    programs: tuple[str, ...]


def counted(connection: sqlite3.Connection, now: float) -> list[Counted]:
    """Return what every tally has counted: spent within its window, and reserved; and who spent it."""
    found = []
    for budget, key in _keys(connection):
        (reserved,) = connection.execute(
            "SELECT COALESCE(SUM(units), 0) FROM budget_open WHERE budget = ?", (budget,)
        ).fetchone()
        spent = _taken(connection, budget, key, now) - reserved
        found.append(Counted(key, spent, reserved, _programs(connection, budget, key, now)))
    return found


def taken(connection: sqlite3.Connection, key: TallyKey, now: float) -> int:
    """Return how many units are spent or reserved."""
    found = _find(connection, key)
    return 0 if found is None else _taken(connection, found, key, now)


def open_reservation(
    connection: sqlite3.Connection, key: TallyKey, units: int, process: str, now: float
) -> int:
    """Enter a reservation, and return its row."""
    # Never used again: a process may withdraw a row long after another has done so.
    row = secrets.randbits(62)
    connection.execute(
        "INSERT INTO budget_open (id, budget, units, process, at) VALUES (?, ?, ?, ?, ?)",
        (row, _make(connection, key), min(units, _MOST_UNITS), process, now),
    )
    return row


def withdraw(connection: sqlite3.Connection, row: int) -> None:
    """Remove a reservation; it may have been removed already."""
    connection.execute("DELETE FROM budget_open WHERE id = ?", (row,))


def spend(
    connection: sqlite3.Connection, key: TallyKey, units: int, now: float, program: str | None = None
) -> None:
    """Enter a cost that has ended by now, and the program that spent it."""
    if not units:
        return
    budget = _make(connection, key)
    _spend(connection, budget, piece_of(key.window, now), units)
    if program is not None:
        connection.execute(
            "INSERT INTO budget_programs (budget, program, at) VALUES (?, ?, ?) "
            "ON CONFLICT (budget, program) DO UPDATE SET at = excluded.at",
            (budget, program, now),
        )


def programs(connection: sqlite3.Connection, key: TallyKey, now: float) -> tuple[str, ...]:
    """Return the programs that have spent within the window, the latest first."""
    found = _find(connection, key)
    return () if found is None else _programs(connection, found, key, now)


def sweep(connection: sqlite3.Connection, key: TallyKey, process: str, is_alive: IsAlive, now: float) -> None:
    """Forget what has left the window, and count the reservations of processes that have ended as spent now.

    Where the clock was set back, what was spent later than now counts as spent now. So it leaves the window no sooner
    than it should, and no later than one window from now.

    Args:
        connection: within a transaction that may write.
        key: of the tally.
        process: this process, whose reservations are left alone.
        is_alive: whether a process still runs; None where that cannot be known.
        now: Unix time, s.
    """
    found = _find(connection, key)
    if found is None:
        return
    current = piece_of(key.window, now)
    connection.execute(
        "DELETE FROM budget_spent WHERE budget = ? AND bucket <= ?", (found, gone_until(key.window, now))
    )
    (late,) = connection.execute(
        "SELECT SUM(units) FROM budget_spent WHERE budget = ? AND bucket > ?", (found, current)
    ).fetchone()
    if late is not None:
        connection.execute("DELETE FROM budget_spent WHERE budget = ? AND bucket > ?", (found, current))
        _spend(connection, found, current, late)
    others = connection.execute(
        "SELECT id, units, process, at FROM budget_open WHERE budget = ? AND process != ?", (found, process)
    ).fetchall()
    for row, units, of, at in others:
        lives = is_alive(str(of))
        if lives is False or (lives is None and not 0 <= now - at < UNSEEN_S):
            withdraw(connection, row)
            _spend(connection, found, current, units)


def fall(connection: sqlite3.Connection, key: TallyKey, most: int, now: float) -> float | None:
    """Return when no more than `most` units are taken if nothing is reserved; None where that depends on answers."""
    found = _find(connection, key)
    missing = 0 if found is None else _taken(connection, found, key, now) - most
    if missing <= 0:
        return now
    rows = connection.execute(
        "SELECT bucket, units FROM budget_spent WHERE budget = ? AND bucket > ? ORDER BY bucket",
        (found, gone_until(key.window, now)),
    )
    for bucket, units in rows:
        missing -= units
        if missing <= 0:
            return freed_at(key.window, min(bucket, piece_of(key.window, now)))
    return None


def tidy(connection: sqlite3.Connection, process: str, is_alive: IsAlive, now: float) -> None:
    """Sweep all tallies, and remove those that are empty and programs that have spent nothing for a window."""
    for budget, key in _keys(connection):
        sweep(connection, key, process, is_alive, now)
        lately = _programs(connection, budget, key, now)
        rows = connection.execute(
            "SELECT program FROM budget_programs WHERE budget = ?", (budget,)
        ).fetchall()
        connection.executemany(
            "DELETE FROM budget_programs WHERE budget = ? AND program = ?",
            [(budget, program) for (program,) in rows if program not in lately],
        )
    connection.execute(
        "DELETE FROM budgets WHERE id NOT IN (SELECT budget FROM budget_spent) "
        "AND id NOT IN (SELECT budget FROM budget_open)"
    )


def _keys(connection: sqlite3.Connection) -> list[tuple[int, TallyKey]]:
    """Return the tallies with their rows, without those whose unit or window is none: SQLite keeps any value."""
    rows = connection.execute(
        "SELECT id, account, scope, unit, window_s FROM budgets ORDER BY account, scope, unit, window_s"
    ).fetchall()
    return [
        (budget, TallyKey(account, scope, unit, window))
        for budget, account, scope, unit, window in rows
        if unit in UNITS and (window in PERIODS or (isinstance(window, float) and 0 < window < _LATEST_S))
    ]


def _find(connection: sqlite3.Connection, key: TallyKey) -> int | None:
    # Looked up each time: the user may have the file's budgets forgotten at any time.
    found = connection.execute(
        "SELECT id FROM budgets WHERE account = ? AND scope = ? AND unit = ? AND window_s = ?",
        (key.account, key.scope, key.unit, key.window),
    ).fetchone()
    return None if found is None else int(found[0])


def _make(connection: sqlite3.Connection, key: TallyKey) -> int:
    found = _find(connection, key)
    if found is None:
        found = connection.execute(
            "INSERT INTO budgets (account, scope, unit, window_s) VALUES (?, ?, ?, ?)",
            (key.account, key.scope, key.unit, key.window),
        ).lastrowid
        assert found is not None
    return found


def _taken(connection: sqlite3.Connection, budget: int, key: TallyKey, now: float) -> int:
    (units,) = connection.execute(
        "SELECT (SELECT COALESCE(SUM(units), 0) FROM budget_spent WHERE budget = ? AND bucket > ?) "
        "+ (SELECT COALESCE(SUM(units), 0) FROM budget_open WHERE budget = ?)",
        (budget, gone_until(key.window, now), budget),
    ).fetchone()
    return int(units)


def _programs(connection: sqlite3.Connection, budget: int, key: TallyKey, now: float) -> tuple[str, ...]:
    gone = gone_until(key.window, now)
    rows = connection.execute(
        "SELECT program, at FROM budget_programs WHERE budget = ? AND at BETWEEN 0 AND ? ORDER BY at DESC, program",
        (budget, _LATEST_S),
    )
    return tuple(program for program, at in rows if piece_of(key.window, at) > gone)


def _spend(connection: sqlite3.Connection, budget: int, bucket: int, units: int) -> None:
    if units:
        connection.execute(
            "INSERT INTO budget_spent (budget, bucket, units) VALUES (?, ?, ?) "
            "ON CONFLICT (budget, bucket) DO UPDATE SET units = units + excluded.units",
            (budget, bucket, min(units, _MOST_UNITS)),
        )
