"""The one thread that owns the model, and the queue in front of it."""

from __future__ import annotations

import atexit
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from disco.endpoints.llamacpp.handover import Mailbox
from disco.endpoints.llamacpp.native import Aborted, NativeModel, StopFlag
from disco.errors import DiscoError, EndpointFailure, FailureKind, LocalModelError

__all__ = ["Job", "Load", "Worker"]

# Makes the model; asks its argument, while it works, whether to go on.
Load = Callable[[Callable[[], bool]], NativeModel]


class Job(ABC):
    """Something the model is to do. Made in the event loop, run in the worker's thread.

    Attributes:
        mail: what it hands over; an `EndpointFailure` when it failed; closed once the worker has left it.
        flag: stops it.
    """

    def __init__(self) -> None:
        self.mail = Mailbox()
        self.flag = StopFlag()

    @abstractmethod
    def run(self, model: NativeModel) -> None:
        """Do it; in the worker's thread. `Aborted` may pass through."""

    def check(self) -> None:
        """Leave if it was cancelled, or if nobody is left to listen."""
        if self.flag.is_set() or self.mail.abandoned:
            raise Aborted


class Worker:
    """A thread that is started by the first job, loads the model, and works through a FIFO queue.

    Mutable, all under `_lock`: `_queue`, `_running`, `_closing`, `_ended`, `_thread`, `_leaving`.

    Attributes:
        model: the loaded model, None before and after; other threads may read its plain attributes only.

    Args:
        load: makes the model, in the worker's thread.
        name: the endpoint's, for messages and for the thread.
        max_queue: how many jobs may wait.
    """

    def __init__(self, load: Load, *, name: str, max_queue: int) -> None:
        self.model: NativeModel | None = None
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

    def submit(self, job: Job) -> None:
        """Queue a job.

        Raises:
            EndpointFailure: RATE_LIMIT when the queue is full, CRASHED when the endpoint is closed.
        """
        with self._lock:
            if self._closing:
                raise self._closed()
            if len(self._queue) >= self._max_queue:
                message = (
                    f"Endpoint {self._name!r} is too busy: {len(self._queue)} requests wait for its model. "
                    "Send fewer at a time, or raise max_queue."
                )
                raise EndpointFailure(FailureKind.RATE_LIMIT, LocalModelError(message))
            self._queue.append(job)
            if self._thread is None:
                # A daemon, so that a program that forgets to close can end; see `_close_at_exit`.
                self._thread = threading.Thread(target=self._main, name=f"disco-{self._name}", daemon=True)
                _close_at_exit(self)
                self._thread.start()
            self._lock.notify()

    def cancel(self, job: Job) -> None:
        """Stop a job; one that still waits never touches the model. Its mailbox is closed once it stopped."""
        job.flag.set()
        with self._lock:
            try:
                self._queue.remove(job)
            except ValueError:
                return  # running or over
        job.mail.close()

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
        thread.join()  # it has nothing left to do but return

    def close_now(self, timeout_s: float) -> None:
        """The same outside any event loop: at the interpreter's exit."""
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
                waiting, leaving = list(self._queue), self._leaving
                self._queue.clear()
            for job in waiting:
                self._fail(job, self._closed())
            for mail in leaving:
                mail.close()

    def _wait_for_work(self) -> bool:
        with self._lock:
            while not self._queue and not self._closing:
                self._lock.wait()
            return not self._closing

    def _take(self) -> Job | None:
        with self._lock:
            self._running = self._queue.popleft() if self._queue and not self._closing else None
            return self._running

    def _try_to_load(self) -> bool:
        try:
            self.model = self._load(lambda: not self._closing)
        except Aborted:
            return False
        except Exception as exc:  # noqa: BLE001 - whatever it is, everybody who waits must hear of it
            with self._lock:
                waiting = list(self._queue)
                self._queue.clear()
            for job in waiting:
                self._fail(job, self._failure(exc, "could not be loaded"))
            return False
        return True

    def _unload(self) -> None:
        model, self.model = self.model, None
        if model is not None:
            model.close()

    def _serve(self, job: Job) -> None:
        model = self.model
        assert model is not None
        try:
            job.check()
            model.begin(job.flag)
            job.run(model)
        except Aborted:
            if self._closing:
                job.mail.put(self._closed())
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
        if isinstance(exc, DiscoError):
            error: Exception = exc
        else:
            # Foreign messages may quote a prompt: name the type, keep the rest as the cause.
            error = LocalModelError(f"The model of endpoint {self._name!r} {what} ({type(exc).__name__}).")
            error.__cause__ = exc
        failure = EndpointFailure(FailureKind.CRASHED, error)
        failure.__cause__ = exc
        return failure


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


def _close_at_exit(worker: Worker) -> None:
    # A thread inside llama.cpp while the interpreter is taken down can crash the process.
    if not _workers:
        atexit.register(_close_all)
    _workers.add(worker)


def _close_all() -> None:
    for worker in list(_workers):
        worker.close_now(5.0)
