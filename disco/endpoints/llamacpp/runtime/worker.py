"""The one thread that owns the model, and the queue in front of it."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from typing import Final

from disco.endpoints.contract import PAUSE_HOLD_S
from disco.endpoints.llamacpp.model.native import Aborted
from disco.endpoints.llamacpp.runtime.job import Engine, Job, Lost, failure_of
from disco.endpoints.llamacpp.runtime.restart_backoff import Backoff
from disco.endpoints.llamacpp.runtime.thread_mailbox import Mailbox
from disco.endpoints.llamacpp.runtime.upkeep import LAST_S, Upkeep
from disco.errors import EndpointFailure, FailureKind, LocalModelError

__all__ = ["Load", "ModelWorker"]

EXIT_S: Final = LAST_S + 5.0  # how long the interpreter's exit waits for a worker, its last upkeep included

# Makes the engine; while it works, it calls its argument to learn whether to continue.
Load = Callable[[Callable[[], bool]], Engine]


class ModelWorker:
    """A thread that is started by the first job, loads the model, and works through a FIFO queue.

    When an engine is lost, all waiting jobs fail. Restarting it is delayed, and jobs are refused meanwhile. If the
    engine had been loaded, it is then loaded again without a request: otherwise a plan that prefers a loaded model
    would never use it again.

    A job that was paused gives the thread back and is kept aside. The model stays free for it for `PAUSE_HOLD_S`; then
    it serves the jobs that wait. A resumed job comes before those that have not begun.

    A resident job (`Job.resident`) gives the thread back after each of its orders and keeps nothing free. Its next
    order comes behind all jobs that wait: it is only a help to an answer that another model writes.

    A job of the worker's own (`Upkeep`) comes when the model has nothing to do, and before it is freed.

    Mutable, all under `_lock`: `_queue`, `_running`, `_aside` (jobs that gave the thread back), `_holder` (the one of
    them that used the model last; None once another job does), `_held_until`, `_dropped` (cancelled ones), `_closing`,
    `_ended`, `_thread`, `_leaving`, `_backoff`, `_bring_back`, `_upkeep`.

    Attributes:
        model: the loaded model; None before loading and after closing. Other threads may only read plain attributes.
        load_s: how long it took to load, seconds; None before.
        loading_since: when the model began to load, on the monotonic clock; None: it does not load.

    Args:
        load: makes the model, in the worker's thread.
        name: the endpoint's, for messages and for the thread.
        max_queue: how many jobs may wait.
        upkeep: makes the job of the worker's own, of the time that it may take, s; None: there is none.
    """

    def __init__(
        self, load: Load, *, name: str, max_queue: int, upkeep: Callable[[float], Job] | None = None
    ) -> None:
        self.model: Engine | None = None
        self.load_s: float | None = None
        self.loading_since: float | None = None
        self._load = load
        self._name = name
        self._max_queue = max_queue
        self._lock = threading.Condition()
        self._queue: deque[Job] = deque()
        self._running: Job | None = None
        self._aside: list[Job] = []
        self._holder: Job | None = None
        self._held_until = 0.0
        self._dropped: list[Job] = []
        self._closing = False
        self._ended = False
        self._thread: threading.Thread | None = None
        self._leaving: list[Mailbox] = []
        self._backoff = Backoff()
        self._bring_back = False
        self._upkeep = Upkeep(upkeep)

    @property
    def waiting(self) -> int:
        """How many jobs a new job would wait for."""
        taken = self._running not in (None, self._upkeep.running) or self._holder is not None
        resumed = sum(job.ready and not job.resident for job in self._aside if job is not self._holder)
        return sum(not job.is_brief for job in tuple(self._queue)) + resumed + taken

    def occupied_beside(self, job: Job | None) -> bool:
        """Return whether a resident job would wait for other jobs now."""
        runs = (
            job is not None and job is self._running
        )  # looked at first: it may end while the others are counted
        return self.waiting > runs

    def submit(self, job: Job) -> None:
        """Queue a job.

        Raises:
            EndpointFailure: RATE_LIMIT when the queue is full, CRASHED when the endpoint is closed or its engine was
                lost a moment ago.
        """
        with self._lock:
            if self._closing:
                raise self._closed()
            if self._backoff.left_s(time.monotonic()):
                raise self._lost()
            if len(self._queue) >= self._max_queue:
                message = (
                    f"Endpoint {self._name!r} is too busy: {len(self._queue)} requests wait for its model. "
                    "Send fewer at a time, or raise max_queue."
                )
                raise EndpointFailure(FailureKind.RATE_LIMIT, LocalModelError(message))
            self._queue.append(job)
            if self._upkeep.running is not None:  # it gives way
                self._upkeep.running.flag.set()
                self._tell(self._upkeep.running)
            if self._thread is None:
                # A daemon, so that a program that does not close the endpoint can end; see `_close_at_exit`.
                self._thread = threading.Thread(target=self._main, name=f"disco-{self._name}", daemon=True)
                _close_at_exit(self)
                self._thread.start()
            self._lock.notify()

    def cancel(self, job: Job) -> None:
        """Stop a job; one that still waits never uses the model. Its mailbox is closed once the job has stopped."""
        job.flag.set()
        with self._lock:
            if job in self._aside:
                self._aside.remove(job)
                self._dropped.append(job)
                self._holder = None if self._holder is job else self._holder
                self._lock.notify()
            elif job in self._queue:
                self._queue.remove(job)
            else:
                self._tell(job)
                return  # the job runs or has ended
        job.mail.close()

    def park(self, job: Job) -> None:
        """Ask a job to end where it can without losing what it has computed."""
        job.park = True
        self.pause(job, paused=False)

    def pause(self, job: Job, *, paused: bool = True) -> None:
        """Ask a job to give the model up before its next token, or to go on."""
        with self._lock:
            job.paused = paused
            self.tell(job)  # the lock is reentrant

    def tell(self, job: Job) -> None:
        """Let a job see at once what has changed for it: its flags, or its orders."""
        with self._lock:
            self._lock.notify()
            self._tell(job)

    def _tell(self, job: Job) -> None:
        if self.model is not None and self._running is job:
            self.model.signal(job)

    def wake(self) -> None:
        """Make the worker check that the model is still there; from any thread."""
        with self._lock:
            self._lock.notify()

    async def aclose(self) -> None:
        """Stop everything, free the model and end the thread. Idempotent."""
        with self._lock:
            self._closing = True
            thread = self._thread
            if thread is None or self._ended:
                return
            left = Mailbox()
            self._leaving.append(left)
        self._stop()
        await left.wait_closed()
        thread.join()  # the thread has only to return

    def close_now(self, timeout_s: float) -> None:
        """Do the same as `aclose`, outside any event loop: at the interpreter's exit."""
        self._stop()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _stop(self) -> None:
        with self._lock:
            self._closing = True
            if self._running is not None:
                self._running.flag.set()
            self._lock.notify()

    def _closed(self) -> EndpointFailure:
        message = f"Endpoint {self._name!r} is closed; make a new one."
        return EndpointFailure(FailureKind.CRASHED, LocalModelError(message))

    # In the thread

    def _main(self) -> None:
        try:
            while self._wait_for_work():
                if self.model is not None and self.model.lost is not None:
                    self._lose(self.model.lost)
                    continue
                # Jobs wait in the queue while the model loads, so that they can be cancelled at once.
                if self.model is None and not self._try_to_load():
                    continue
                job = self._take()
                if job is not None:
                    self._serve(job)
        finally:
            self._fail_paused(self._closed)
            self._keep_up_last()
            self._unload()
            with self._lock:
                self._closing = self._ended = True
                leaving = self._leaving
            self._fail_all(self._closed)
            for mail in leaving:
                mail.close()

    def _wait_for_work(self) -> bool:
        with self._lock:
            while not self._closing:
                while self._dropped:
                    self._drop(self._dropped.pop())
                now = time.monotonic()
                pause_s = self._backoff.left_s(now)
                if self.model is not None and self.model.lost is not None:
                    return True
                if pause_s == 0 and (self._next_job() is not None or self._bring_back):
                    return True
                upkeep_in_s = self._upkeep_in_s(now)
                if upkeep_in_s == 0:
                    return True
                if self._holder is not None:
                    pause_s = max(pause_s, self._held_until - now)
                wait_s = min(pause_s or inf, upkeep_in_s)
                self._lock.wait(None if wait_s == inf else wait_s)
            return False

    def _upkeep_in_s(self, now: float) -> float:
        return inf if self.model is None or self._holder is not None else self._upkeep.due_in_s(now)

    def _next_job(self) -> Job | None:
        """Return the job that may use the model now."""
        ready = [job for job in self._aside if job.ready]
        resumed = [job for job in ready if not job.resident]
        if self._holder is not None:
            if self._holder in resumed:
                return self._holder
            if time.monotonic() < self._held_until:
                return None
        return next(iter((*resumed, *self._queue, *ready)), None)

    def _take(self) -> Job | None:
        with self._lock:
            job = self._running = None if self._closing else self._next_job()
            if job is None and not self._closing and self._upkeep_in_s(time.monotonic()) == 0:
                job = self._running = self._upkeep.begin()
            elif job is not None:
                (self._aside if job in self._aside else self._queue).remove(job)
                self._holder = None
            return job

    def _try_to_load(self) -> bool:
        self._bring_back = False
        since = self.loading_since = time.monotonic()
        try:
            self.model = self._load(self._keeps_going)
            self.load_s = time.monotonic() - since
        except Aborted:
            return False
        except Lost as exc:
            self._lose(str(exc))
            return False
        except Exception as exc:  # noqa: BLE001 - any error must reach all waiting jobs
            self._fail_all(partial(self._failure, exc, "could not be loaded"))
            return False
        finally:
            self.loading_since = None
        return True

    def _keeps_going(self) -> bool:
        return not self._closing or self._upkeep.may_go_on(time.monotonic())

    def _keep_up_last(self) -> None:
        model = self.model
        if model is None or model.lost is not None:
            return
        job = self._upkeep.last(time.monotonic())
        if job is not None:
            with suppress(Exception):  # whatever happens to the engine, it is freed next
                model.serve(job)

    def _lose(self, why: str, job: Job | None = None) -> None:
        """Fail all jobs because the process of the model is gone, and delay its restart."""
        with self._lock:
            self._backoff.lost(why, time.monotonic())
            self._bring_back = self.model is not None
        # Jobs fail before the engine is unloaded: the end of the process may take a while.
        if job is not None:
            job.mail.put(self._lost())
        self._fail_all(self._lost)
        self._unload()

    def _lost(self) -> EndpointFailure:
        wait_s = self._backoff.left_s(time.monotonic())
        message = f"{self._backoff.why} The endpoint takes requests again in {wait_s:.1f} s."
        # A little longer, so that a retry does not come too early.
        return EndpointFailure(FailureKind.CRASHED, LocalModelError(message), retry_after_s=wait_s + 0.05)

    def _fail_all(self, failure: Callable[[], EndpointFailure]) -> None:
        self._fail_paused(failure)
        with self._lock:
            waiting = list(self._queue)
            self._queue.clear()
        for job in waiting:
            self._fail(job, failure())

    def _fail_paused(self, failure: Callable[[], EndpointFailure]) -> None:
        with self._lock:
            paused, self._aside, self._holder = self._aside, [], None
        for job in paused:
            self._drop(job)
            self._fail(job, failure())

    def _drop(self, job: Job) -> None:
        if self.model is not None:
            self.model.drop(job)

    def _unload(self) -> None:
        model, self.model = self.model, None
        if model is not None:
            model.close()

    def _serve(self, job: Job) -> None:
        model = self.model
        assert model is not None
        over = True
        try:
            job.check()
            over = model.serve(job)
            if job.usage.completion_tokens:
                self._backoff.served()
        except Aborted:
            model.drop(job)
            if self._closing:
                job.mail.put(self._closed())
        except Lost as exc:
            self._lose(str(exc), job)
        except EndpointFailure as exc:
            job.mail.put(exc)
        except Exception as exc:  # noqa: BLE001 - the thread must outlive any one job
            failure = partial(self._failure, exc, "failed while it worked")
            job.mail.put(failure())
            self._fail_paused(failure)  # their tokens and samplers belong to the model that is given up
            self._unload()
        with self._lock:
            self._running = None
            self._upkeep.served(job, time.monotonic())
            if not over and not job.flag.is_set():
                self._aside.append(job)
                if not job.resident:
                    self._holder, self._held_until = job, time.monotonic() + PAUSE_HOLD_S
                return
        if not over:
            model.drop(job)
        job.mail.close()

    def _fail(self, job: Job, failure: EndpointFailure) -> None:
        job.mail.put(failure)
        job.mail.close()

    def _failure(self, exc: Exception, what: str) -> EndpointFailure:
        return failure_of(exc, f"The model of endpoint {self._name!r} {what}")


_workers: weakref.WeakSet[ModelWorker] = weakref.WeakSet()


def _close_at_exit(worker: ModelWorker) -> None:
    # A thread inside llama.cpp while the interpreter is taken down can crash the process.
    if not _workers:
        atexit.register(_close_all)
    _workers.add(worker)


def _close_all() -> None:
    for worker in list(_workers):
        worker.close_now(EXIT_S)
