"""The state file: one SQLite file in WAL mode, shared by all programs of a user on a machine.

It holds numbers, names of endpoints, models, tasks and settings, addresses without credentials, and the names and
folders of programs that spend a budget; never a prompt, an answer or a key. Only the user can read it. A failure of the
file costs a warning, never an answer: `read`, `write` and `submit` do not raise what SQLite raises.

SQLite's own rules give the guarantees. A transaction that was committed survives `kill -9` of any process, in WAL mode
with `synchronous = NORMAL`, and one that was not leaves nothing behind. A loss of power may undo the last commits, but
does not break the file.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal, TypeVar

import platformdirs

from disco.errors import ConfigurationError
from disco.notices import warn
from disco.state.file_faults import (
    NotOursError,
    check_regular,
    content_at,
    file_at,
    is_broken,
    is_locked,
    is_of_file,
    keep_private,
    why_and_remedy,
)
from disco.state.new_file import make_private_file
from disco.state.schema import check_ours, damage_of, migrate
from disco.state.write_queue import WriteQueue

__all__ = ["BUSY_S", "Database", "Work", "database_of", "state_path"]


T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

BUSY_S: Final = 0.25
"""How long a transaction waits for another process's, seconds. Ours take less than a millisecond."""

# SQLite would wait longer and longer, up to 100 ms at a time, while others who have just come get their turn.
_NAP_S = 0.0005
_FEWEST_TRIES = 50  # also where this process itself could not run for `BUSY_S`

_VARIABLE: Final = "DISCO_STATE"
_OFF: Final = frozenset({"off", "0", "false", "no"})

_MOST_PAGES: Final = (
    32_768  # of 4 KiB: a limit of 128 MiB, twice what the rooms for all that is kept take when full
)
_MOST_LOG_BYTES: Final = 4 * 2**20  # what is left of the -wal file after it was written back
_FINISH_S: Final = 2.0  # how long closing waits for what is still to be written


def state_path(given: str | os.PathLike[str] | bool | None = None) -> Path | None:  # noqa: FBT001 - as the client's
    """Return where the state file is; None where there is none.

    Args:
        given: a client's argument `state`. None or True: the environment variable `DISCO_STATE`, which is a path or
            "off", else the platform's folder for state (`platformdirs`); none where the user has no home. False or
            "off": no file. A path: that file.

    Raises:
        ConfigurationError: the path is empty, or that of a folder, a device or anything else that is no regular file.
    """
    if given is False or given == "off":  # as the variable, and as other settings
        return None
    is_named = True
    if given is None or given is True:
        named = os.environ.get(_VARIABLE, "").strip()
        if named.lower() in _OFF:
            return None
        if not named:
            try:
                folder = platformdirs.user_state_path("disco", appauthor=False)
            except RuntimeError:  # neither the environment nor the system knows a home
                return None
            # Earlier versions of platformdirs return "~/..." then, a folder of this name in the working folder.
            return folder / "state.sqlite3" if folder.is_absolute() else None
        given, is_named = named, False
    path: Path | None = None
    with contextlib.suppress(RuntimeError):  # there is no such user
        path = Path(given).expanduser()
    if path is None or not os.fspath(given) or (path.exists() and not path.is_file()):
        name = "state" if is_named else _VARIABLE
        off = "state=False" if is_named else f"{_VARIABLE}=off"
        raise ConfigurationError(
            f"{name}={os.fspath(given)!r} is not the path of a file. Give one, such as "
            f'{name}="state.sqlite3", or {off} for none.'
        )
    return path


