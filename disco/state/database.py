"""The state file: one SQLite file in WAL mode, shared by all programs of a user on a machine.

It holds numbers, names of endpoints, models, tasks and settings, and addresses without credentials; never a prompt, an
answer or a key. Only the user can read it. A failure of the file costs a warning, never an answer: `read`, `write` and
`submit` do not raise what SQLite raises.

SQLite's own rules give the guarantees. A transaction that was committed survives `kill -9` of any process, in WAL mode
with `synchronous = NORMAL`, and one that was not leaves nothing behind. A loss of power may undo the last commits, but
does not break the file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import platformdirs

from disco.errors import ConfigurationError

__all__ = ["BUSY_S", "MIGRATIONS", "Database", "state_path"]

_log = logging.getLogger("disco")

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

BUSY_S: Final = 0.25
"""How long a transaction waits for another process's, seconds. Ours take less than a millisecond."""

_VARIABLE: Final = "DISCO_STATE"
_OFF: Final = frozenset({"off", "0", "false", "no"})

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
        at REAL NOT NULL,
        value REAL NOT NULL,
        extra REAL NOT NULL DEFAULT 0
    );
    CREATE INDEX observations_of_series ON observations (series, id);
    CREATE TABLE facts (
        kind TEXT NOT NULL,
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        at REAL NOT NULL,
        PRIMARY KEY (kind, key)
    ) WITHOUT ROWID;
    CREATE TABLE budgets (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL,
        scope TEXT NOT NULL,
        unit TEXT NOT NULL,
        amount REAL NOT NULL,
        window_s REAL NOT NULL,
        latest_at REAL NOT NULL,
        UNIQUE (name, scope, unit, amount, window_s)
    );
    CREATE TABLE budget_spent (
        budget INTEGER NOT NULL REFERENCES budgets (id) ON DELETE CASCADE,
        until REAL NOT NULL,
        units INTEGER NOT NULL,
        PRIMARY KEY (budget, until)
    ) WITHOUT ROWID;
    CREATE TABLE budget_open (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        budget INTEGER NOT NULL REFERENCES budgets (id) ON DELETE CASCADE,
        units INTEGER NOT NULL,
        pid INTEGER NOT NULL,
        process_start TEXT NOT NULL,
        at REAL NOT NULL
    );
    CREATE INDEX budget_open_of_budget ON budget_open (budget);
    """,
)
"""The schema's versions: number i leads from version i to i + 1 (`PRAGMA user_version`). Append; never change one."""


def state_path(given: str | os.PathLike[str] | bool | None = None) -> Path | None:  # noqa: FBT001 - as the client's
    """Return where the state file is; None where there is none.

    Args:
        given: a client's argument `state`. None or True: the environment variable `DISCO_STATE`, which is a path or
            "off", else the platform's folder for state (`platformdirs`). False: no file. A path: that file.

    Raises:
        ConfigurationError: the path is that of a folder, or empty.
    """
    if given is False:
        return None
    if given is None or given is True:
        named = os.environ.get(_VARIABLE, "").strip()
        if named.lower() in _OFF:
            return None
        if not named:
            return platformdirs.user_state_path("disco", appauthor=False) / "state.sqlite3"
        given = named
    path = Path(given).expanduser()
    if not os.fspath(given) or path.is_dir():
        raise ConfigurationError(
            f'state={os.fspath(given)!r} is not the path of a file. Give one, such as state="state.sqlite3", or '
            "state=False for none."
        )
    return path


