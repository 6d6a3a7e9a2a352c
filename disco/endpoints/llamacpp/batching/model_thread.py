"""The thread of a model that serves many clients: it loads the model, takes orders, and computes pass after pass."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from disco.endpoints.llamacpp.model.stop_flag import Aborted

__all__ = ["ModelThread", "Steps"]


class Steps(Protocol):
    """Decides what is computed next."""

    @property
    def wake_at(self) -> float:
        """When something is to be done even if nobody asks, s; infinite where nothing is."""

    def step(self, now: float, /) -> bool:
        """Compute one pass; return whether there may be another."""


_log = logging.getLogger("disco")

S = TypeVar("S", bound=Steps)


class ModelThread(Generic[S]):
    """Runs a scheduler. It starts with the first order, and loads the model then.

    Mutable: `_orders`, `closing`, `_thread` under `_lock`; `scheduler`, which only the thread changes.

    Args:
        name: of the thread.
        load: loads the model and returns its scheduler.
        give_up: called where loading or computing failed, or the thread ends, with the scheduler, if there is one, and
            why (None: it was closed). It fails everything and frees the model; the next order loads it again. What it
            returns is told to those whose orders were not carried out.
        clock: s.

    Attributes:
        closing: whether the thread is to end.
        scheduler: None while no model is loaded.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[], S],
        give_up: Callable[[S | None, Exception | None], Exception | None],
        clock: Callable[[], float],
    ) -> None:
        self._name = name
        self._load = load
        self._give_up = give_up
        self._clock = clock
        self._lock = threading.Condition()
        self._orders: deque[tuple[Callable[[S], None], Callable[[Exception | None], None]]] = deque()
        self.closing = False
        self._thread: threading.Thread | None = None
        self.scheduler: S | None = None

    @property
    def idle(self) -> bool:
        """Whether there is no model, and nobody has asked for it."""
        return self.scheduler is None and not self._orders

    @property
    def has_orders(self) -> bool:
        """Whether orders wait."""
        return bool(self._orders)

    def submit(self, order: Callable[[S], None], refuse: Callable[[Exception | None], None]) -> None:
        """Have the thread carry out an order; `refuse` is called instead where it cannot, with why."""
        with self._lock:
            if not self.closing:
                self._orders.append((order, refuse))
                if self._thread is None:
                    self._thread = threading.Thread(target=self._main, name=self._name, daemon=True)
                    self._thread.start()
                self._lock.notify()
                return
        refuse(None)

    def close(self) -> None:
        """Let the thread end after its pass; does not wait."""
        with self._lock:
            self.closing = True
            self._lock.notify()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the thread has ended, but no longer than the timeout."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _main(self) -> None:
        while self._wait():
            try:
                if self.scheduler is None:
                    self.scheduler = self._load()
                self._work(self.scheduler)
            except Aborted:
                self._fail(None)
            except Exception as exc:  # noqa: BLE001 - all clients must hear of it
                self._fail(exc)
        self._fail(None)

    def _wait(self) -> bool:
        """Wait until there is something to do; return False where the thread is to end."""
        with self._lock:
            while not self.closing and not self._orders:
                wake_at = float("inf") if self.scheduler is None else self.scheduler.wake_at
                left_s = wake_at - self._clock()
                if left_s <= 0:
                    break
                self._lock.wait(None if wake_at == float("inf") else left_s)
            return not self.closing

    def _work(self, scheduler: S) -> None:
        while not self.closing:
            while self._orders:
                with self._lock:
                    order, _ = self._orders.popleft()
                order(scheduler)
            if not scheduler.step(self._clock()) and not self._orders:
                return

    def _fail(self, why: Exception | None) -> None:
        with self._lock:  # first: who asks again, once told, must find a new model
            refused = [refuse for _, refuse in self._orders]
            self._orders.clear()
        scheduler, self.scheduler = self.scheduler, None
        try:
            why = self._give_up(scheduler, why)
        except Exception as exc:  # noqa: BLE001 - the thread must live on: the next order loads the model again
            _log.error("%s: the model could not be given up (%s)", self._name, type(exc).__name__)
            why = why or exc
        for refuse in refused:
            try:
                refuse(why)
            except Exception as exc:  # noqa: BLE001 - one client's; the others must hear of it, too
                _log.error("%s: an order could not be refused (%s)", self._name, type(exc).__name__)
