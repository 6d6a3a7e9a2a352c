"""What a reader got, and what its process holds. Needs nothing but Python: litellm's environment has no more."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

Stock = Counter[str]


@dataclass
class Got:
    """What a reader got; times are seconds since the request, `times` those of each chunk with text.

    `met`: the fault struck this request. `wrong`: what is not exact, in words. `gaps`: for each failure that somebody
    took over from, the reader's wait around it and whether text was there. `hedged`: endpoints that were
    started because another one was silent.
    """

    text: str = ""
    times: list[float] = field(default_factory=list)
    finish: str | None = None
    error: str | None = None
    end: float = 0.0
    met: bool = False
    wrong: str | None = None
    gaps: list[tuple[float, bool]] = field(default_factory=list)
    hedged: list[str] = field(default_factory=list)

    @property
    def completed(self) -> bool:
        return self.error is None and self.finish in ("stop", "length")

    @property
    def longest_s(self) -> float:
        """The reader's longest wait."""
        return max(b - a for a, b in pairwise([0.0, *self.times, self.end]))

    def waited_s(self, pace_tps: float) -> float:
        """The longest wait for text of a reader who reads a chunk in `1/pace_tps` seconds, that for the first included.

        A chunk may hold more than a token, so a real reader has a little more time than this one.
        """
        ready_at = longest_s = 0.0
        for at in self.times:
            longest_s = max(longest_s, at - ready_at)
            ready_at = max(at, ready_at) + 1 / pace_tps
        return longest_s

    @property
    def ended_late_s(self) -> float:
        """How long the end of the answer came after its last text."""
        return self.end - self.times[-1] if self.times else self.end

    @property
    def restarts(self) -> int:
        """Characters before the place where the text begins anew."""
        return max(0, self.text.find(self.text[:24], 1)) if len(self.text) > 24 else 0


def stock() -> Stock:
    """File descriptors, threads, tasks and child processes of this process; without /proc, what Python knows."""
    gc.collect()
    found: Stock = Counter(threads=threading.active_count(), tasks=len(asyncio.all_tasks()))
    with contextlib.suppress(OSError):
        found["file descriptors"] = sum(1 for _ in Path("/proc/self/fd").iterdir())
        for process in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                found["children"] += process.read_text().rpartition(")")[2].split()[1] == str(os.getpid())
    return found


async def asked(
    create: Callable[..., Any],
    prompt: str,
    limit: int,
    on_chunk: Callable[[int], None] = lambda _chunks: None,
    **more: Any,
) -> tuple[Got, Any]:
    """One answer, whatever becomes of it, and its route where it has one."""
    got, began, stream = Got(), time.monotonic(), None
    try:
        messages = [{"role": "user", "content": prompt}]
        stream = await create(messages=messages, max_tokens=limit, temperature=0, stream=True, **more)
        async for chunk in stream:
            if chunk.choices:
                if content := chunk.choices[0].delta.content:
                    got.text += content
                    got.times.append(time.monotonic() - began)
                    on_chunk(len(got.times))
                got.finish = chunk.choices[0].finish_reason or got.finish
        route = getattr(stream, "route", None)
    except Exception as error:  # noqa: BLE001 - whatever it is, the answer is broken
        got.error = type(error).__name__
        route = getattr(error, "route", None)
    finally:
        got.end = time.monotonic() - began
        if inspect.iscoroutinefunction(getattr(stream, "close", None)):
            await stream.close()
    return got, route
