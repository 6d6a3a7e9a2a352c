"""Work for the state file that nobody waits for: one thread does it, in the order in which it came."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

__all__ = ["MOST_WAITING", "WriteQueue"]

_log = logging.getLogger("disco")

Work = Callable[[sqlite3.Connection], object]

MOST_WAITING: Final = 1000
"""How much work waits at most, while the file is locked or its disk does not answer; of more, the oldest is dropped."""

_IDLE_S = 5.0  # an idle thread ends after this time; the next work starts another one
_AGAIN_S = 0.5  # after the file was found locked
_LAST_TRY_S = 0.5  # more than a try takes that finds it locked


class WriteQueue:
    """Takes work without ever waiting for the file. Safe for threads.

    What has gathered while the file was written is written together, as one transaction.

    Mutable: `_waiting`, `_thread` (None: there is none, or it ends), `_ends_at` (on the clock of `time.monotonic`;
    None: it is not to end), `_has_dropped`.
    """

    def __init__(self, write: Callable[[Sequence[Work]], bool]) -> None:
        """`write` does some work and says whether that is over; False: the file is locked, so it should come again."""
        self._write = write
        # Its lock may be taken again by the thread that has it: the garbage collector runs at any allocation, and what
        # it removes may `put` something (`shared_tally`). So nothing goes through `_waiting` while it may grow.
        self._changed = threading.Condition(threading.RLock())
        self._waiting: deque[Work] = deque(maxlen=MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._ends_at: float | None = None
        self._has_dropped = False

    def put(self, work: Work) -> None:
        """Have this done, and return at once."""
        with self._changed:
            self._waiting.append(work)
            if self._thread is None:
                self._ends_at, self._has_dropped = None, False
                self._thread = threading.Thread(target=self._run, name="disco-state", daemon=True)
                try:
                    self._thread.start()
                except (
                    RuntimeError
                ):  # no thread may start now: the next work tries it again, or `finish` does the work
                    self._thread = None
            else:
                self._changed.notify()

    def finish(self, within_s: float) -> bool:
        """Wait until all is done that was put, for so many seconds at most; return whether it is.

        While the file is locked, it is tried again within that time. What it is then locked for is given up.
        """
        with self._changed:
            thread, self._ends_at = self._thread, time.monotonic() + within_s
            self._changed.notify()
            left = self._taken() if thread is None else ()
        if thread is None:
            return not left or self._done(left)
        thread.join(within_s + _LAST_TRY_S)
        return not (thread.is_alive() or self._has_dropped)

    def _run(self) -> None:
        works: list[Work] = []
        while True:
            with self._changed:
                if not works and not self._waiting and self._ends_at is None:
                    self._changed.wait(_IDLE_S)
                waiting = self._taken()
                works = [*works, *waiting][-MOST_WAITING:]
                if not works:
                    self._thread = None
                    return
            if self._done(works):
                works = []
                continue
            with self._changed:
                if self._ends_at is None:
                    self._changed.wait(_AGAIN_S)
                elif time.monotonic() >= self._ends_at:
                    works, self._has_dropped = [], True

    def _taken(self) -> Sequence[Work]:
        """Take what waits."""
        waiting, self._waiting = self._waiting, deque(maxlen=MOST_WAITING)
        return waiting

    def _done(self, works: Sequence[Work]) -> bool:
        try:
            return self._write(works)
        except Exception as error:  # noqa: BLE001 - a defect must not end the thread, nor what comes after
            _log.error(
                "What was learnt or spent was not written to the state file: %s.", type(error).__name__
            )
            return True
