"""The one thread that owns the model, and the queue in front of it."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial

from disco.endpoints.llamacpp.model.native import Aborted
from disco.endpoints.llamacpp.runtime.job import Engine, Job, Lost, failure_of
from disco.endpoints.llamacpp.runtime.restart_backoff import Backoff
from disco.endpoints.llamacpp.runtime.thread_mailbox import Mailbox
from disco.errors import EndpointFailure, FailureKind, LocalModelError

__all__ = ["Load", "ModelWorker"]


# Makes the engine; while it works, it calls its argument to learn whether to continue.
Load = Callable[[Callable[[], bool]], Engine]


class ModelWorker:
    """A thread that is started by the first job, loads the model, and works through a FIFO queue.

    When an engine is lost, all waiting jobs fail. Restarting it is delayed, and jobs are refused meanwhile. If the
    engine had been loaded, it is then loaded again without a request: otherwise a plan that prefers a loaded model
    would never use it again.

    Mutable, all under `_lock`: `_queue`, `_running`, `_closing`, `_ended`, `_thread`, `_leaving`, `_backoff`,
    `_bring_back`.

    Attributes:
        model: the loaded model; None before loading and after closing. Other threads may only read plain attributes.

    Args:
        load: makes the model, in the worker's thread.
        name: the endpoint's, for messages and for the thread.
        max_queue: how many jobs may wait.
    """

    def __init__(self, load: Load, *, name: str, max_queue: int) -> None:
        self.model: Engine | None = None
        self._load = load
        self._name = name
        self._max_queue = max_queue
        self._lock = threading.Condition()
        self._queue: deque[Job] = deque()
        self._running: Job | None = None
        self._closing = False
        self._ended = False
        self._thread: threading.Thread | None = None
        self._leaving: list[Mailbox] = []
        self._backoff = Backoff()
        self._bring_back = False

    @property
    def waiting(self) -> int:
        """How many jobs a new job would wait for."""
        running = self._running is not None
        return len(self._queue) + running

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
            try:
                self._queue.remove(job)
            except ValueError:
                self._tell(job)
                return  # the job runs or has ended
        job.mail.close()

    def park(self, job: Job) -> None:
        """Ask a job to end where it can without losing what it has computed."""
        job.park = True
        with self._lock:
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
                pause_s = self._backoff.left_s(time.monotonic())
                if self.model is not None and self.model.lost is not None:
                    return True
                if pause_s == 0 and (self._queue or self._bring_back):
                    return True
                self._lock.wait(pause_s or None)
            return False

    def _take(self) -> Job | None:
        with self._lock:
            self._running = self._queue.popleft() if self._queue and not self._closing else None
            return self._running

    def _try_to_load(self) -> bool:
        self._bring_back = False
        try:
            self.model = self._load(lambda: not self._closing)
        except Aborted:
            return False
        except Lost as exc:
            self._lose(str(exc))
            return False
        except Exception as exc:  # noqa: BLE001 - any error must reach all waiting jobs
            self._fail_all(partial(self._failure, exc, "could not be loaded"))
            return False
        return True

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
        with self._lock:
            waiting = list(self._queue)
            self._queue.clear()
        for job in waiting:
            self._fail(job, failure())

    def _unload(self) -> None:
        model, self.model = self.model, None
        if model is not None:
            model.close()

    def _serve(self, job: Job) -> None:
        model = self.model
        assert model is not None
        try:
            job.check()
            model.serve(job)
            if job.usage.completion_tokens:
                self._backoff.served()
        except Aborted:
            if self._closing:
                job.mail.put(self._closed())
        except Lost as exc:
            self._lose(str(exc), job)
        except EndpointFailure as exc:
            job.mail.put(exc)
        except Exception as exc:  # noqa: BLE001 - the thread must outlive any one job
            job.mail.put(self._failure(exc, "failed while it worked"))
            self._unload()
        with self._lock:
            self._running = None
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
        worker.close_now(5.0)
