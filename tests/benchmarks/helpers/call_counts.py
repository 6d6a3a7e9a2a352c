"""Counts the calls of functions that a request makes: a measure that other work on the machine cannot change."""

from __future__ import annotations

import gc
import sys
from collections.abc import Awaitable, Callable
from statistics import median
from types import FrameType
from typing import Any


async def calls_of(
    ask: Callable[[], Awaitable[Any] | Any], requests: int, warm_up: int = 5
) -> tuple[float, float]:
    """Calls of Python functions and of C functions by this thread for a request, libraries included; the medians.

    The count differs a little with how the answer's bytes arrive.
    """
    counts: list[tuple[int, int]] = []
    for number in range(warm_up + requests):
        gc.collect()  # finalizers of earlier requests are not this one's
        seen = {"call": 0, "c_call": 0}

        def count(frame: FrameType, event: str, of: Any, seen: dict[str, int] = seen) -> None:
            if event in seen:
                seen[event] += 1

        sys.setprofile(count)
        try:
            result = ask()
            if hasattr(result, "__await__"):
                await result
        finally:
            sys.setprofile(None)
        if number >= warm_up:
            counts.append((seen["call"], seen["c_call"]))
    python, native = zip(*counts, strict=True)
    return median(python), median(native)
