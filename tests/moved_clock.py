"""A clock that runs as the real one does, and that a test moves: for time-outs on real sockets.

Tests that wait for a silence set clocks of many seconds, which no busy machine uses up, and move the clock once the
silence has begun for certain. A fixture gives `backend("asyncio")` or `backend("trio")` to anyio.
"""

from __future__ import annotations

import asyncio
from typing import Any

import sniffio
import trio.lowlevel
import trio.testing

__all__ = ["backend", "is_running", "skip"]


class MovedLoop(asyncio.SelectorEventLoop):
    """Mutable: `moved_s`, the seconds that were skipped."""

    moved_s = 0.0

    def time(self) -> float:
        return super().time() + self.moved_s


def backend(name: str) -> tuple[str, dict[str, Any]]:
    """What anyio takes as its backend, with a new clock."""
    if name == "trio":
        return name, {"clock": trio.testing.MockClock(rate=1.0)}
    return name, {"loop_factory": MovedLoop}


def is_running() -> bool:
    """Whether the running loop's clock is one of these."""
    if sniffio.current_async_library() == "trio":
        return isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock)
    return isinstance(asyncio.get_running_loop(), MovedLoop)


def skip(seconds: float) -> None:
    """Move the running loop's clock."""
    if sniffio.current_async_library() == "trio":
        clock = trio.lowlevel.current_clock()
        assert isinstance(clock, trio.testing.MockClock)
        clock.jump(seconds)
        return
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MovedLoop)
    loop.moved_s += seconds
