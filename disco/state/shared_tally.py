"""Tallies in the state file: what all programs of a user spend within a window, whichever of them is killed when.

**The guarantee** (`cost.budget_limiter`) for processes. Take any window, and the latest start in it. It was admitted by
a transaction that held the file's only right to write, and which saw of every other attempt that touches the window:

- one that ran: its reservation, which is in the file from before its start until after its end. If its process was
  killed, it ended then; the reservation stays until a process finds it, and is spent in full from that moment on.
  Whether a process of another container was killed cannot be seen: this holds for attempts of at most
  `budget_tables.UNSEEN_S` there.
- one that had ended within the window: its cost, which replaced its reservation in one transaction, no
  earlier than its end; or its reservation, as above.

So the sum over the window was at most the limit, for any interleaving of starts, ends, kills and restarts, as long as
no attempt costs more than it reserved. A kill in the middle of a transaction leaves nothing of it (`database`): before
the reservation is committed the attempt has not started, and before its cost is committed the reservation counts. Time
is the machine's clock, read while the right to write is held, so that it is the same for all. Set forward, it frees
what seems to have left the window. Set back, it frees nothing early, and nothing later than one window from then.

A loss of power ends all attempts, and may undo the last transactions (`database`): what those had reserved is not
counted then. So it is where the user deletes the file, or has it forgotten.

Where the file cannot be used, this process goes on with what it knows: all that it has itself spent and reserved, and
what the others had when it last read the file, for one window more. It enters its own figures once the file works.
"""

from __future__ import annotations

import functools
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from disco.cost.budget_limiter import BudgetLimiter
from disco.cost.tally import Tally, TallyKey, WindowTally
from disco.cost.windows import freed_at, piece_of
from disco.notices import warn
from disco.state import budget_tables, processes
from disco.state.database import Database, Work

__all__ = ["RETRY_S", "SharedBudgets", "SharedTally", "limiter_of"]


T = TypeVar("T")

RETRY_S: Final = 5.0
"""How long a file that failed is left alone, seconds: it may have cost the event loop `database.BUSY_S`."""

_NO_ROW = -1
_ASK_S = 1.0  # how long it is believed that another process lives


def limiter_of(path: Path | None) -> BudgetLimiter:
    """Return a client's limiter, whose tallies are in the state file at this path; None: in this process."""
    if path is None:
        return BudgetLimiter()
    budgets = SharedBudgets(path)
    return BudgetLimiter(budgets.tally, budgets.close)


