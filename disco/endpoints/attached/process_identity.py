"""Which process an id means: ids are used again, after an end and after a restart of the machine."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

__all__ = ["is_running", "process_start"]

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_ENDED: Final = "ZXx"  # states of a process that runs no more


def process_start(pid: int) -> str | None:
    """Return a text that no other process of this id has ever had, on any machine; None where there is none.

    None, too, where that is not known. A process that has ended and waits for its parent to notice counts as none.
    """
    try:
        # The name of the program, in parentheses, may hold spaces. The start is the 20th field behind it, in ticks.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1").rpartition(")")[2].split()
        if fields[0] in _ENDED:
            return None
        return f"{_BOOT.read_text(encoding='ascii').strip()}/{fields[19]}"
    except (OSError, IndexError, ValueError):
        pass
    try:
        import psutil  # noqa: PLC0415 - not installed everywhere

        found = psutil.Process(pid)
        return None if found.status() == psutil.STATUS_ZOMBIE else f"{found.create_time():.3f}"
    except Exception:  # noqa: BLE001 - not installed, no such process, or nobody may look at it
        return None


def is_running(pid: int, start: str | None) -> bool:
    """Return whether the process that began as `start` still runs; True where that cannot be known."""
    if start is None:
        return True
    now = process_start(pid)
    if (
        now is None and "/" not in start
    ):  # not of Linux: the server has psutil, and perhaps this program has not
        return importlib.util.find_spec("psutil") is None
    return now == start
