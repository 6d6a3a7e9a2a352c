"""The background loop of the synchronous client: it ends whenever and wherever its owner ends."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest
from anyio.from_thread import BlockingPortal

from disco.client.sync.portal import Portal


def loops() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "disco-loop"}


def test_it_starts_with_the_first_call_ends_with_close_and_may_start_again():
    before, portal = loops(), Portal()
    assert (portal.is_open, loops()) == (False, before)
    for _ in range(2):
        assert portal.run(anyio.sleep, 0) is None
        assert (portal.is_open, len(loops() - before)) == (True, 1)
        portal.close()
        portal.close()
        assert (portal.is_open, loops()) == (False, before)


def test_threads_share_one_loop():
    before, portal, seen = loops(), Portal(), []

    async def here() -> None:
        seen.append(asyncio.get_running_loop())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(portal.run, [here] * 8))
    assert (len(seen), len(set(seen)), len(loops() - before)) == (8, 1, 1)
    portal.close()


@pytest.mark.parametrize("where", ["here", "in the loop"])
def test_an_owner_that_is_forgotten_ends_it(where):
    """The garbage collector may come in any thread, the loop's own too."""
    before, portal = loops(), Portal()
    portal.run(anyio.sleep, 0)
    (thread,) = loops() - before
    if where == "in the loop":
        owner = [portal]

        async def forget() -> None:
            owner.clear()
            gc.collect()

        started = portal._open()  # the portal's own frame would hold the owner
        del portal
        started.call(forget)
    portal = None
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of another kind")
def test_an_interrupted_call_is_cancelled_in_the_loop_and_the_portal_goes_on():
    portal, cancelled = Portal(), threading.Event()

    def the_call_waits() -> bool:
        return sys._current_frames()[threading.main_thread().ident].f_code.co_name == "wait"

    async def work() -> None:
        while not the_call_waits():  # noqa: ASYNC110 - nothing tells of it
            await anyio.sleep(0.001)
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            portal.run(work)
    finally:
        signal.signal(signal.SIGINT, before)
    assert cancelled.wait(60)
    assert portal.run(anyio.sleep, 0) is None
    portal.close()


def test_an_interrupt_that_comes_before_the_call_is_known_cancels_it_too(monkeypatch):
    """On a busy machine the call may run before its caller is told that it was started."""
    portal, cancelled, start = Portal(), threading.Event(), BlockingPortal.start_task_soon

    def interrupted(*call) -> None:
        start(*call)
        raise KeyboardInterrupt

    async def work() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    monkeypatch.setattr(BlockingPortal, "start_task_soon", interrupted)
    with pytest.raises(KeyboardInterrupt):
        portal.run(work)
    assert cancelled.wait(60)
    portal.close()