class SharedBudgets:
    """The tallies of one client in a state file. Safe for threads.

    Mutable: `_tallies`, `_alive` (what was found of other processes, and when), `_retry_at`, `_is_tidy`.

    Args:
        path: the state file. It gets a connection of its own: the event loop uses this one, and must not wait while a
            thread reads or writes what is learnt through another one.
        process: name of this process (`processes.this_process`).
        is_alive: whether the process of a name still runs; None where that cannot be known.
        program: name of this program, for those who share its budget (`processes.this_program`).
        clock: Unix time, s.
        monotonic: a clock that cannot be set, s.
    """

    def __init__(
        self,
        path: Path,
        *,
        process: Callable[[], str] = processes.this_process,
        is_alive: Callable[[str], bool | None] = processes.is_alive,
        program: Callable[[], str] = processes.this_program,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.database = Database(path)
        self.process = process
        self.program = program
        self.clock = clock
        self.monotonic = monotonic
        self._ask = is_alive
        self._tallies: dict[TallyKey, SharedTally] = {}
        self._alive: dict[str, tuple[float, bool | None]] = {}
        self._retry_at = float("-inf")
        self._is_tidy = False

    def tally(self, key: TallyKey) -> SharedTally:
        """Return the tally of this key."""
        if key not in self._tallies:
            self._tallies[key] = SharedTally(key, self)
        return self._tallies[key]

    def close(self) -> None:
        """Enter all that is owed to the file, what is still reserved as spent, and close it. Idempotent."""
        self._retry_at = float("-inf")
        for tally in list(self._tallies.values()):
            tally.close()
        self.database.close()

    def read(self, work: Work[T]) -> T | None:
        """Return what the work reads; None where the file cannot be used."""
        return self._tried(lambda: self.database.read(work, None))

    def write(self, work: Work[T]) -> T | None:
        """Return what the work returns once its changes are committed; None where the file cannot be used."""

        def tidied(connection: sqlite3.Connection) -> T:
            if not self._is_tidy:
                budget_tables.tidy(connection, self.process(), self.is_alive, self.clock())
            return work(connection)

        done = self._tried(lambda: self.database.write(tidied, None))
        self._is_tidy = self._is_tidy or done is not None
        return done

    def is_alive(self, process: str) -> bool | None:
        """Return whether a process still runs, as it was a second ago at the earliest; None: it cannot be known."""
        now = self.monotonic()
        asked_at, lives = self._alive.get(process, (float("-inf"), None))
        if now - asked_at >= _ASK_S:
            lives = self._ask(process)
            if len(self._alive) >= 64:
                self._alive.clear()
            self._alive[process] = now, lives
        return lives

    def _tried(self, work: Callable[[], T | None]) -> T | None:
        if self.monotonic() < self._retry_at:
            return None
        done = work()
        if done is None:
            self._retry_at = self.monotonic() + RETRY_S
        return done


class SharedTally(Tally):
    """A tally in the state file. The `now` of its callers only tells which clock a time is wanted on.

    Mutable: `_own` (what this tally has itself spent and reserved, on `_time`), `_units` (reserved, by
    ticket), `_rows` (the row of each reservation, by ticket; None: not in the file yet), `_owed` (spent, not in the
    file yet), `_stale` (rows of reservations that are settled), `_seen` (what was taken when the file was last read),
    `_others` (what others had taken then, and until when that counts), `_inherited` (tickets of the parent process),
    `_has_told` (of the programs that share the account that has no name).
    """

    def __init__(self, key: TallyKey, budgets: SharedBudgets) -> None:
        self._key = key
        self._budgets = budgets
        # Calendar periods go by the machine's clock; a sliding window is safe from its changes.
        self._time = budgets.clock if isinstance(key.window, str) else budgets.monotonic
        self._own = WindowTally(key)
        self._units: dict[int, int] = {}
        self._rows: dict[int, int | None] = {}
        self._owed = 0
        self._stale: list[int] = []
        self._seen = 0
        self._others = 0, float("-inf")
        self._inherited: set[int] = set()
        self._has_told = False
        self._pid = os.getpid()
        self._lock = threading.RLock()
        abandoned = weakref.finalize(
            self, _abandon, budgets.database, budgets.clock, key, self._rows, self._units, self._pid
        )
        abandoned.atexit = False  # from then on this is the reservation of a process that has ended

    def taken(self, now: float) -> int:
        """Return how many units are spent or reserved, by any process."""
        del now
        with self._mine():
            done = self._write(lambda _connection, _wall, _units: 0) if self._is_behind else None
            if done is None and not self._read():
                return self._known()
            return self._seen

    def reserve(self, units: int, most: int, now: float) -> int | None:
        """See `Tally.reserve`."""
        del now

        def enter(connection: sqlite3.Connection, wall: float, taken: int) -> int:
            if taken + units > most:
                return _NO_ROW
            return budget_tables.open_reservation(connection, self._key, units, self._budgets.process(), wall)

        with self._mine():
            if units > most:
                return None
            row = self._write(enter)
            if row == _NO_ROW or (row is None and self._known() + units > most):
                return None
            ticket = self._own.enter(units)
            self._units[ticket], self._rows[ticket] = units, row
            return ticket

    def settle(self, ticket: int, units: int, now: float) -> None:
        """See `Tally.settle`."""
        del now
        with self._mine():
            if ticket in self._inherited:  # the parent process settles it
                self._inherited.remove(ticket)
                return
            self._own.settle(ticket, units, self._time())
            del self._units[ticket]
            row = self._rows.pop(ticket)
            self._owed += units
            if row is not None:
                self._stale.append(row)
            self._write(None)

    def falls_to(self, most: int, now: float) -> float | None:
        """See `Tally.falls_to`."""
        with self._mine():
            if self.taken(now) <= most:
                return now
            at = self._budgets.clock()
            found = self._budgets.read(
                lambda connection: (budget_tables.fall(connection, self._key, most, at),)
            )
            if found is not None:
                return None if found[0] is None else now + found[0] - at
            others, until = self._others
            at = self._time()
            falls_at = self._own.falls_to(most - others, at)
            if falls_at is None and others and at < until:
                falls_at = until if self._own.taken(at) <= most else None
            return None if falls_at is None else now + falls_at - at

    def sharers(self) -> tuple[str, ...]:
        """See `Tally.sharers`."""
        found = self._budgets.read(
            lambda connection: budget_tables.programs(connection, self._key, self._budgets.clock())
        )
        return tuple(program for program in found or () if program != self._budgets.program())

    def close(self) -> None:
        """Count as spent what is still reserved, and enter in the file what is owed to it."""
        with self._mine():
            for ticket, units in list(self._units.items()):
                self.settle(ticket, units, 0.0)
            if self._is_behind:
                self._write(None)

    # ------------------------------------------------------------------ the file

    @property
    def _is_behind(self) -> bool:
        """Whether the file lacks anything that this tally knows."""
        return bool(self._owed or self._stale) or None in self._rows.values()

    def _read(self) -> bool:
        """Note what is taken according to the file. Return False where it cannot be read."""
        units = self._budgets.read(
            lambda connection: budget_tables.taken(connection, self._key, self._budgets.clock())
        )
        if units is None:
            return False
        self._note(units)
        if not self._has_told and not self._key.account:
            self._has_told = True
            if others := self.sharers():
                _tell(self._budgets.database.path, others)
        return True

    def _write(self, work: Callable[[sqlite3.Connection, float, int], int] | None) -> int | None:
        """Enter in the file what it lacks; then, in the same transaction, note what is taken, and do the work.

        Args:
            work: gets the connection, the time and what is taken.

        Returns:
            What the work returns, or 0; None where the file cannot be used.
        """

        def enter(connection: sqlite3.Connection) -> tuple[dict[int, int], int | None, int]:
            wall, process = self._budgets.clock(), self._budgets.process()
            for row in self._stale:
                budget_tables.withdraw(connection, row)
            budget_tables.spend(connection, self._key, self._owed, wall, self._budgets.program())
            rows = {
                ticket: budget_tables.open_reservation(
                    connection, self._key, self._units[ticket], process, wall
                )
                for ticket, row in self._rows.items()
                if row is None
            }
            if work is None:
                return rows, None, 0
            budget_tables.sweep(connection, self._key, process, self._budgets.is_alive, wall)
            units = budget_tables.taken(connection, self._key, wall)
            return rows, units, work(connection, wall, units)

        done = self._budgets.write(enter)
        if done is None:
            return None
        rows, units, result = done
        self._rows.update(rows)
        self._owed = 0
        self._stale.clear()
        if units is not None:
            self._note(units)
        return result

    def _note(self, units: int) -> None:
        """Remember what others have taken, for a time without the file."""
        at = self._time()
        self._seen = units
        self._others = (
            max(0, units - self._own.taken(at)),
            freed_at(self._key.window, piece_of(self._key.window, at)),
        )

    def _known(self) -> int:
        """Return what is taken as far as this process knows."""
        at = self._time()
        others, until = self._others
        return self._own.taken(at) + (others if at < until else 0)

    def _mine(self) -> threading.RLock:
        """Return the lock; in a process that was forked, leave the reservations to the parent first."""
        if self._pid != os.getpid():
            self._pid, self._lock = os.getpid(), threading.RLock()
            for ticket in self._units:
                self._own.settle(ticket, 0, self._time())
            self._inherited.update(self._units)
            self._units.clear()
            self._rows.clear()
            self._owed = 0
            self._stale.clear()
        return self._lock


@functools.cache
def _tell(path: Path, others: tuple[str, ...]) -> None:
    """Say, once for each file and set of programs, that a budget counts what others spend."""
    warn(
        f"The budget counts what other programs spend, too: {', '.join(others)}. It names no account, so all programs "
        f'that name none share it ({path}). For a budget of this program alone, add "account": "my-app" to the budget.'
    )


def _abandon(
    database: Database,
    clock: Callable[[], float],
    key: TallyKey,
    rows: dict[int, int | None],
    units: dict[int, int],
    pid: int,
) -> None:
    """Count as spent what nobody can settle any more, since the client is gone."""
    if not rows or pid != os.getpid():
        return

    def spend(connection: sqlite3.Connection) -> None:
        for ticket, row in rows.items():
            if row is not None:
                budget_tables.withdraw(connection, row)
            budget_tables.spend(connection, key, units[ticket], clock())

    database.submit(spend)