class Database:
    """The connection of one process to a state file. Safe for threads; may be shared by several clients.

    Mutable: `_connection` (made on first use, made again after a fork), `_writer`, `_waiting` (work submitted),
    `is_usable`, `_has_warned`.

    Attributes:
        path: the file.
        is_usable: False once the file turned out to be broken, or of a later version: it is left alone from then on.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_usable = True
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._pid = 0
        self._waiting: queue.SimpleQueue[Work[object] | None] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None
        self._has_warned = False

    def read(self, work: Work[T], default: T) -> T:
        """Return what `work` reads; `default` where the file cannot be read. The work sees one state of the file."""
        return self._run(work, default, "BEGIN")

    def write(self, work: Work[T], default: T) -> T:
        """Return what `work` returns once its changes are committed; `default` where they could not be.

        All of the work's changes are made, or none. The work holds the file's only right to write: keep it short.
        """
        return self._run(work, default, "BEGIN IMMEDIATE")

    def submit(self, work: Work[object]) -> None:
        """Let the writer thread do this work, in the order of the calls; return at once. A failure costs a warning."""
        with self._lock:
            if self._writer is None or not self._writer.is_alive():  # threads do not survive a fork
                self._waiting = queue.SimpleQueue() if self._writer is not None else self._waiting
                self._writer = threading.Thread(target=self._write_all, name="disco-state", daemon=True)
                self._writer.start()
            self._waiting.put(work)

    def close(self) -> None:
        """Finish what was submitted, and close the file. Idempotent; a later call opens the file again."""
        with self._lock:
            writer, self._writer = self._writer, None
        if writer is not None and writer.is_alive():
            self._waiting.put(None)
            writer.join()
        with self._lock:
            if self._connection is not None:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.close()
                self._connection = None

    # ------------------------------------------------------------------ one transaction

    def _run(self, work: Work[T], default: T, begin: str) -> T:
        with self._lock:
            if not self.is_usable:
                return default
            connection = None
            try:
                connection = self._connected()
                connection.execute(begin)
                done = work(connection)
                connection.execute("COMMIT")
            except (sqlite3.Error, OSError, _LaterVersionError) as error:
                self._warn(error)
                if _is_broken(error):
                    self.is_usable = False
                return default
            else:
                return done
            finally:
                if connection is not None and connection.in_transaction:
                    with contextlib.suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")

    def _connected(self) -> sqlite3.Connection:
        if self._connection is not None and self._pid == os.getpid():
            return self._connection
        # After a fork, the parent's connection must not be used, nor closed: that would drop the parent's locks.
        folder = self.path.parent
        if not folder.exists():
            folder.mkdir(parents=True, mode=0o700)
        if not self.path.exists():
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        connection = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
            _migrate(connection)
        except BaseException:
            connection.close()
            raise
        self._connection, self._pid = connection, os.getpid()
        return connection

    def _write_all(self) -> None:
        waiting = self._waiting
        while (work := waiting.get()) is not None:
            self.write(work, None)

    def _warn(self, error: Exception) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        if isinstance(error, _LaterVersionError):
            why, remedy = "it was written by a later version of disco", "Update disco, or give another path"
        elif _is_broken(error):
            why, remedy = (
                "it is damaged or no state file",
                "Delete it (`disco state forget --all`), or give another path",
            )
        elif isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
            why, remedy = "another process keeps it locked", "Find that process if this happens again"
        else:
            why = getattr(error, "strerror", None) or type(error).__name__
            remedy = "Make the file and its folder writable, or give another path"
        _log.warning(
            "The state file %s cannot be used (%s). disco goes on without it: what is learnt and spent now counts in "
            "this process only. %s, with state=... or the variable %s.",
            self.path,
            why,
            remedy,
            _VARIABLE,
        )


class _LaterVersionError(Exception):
    pass


def _is_broken(error: Exception) -> bool:
    """Whether the file itself is at fault, and will be so at the next call."""
    if isinstance(error, _LaterVersionError):
        return True
    return isinstance(error, sqlite3.DatabaseError) and not isinstance(
        error, sqlite3.OperationalError | sqlite3.IntegrityError | sqlite3.ProgrammingError
    )


def _migrate(connection: sqlite3.Connection) -> None:
    """Bring the file to the newest version; of several processes, one does it."""
    if _version(connection) == len(MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _version(connection)
        if version > len(MIGRATIONS):
            raise _LaterVersionError
        for script in MIGRATIONS[version:]:
            for statement in script.split(";"):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
