"""The tables of a state file, their versions, and the way from an earlier version to the newest."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Final

from disco.state.file_faults import NotOursError

__all__ = ["MIGRATIONS", "check_ours", "damage_of", "migrate"]

_APPLICATION: Final = 0x64_73_63_6F  # "dsco", the file's `PRAGMA application_id`

MIGRATIONS: Final = (
    """
    CREATE TABLE series (
        id INTEGER PRIMARY KEY,
        kind TEXT NOT NULL,
        endpoint TEXT NOT NULL,
        address TEXT NOT NULL,
        model TEXT NOT NULL,
        UNIQUE (kind, endpoint, address, model)
    );
    CREATE TABLE observations (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        series INTEGER NOT NULL REFERENCES series (id) ON DELETE CASCADE,
        writer INTEGER NOT NULL,
        at REAL NOT NULL,
        value REAL NOT NULL,
        extra REAL NOT NULL DEFAULT 0
    );
    CREATE INDEX observations_of_series ON observations (series, id);
    CREATE TABLE histories (
        id INTEGER PRIMARY KEY,
        task TEXT NOT NULL,
        model TEXT NOT NULL,
        kind TEXT NOT NULL,
        seen INTEGER NOT NULL DEFAULT 0,
        classes INTEGER NOT NULL DEFAULT 0,
        at REAL NOT NULL,
        UNIQUE (task, model, kind)
    );
    CREATE TABLE scores (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        history INTEGER NOT NULL REFERENCES histories (id) ON DELETE CASCADE,
        score REAL NOT NULL,
        is_exit INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX scores_of_history ON scores (history, id);
    CREATE TABLE label_scores (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        history INTEGER NOT NULL REFERENCES histories (id) ON DELETE CASCADE,
        label_values TEXT NOT NULL
    );
    CREATE INDEX label_scores_of_history ON label_scores (history, id);
    CREATE TABLE facts (
        kind TEXT NOT NULL,
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        at REAL NOT NULL,
        PRIMARY KEY (kind, key)
    ) WITHOUT ROWID;
    CREATE TABLE budgets (
        id INTEGER PRIMARY KEY,
        account TEXT NOT NULL,
        scope TEXT NOT NULL,
        unit TEXT NOT NULL,
        window_s REAL NOT NULL,
        UNIQUE (account, scope, unit, window_s)
    );
    CREATE TABLE budget_spent (
        budget INTEGER NOT NULL REFERENCES budgets (id) ON DELETE CASCADE,
        bucket INTEGER NOT NULL,
        units INTEGER NOT NULL,
        PRIMARY KEY (budget, bucket)
    ) WITHOUT ROWID;
    CREATE TABLE budget_open (
        id INTEGER PRIMARY KEY,
        budget INTEGER NOT NULL REFERENCES budgets (id) ON DELETE CASCADE,
        units INTEGER NOT NULL,
        process TEXT NOT NULL,
        at REAL NOT NULL
    );
    """,
    """
    CREATE TABLE budget_programs (
        budget INTEGER NOT NULL REFERENCES budgets (id) ON DELETE CASCADE,
        program TEXT NOT NULL,
        at REAL NOT NULL,
        PRIMARY KEY (budget, program)
    ) WITHOUT ROWID;
    """,
)
"""The schema's versions: number i leads from version i to i + 1 (`PRAGMA user_version`). Append; never change one."""


def check_ours(connection: sqlite3.Connection) -> None:
    """Raise `NotOursError` unless the file is empty, or a state file of this version or an earlier one."""
    if connection.in_transaction:
        _check_ours(connection)
        return
    connection.execute("BEGIN")  # one state of the file: another process may be making it at this moment
    try:
        _check_ours(connection)
    finally:
        with contextlib.suppress(sqlite3.Error):  # some errors have ended it
            connection.execute("ROLLBACK")


def _check_ours(connection: sqlite3.Connection) -> None:
    application = int(connection.execute("PRAGMA application_id").fetchone()[0])
    is_empty = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application != _APPLICATION and not (application == 0 and is_empty and _version(connection) == 0):
        raise NotOursError("it is the database of another program", "Leave it to that program")
    if _version(connection) > len(MIGRATIONS):
        raise NotOursError("it was written by a later version of disco", "Update disco")


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the file to the newest version; of several processes, one does it."""
    if _version(connection) == len(MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        check_ours(connection)  # again: another process may have been quicker
        for script in MIGRATIONS[_version(connection) :]:
            for statement in script.split(";"):
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {_APPLICATION}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk, for one, has ended it
            connection.execute("ROLLBACK")
        raise


def damage_of(connection: sqlite3.Connection) -> sqlite3.Error | None:
    """Return what is wrong with the content of a file of the newest version; None where it is sound.

    SQLite keeps any value in any column, and hands out what it finds. So damage may show only as a missing number that
    somebody calculates with.
    """
    try:
        found = connection.execute("PRAGMA integrity_check(1)").fetchall()
        if found == [("ok",)] and _tables(connection) == _our_tables() and not _has_a_wrong_type(connection):
            return None
    except sqlite3.Error as error:
        return error
    return sqlite3.DatabaseError("the content of the file is damaged")


_TYPES: Final = {"INTEGER": "'integer'", "REAL": "'real', 'integer'", "TEXT": "'text'"}
_PERIODS: Final = ("budgets", "window_s")  # seconds, or the name of a calendar period


def _has_a_wrong_type(connection: sqlite3.Connection) -> bool:
    for (table,) in connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    ).fetchall():
        for _, column, declared, *_ in connection.execute(f"PRAGMA table_info({table})").fetchall():
            kinds = _TYPES[declared] + (", 'text'" if (table, column) == _PERIODS else "")
            wrong = f"SELECT 1 FROM {table} WHERE typeof({column}) NOT IN ({kinds}) LIMIT 1"  # noqa: S608 - our names
            if connection.execute(wrong).fetchone():
                return True
    return False


def _tables(connection: sqlite3.Connection) -> set[object]:
    return {
        row[0] for row in connection.execute("SELECT sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")
    }


def _our_tables() -> set[object]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        for script in MIGRATIONS:
            connection.executescript(script)
        return _tables(connection)


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
