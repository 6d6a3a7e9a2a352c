"""Clocks of event loops that are not the machine's, on asyncio as well as on trio."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

import anyio
import sniffio
import trio.lowlevel
import trio.testing

__all__ = ["backend", "pass_silence", "skip", "virtual"]


class MovedLoop(asyncio.SelectorEventLoop):
    """Mutable: `moved_s`, the seconds that were skipped."""

    moved_s = 0.0

    def time(self) -> float:
        return super().time() + self.moved_s


class _Impatient(selectors.DefaultSelector):
    """Skips the time that its loop would wait."""

    loop: MovedLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(timeout if timeout is None or timeout <= 0 else 0)
        if not ready and timeout is not None and timeout > 0:
            self.loop.moved_s += timeout
        return ready


class VirtualLoop(MovedLoop):
    """Its time passes by the time-outs of its selector."""

    def __init__(self) -> None:
        selector = _Impatient()
        super().__init__(selector)
        selector.loop = self

    def time(self) -> float:
        return self.moved_s


def virtual(name: str) -> tuple[str, dict[str, Any]]:
    """An anyio backend whose time stands still while anything can run, and jumps to the next deadline otherwise.

    Not for sockets or threads, of which it knows nothing.
    """
    if name == "trio":
        return name, {"clock": trio.testing.MockClock(autojump_threshold=0)}
    return name, {"loop_factory": VirtualLoop}


def backend(name: str) -> tuple[str, dict[str, Any]]:
    """An anyio backend whose clock runs as the real one does, and can be moved: for time-outs on real sockets."""
    if name == "trio":
        return name, {"clock": trio.testing.MockClock(rate=1.0)}
    return name, {"loop_factory": MovedLoop}


def skip(seconds: float) -> None:
    """Move the running loop's clock, which must be one of these."""
    if sniffio.current_async_library() == "trio":
        trio.lowlevel.current_clock().jump(seconds)
    else:
        asyncio.get_running_loop().moved_s += seconds


async def pass_silence(is_silent: Callable[[], bool], step_s: float) -> None:
    """For ever: move the clock on, step by step, while nothing but the clock can bring anything."""
    while True:
        await anyio.sleep(0.002)
        if is_silent():
            skip(step_s)
