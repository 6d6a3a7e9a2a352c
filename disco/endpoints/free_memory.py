"""How much memory programs may still take on this machine, within a container's limit."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

__all__ = ["free_bytes"]

_ROOT: Final = Path("/")
_UNLIMITED: Final = 2**60  # version 1 of the control groups writes a huge number where there is no limit
_MAC_WAIT_S: Final = 2.0


def free_bytes(root: Path = _ROOT) -> int | None:
    """Return the memory that programs may still take, bytes, within a container's limit; None: it is not known.

    Pages that hold a file, and may be dropped, count as free.

    Args:
        root: where `proc` and `sys` are.
    """
    if sys.platform == "win32":
        free = _of_windows()
    elif sys.platform == "darwin":
        free = _of_mac()
    else:
        free = _of_meminfo(root)
    known = [one for one in (free, *_of_control_groups(root)) if one is not None]
    return min(known) if known else None


def _of_meminfo(root: Path) -> int | None:
    found = re.search(r"^MemAvailable:\s*(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    return None if found is None else int(found[1]) * 1024


def _of_control_groups(root: Path) -> list[int | None]:
    """Return what the limits of this process's control groups leave; a limit holds for all groups below."""
    left: list[int | None] = []
    for line in (_text(root / "proc/self/cgroup") or "0::/").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
        else:
            continue
        # In a container, the path may be the host's, and not there.
        group = base / path.lstrip("/")
        places = [place for place in (group, *group.parents) if place == base or base in place.parents]
        left += [_left(place, *names) for place in places]
    return left


def _left(group: Path, limit: str, used: str, whole: str) -> int | None:
    """Return what a limit leaves; pages of files, such as those of a model just downloaded, make room for a program."""
    counts = dict(re.findall(r"^(\w+) (\d+)$", _text(group / "memory.stat"), re.MULTILINE))
    of_files = sum(int(counts.get(f"{whole}{name}_file", 0)) for name in ("active", "inactive"))
    try:
        most, taken = int(_text(group / limit)), int(_text(group / used))
    except ValueError:  # "max", or not there
        return None
    return None if most >= _UNLIMITED else max(0, most - taken + of_files)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""


def _of_mac() -> int | None:
    """Return the pages that are free, or that the system gives up, of `vm_stat`."""
    try:
        told = subprocess.run(
            ["/usr/bin/vm_stat"], capture_output=True, timeout=_MAC_WAIT_S, check=True
        ).stdout.decode("ascii", "replace")
    except (OSError, subprocess.SubprocessError):
        return None
    return of_vm_stat(told)


def of_vm_stat(told: str) -> int | None:
    """Return the free memory of what macOS's `vm_stat` prints, bytes; None where it prints something else."""
    size = re.search(r"page size of (\d+) bytes", told)
    pages = [re.search(rf"^Pages {name}:\s*(\d+)", told, re.MULTILINE) for name in ("free", "inactive")]
    if size is None or None in pages:
        return None
    return int(size[1]) * sum(int(found[1]) for found in pages if found is not None)


class _MemoryStatus(ctypes.Structure):
    """`MEMORYSTATUSEX` of Windows."""

    _fields_ = (
        ("length", ctypes.c_ulong),
        ("load_percent", ctypes.c_ulong),
        ("total", ctypes.c_ulonglong),
        ("available", ctypes.c_ulonglong),
        ("total_page_file", ctypes.c_ulonglong),
        ("available_page_file", ctypes.c_ulonglong),
        ("total_virtual", ctypes.c_ulonglong),
        ("available_virtual", ctypes.c_ulonglong),
        ("available_extended", ctypes.c_ulonglong),
    )


def _of_windows() -> int | None:
    status = _MemoryStatus()
    status.length = ctypes.sizeof(status)
    kernel = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined,unused-ignore] # of Windows alone
    return int(status.available) if kernel.GlobalMemoryStatusEx(ctypes.byref(status)) else None
