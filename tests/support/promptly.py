"""What must stop soon, as a block; the stopwatch is `disco.testing.stopwatch`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from disco.testing.stopwatch import CPU_S, WITHIN_S, Since, cpu_s

__all__ = ["CPU_S", "WITHIN_S", "Since", "cpu_s", "promptly"]


@contextlib.contextmanager
def promptly(limit_s: float = CPU_S, within_s: float = WITHIN_S) -> Iterator[None]:
    """The block must be done soon."""
    since = Since()
    yield
    since.check(limit_s, within_s)