class Database:
    """The connection of one process to a state file. Safe for threads; may be shared by several clients.

    Mutable: `_connection` (made on first use, closed for a fork, and where the file was replaced), `_file` (which file
    that is), `_left_alone` (which file was not usable), `_queue`, `is_usable`, `fault`.

    Attributes:
        path: the file.
        is_usable: False once the file turned out to be broken, or not to be ours: it is left alone from then on, until
            there is another one, or none, in its place.
        fault: the first failure; None: there was none.
    """

    def __init__(self, path: Path, *, warns: bool = True) -> None:
        """Open nothing yet. `warns`: whether the first failure is logged."""
        self.path = path
        self.is_usable = True
        self.fault: Exception | None = None
        self._warns = warns
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._left_alone: tuple[int, int, int] | None = None
        self._begin_process()
        with _opened_lock:
            _opened.add(self)

    def _begin_process(self) -> None:
        """Begin anew: locks and threads of another process would never be let go."""
        self._lock = threading.RLock()
        self._queue = WriteQueue(self._write_all)

    def _before_fork(self) -> None:
        """Close the file, which must not be open in a child (sqlite.org/howtocorrupt.html, 2.6); both open it again."""
        self._lock.acquire()
        self._close_connection()

    def _after_fork(self, *, is_child: bool) -> None:
        if is_child:
            self._begin_process()
        else:
            self._lock.release()

    def read(self, work: Work[T], default: T) -> T:
        """Return what `work` reads; `default` where the file cannot be read. The work sees one state of the file."""
        how, found = self._run(work, "BEGIN")
        return found if how == "done" else default  # type: ignore[return-value] # a result is only there if it is done

    def write(self, work: Work[T], default: T) -> T:
        """Return what `work` returns once its changes are committed; `default` where they could not be.

        All of the work's changes are made, or none. The work holds the file's only right to write: keep it short.
        """
        how, found = self._run(work, "BEGIN IMMEDIATE")
        return found if how == "done" else default  # type: ignore[return-value] # as above

    def submit(self, work: Work[object]) -> None:
        """Let a thread do this work, in the order of the calls; return at once, whatever the file does.

        A failure costs a warning. While another process keeps the file locked, the work waits (`MOST_WAITING`). Work
        for a file that is left alone is dropped.
        """
        if self.is_usable:
            self._queue.put(work)

    def flush(self, within_s: float = _FINISH_S) -> bool:
        """Wait until what was submitted is written, for so many seconds at most; return whether it is, as far as known.

        What cannot be written for another reason than a lock is gone, with a warning.

        Args:
            within_s: longest wait, s.
        """
        return self._queue.finish(within_s)

    def tidy(self) -> None:
        """Give the space of what was deleted back, and overwrite it. Where other programs use the file, later."""
        with self._lock, contextlib.suppress(sqlite3.Error, OSError, NotOursError):
            connection = self._connected()
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Finish what was submitted, and close the file. Idempotent; a later call opens the file again."""
        self.flush()
        if self._lock.acquire(timeout=_FINISH_S):  # a disk that does not answer may hold up a thread for ever
            try:
                self._close_connection()
            finally:
                self._lock.release()

    # ------------------------------------------------------------------ one transaction

    def _run(self, work: Work[T], begin: str) -> tuple[Literal["done", "locked", "failed"], T | None]:
        with self._lock:
            if not self.is_usable:
                if content_at(self.path) == self._left_alone:
                    return "failed", None
                self.is_usable = True
            connection = None
            until, tries = time.monotonic() + BUSY_S, 0
            while True:
                tries += 1
                try:
                    connection = self._connected()
                    connection.execute(begin)
                    done = work(connection)
                    connection.execute("COMMIT")
                except Exception as raised:
                    error: Exception | None = raised
                    if not is_of_file(raised):
                        _rollback(connection)  # so that the damage is there to be seen
                        error = None if connection is None else damage_of(connection)
                    if error is None:
                        raise
                    if is_locked(error) and (tries < _FEWEST_TRIES or time.monotonic() < until):
                        time.sleep(_NAP_S)
                        continue  # only the beginning finds the file locked, in WAL mode: nothing was done
                    self._warn(error)
                    if is_broken(error):
                        self.is_usable, self._left_alone = False, content_at(self.path)
                    return "locked" if is_locked(error) else "failed", None
                else:
                    return "done", done
                finally:
                    _rollback(connection)

    def _write_all(self, works: Sequence[Work[object]]) -> bool:
        """Do what was submitted, in one transaction; where that fails, each work in one of its own."""

        def together(connection: sqlite3.Connection) -> None:
            for work in works:
                work(connection)

        how, _ = self._run(together, "BEGIN IMMEDIATE")
        if how == "failed" and len(works) > 1:
            for work in works:
                self._run(work, "BEGIN IMMEDIATE")
        return how != "locked"

    def _connected(self) -> sqlite3.Connection:
        """Return the connection to the file that is at the path now."""
        if self._connection is not None:
            if file_at(self.path) == self._file:
                return self._connection
            self._close_connection()  # the file was deleted, or replaced
        make_private_file(self.path)
        check_regular(self.path)
        # Before it is opened: where another one takes its place now, that one is opened at the next use.
        file = file_at(self.path)
        # It does not wait by itself: `_run` does, for opening as for what follows.
        connection = sqlite3.connect(self.path, timeout=0.0, isolation_level=None, check_same_thread=False)
        try:
            check_ours(connection)
            keep_private(self.path)
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute(f"PRAGMA max_page_count = {_MOST_PAGES}")
            connection.execute(f"PRAGMA journal_size_limit = {_MOST_LOG_BYTES}")
            migrate(connection)
        except BaseException:
            connection.close()
            raise
        self._connection, self._file = connection, file
        return connection

    def _close_connection(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _warn(self, error: Exception) -> None:
        if self.fault is not None:
            return
        self.fault = error.with_traceback(
            None
        )  # whose frames hold a statement, and so an old state of the file
        if not self._warns or self.path in _warned:
            return  # once for each file
        _warned.add(self.path)
        why, remedy = why_and_remedy(error, self.path)
        warn(
            f"The state file {self.path} cannot be used ({why}). disco goes on without it: what is learnt and spent "
            f"now counts in this process only. {remedy}, or give another path, with state=... or the variable "
            f"{_VARIABLE}."
        )


def _rollback(connection: sqlite3.Connection | None) -> None:
    if connection is not None and connection.in_transaction:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


def database_of(given: str | os.PathLike[str] | bool | None) -> Database | None:  # noqa: FBT001 - as the client's
    """Return the state file that a client's argument `state` means; None where there is none. See `state_path`.

    Args:
        given: None, False, or a path; see `AsyncDisco`.
    """
    path = state_path(given)
    return None if path is None else Database(path)


_opened: weakref.WeakSet[Database] = weakref.WeakSet()
_opened_lock = (
    threading.RLock()
)  # held during a fork: none is added between the two halves, and one thread forks
_warned: set[Path] = set()  # files of which this process has said what is wrong


def _before_fork() -> None:
    _opened_lock.acquire()
    for database in tuple(_opened):
        database._before_fork()  # noqa: SLF001 - of this module


def _after_fork(*, is_child: bool) -> None:
    global _opened_lock  # noqa: PLW0603 - the parent's is held by a thread that the child does not have
    for database in tuple(_opened):
        database._after_fork(is_child=is_child)  # noqa: SLF001 - of this module
    if is_child:
        _opened_lock = threading.RLock()
    else:
        _opened_lock.release()


@atexit.register
def _finish_all() -> None:
    """Write what a program has learnt that ends without closing its clients."""
    with _opened_lock:
        databases = tuple(_opened)
    until = time.monotonic() + 1.0  # for all together
    for database in databases:
        database.flush(max(0.0, until - time.monotonic()))


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=functools.partial(_after_fork, is_child=False),
        after_in_child=functools.partial(_after_fork, is_child=True),
    )
