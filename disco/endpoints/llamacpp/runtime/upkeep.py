"""When a worker does a job of its own."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

from disco.endpoints.llamacpp.runtime.job import Job

__all__ = ["IDLE_S", "LAST_S", "Upkeep"]

IDLE_S: Final = 2.0
"""How long the model has had nothing to do before upkeep begins, seconds."""

LAST_S: Final = 5.0
"""How long upkeep may keep a worker from closing, seconds."""


class Upkeep:
    """A job that comes when the model has had nothing to do for `IDLE_S`, once after every other job or several.

    It gives way to any job that comes, and is then due again. All under the worker's lock. Mutable: `running`,
    `_due_at`, `_grace_until`.

    Attributes:
        running: the job while it runs.

    Args:
        make: makes the job, which must not fail, of the time that it may take, seconds. None: there is none.
    """

    def __init__(self, make: Callable[[float], Job] | None) -> None:
        self.running: Job | None = None
        self._make = make
        self._due_at = inf
        self._grace_until = 0.0

    def due_in_s(self, now: float) -> float:
        """Return how long until the job is due, seconds; 0: it is; `inf`: there is nothing to do."""
        return max(0.0, self._due_at - now)

    def begin(self) -> Job:
        """Return the job, which the worker now runs."""
        assert self._make is not None
        self._due_at, self.running = inf, self._make(inf)
        return self.running

    def served(self, job: Job, now: float) -> None:
        """Note that the worker has left a job, whichever it was."""
        if job is self.running:
            self.running = None
            if not job.flag.is_set():
                return
        if self._make is not None:
            self._due_at = now + IDLE_S

    def last(self, now: float) -> Job | None:
        """Return the job for the time before the model is freed; None where there is none."""
        self._grace_until = now + LAST_S
        return None if self._make is None else self._make(LAST_S)

    def may_go_on(self, now: float) -> bool:
        """Return whether a closing worker still lets its engine work."""
        return now < self._grace_until
