"""How a computation of llama.cpp is stopped, from any thread."""

from __future__ import annotations

import ctypes

__all__ = ["Aborted", "StopFlag"]


class Aborted(Exception):
    """The stop flag was set."""


class StopFlag:
    """Two bytes that stop llama.cpp in the middle of a computation, from any thread.

    llama.cpp calls a C function `bool f(void *)` about once per node of its graph. A Python function would need the
    interpreter's lock each time, hundreds of times a token, and would starve beside a busy event loop. `strlen` does
    not need the lock: on these bytes it returns 0 until the first of them is set, then 1.
    """

    def __init__(self) -> None:
        self._bytes = ctypes.create_string_buffer(2)

    def set(self) -> None:
        """Stop the computation that was begun with this flag."""
        self._bytes[0] = b"\x01"

    def clear(self) -> None:
        """Let the next computation go on."""
        self._bytes[0] = b"\x00"

    def is_set(self) -> bool:
        """Whether a stop was requested."""
        return self._bytes[0] != b"\x00"

    @property
    def address(self) -> int:
        """The address of the bytes; valid as long as this object lives."""
        return ctypes.addressof(self._bytes)
