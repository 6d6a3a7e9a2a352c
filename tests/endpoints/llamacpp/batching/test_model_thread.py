"""The thread of a model outlives whatever fails in it, and every order has an outcome."""

from __future__ import annotations

import threading
import time

import pytest

from disco.endpoints.llamacpp.batching.model_thread import ModelThread

WITHIN_S = 30.0


class Steps:
    wake_at = float("inf")

    def step(self, now):
        del now
        return False


class Asked:
    """Orders of a thread, and what became of them."""

    def __init__(self, thread):
        self._thread = thread
        self.heard = []

    def ask(self, order=lambda scheduler: None, refuse=lambda why: None):
        """What became of an order: its scheduler, or why it was refused."""
        done, found = threading.Event(), []

        def carried_out(scheduler):
            order(scheduler)
            found.append(scheduler)
            done.set()

        def refused(why):
            found.append(why)
            done.set()
            refuse(why)

        self._thread.submit(carried_out, refused)
        assert done.wait(WITHIN_S), "nothing became of an order"
        return found[0]


@pytest.fixture
def loads():
    return []


@pytest.fixture
def asked(loads):
    def load():
        loads.append(1)
        if len(loads) == 1:
            raise MemoryError
        return Steps()

    def give_up(scheduler, why):
        if why is not None:
            raise OSError("it cannot be freed")
        return why

    thread = ModelThread("test", load, give_up, time.monotonic)
    yield Asked(thread)
    thread.close()
    thread.join()


def test_a_model_that_cannot_even_be_given_up_is_loaded_again(asked, loads, caplog):
    assert isinstance(asked.ask(), MemoryError)
    assert isinstance(asked.ask(), Steps)
    assert len(loads) == 2
    assert "could not be given up" in caplog.text


def test_one_client_that_cannot_be_told_takes_nothing_from_the_others(asked, caplog):
    def gone(why):
        raise RuntimeError("its event loop is closed")

    assert isinstance(asked.ask(refuse=gone), MemoryError)
    assert isinstance(asked.ask(), Steps)
    assert "could not be refused" in caplog.text
