"""Which program and which process this is, and whether another process of this machine still runs.

A process is named by its number and its time of start, since numbers are used again. On Linux its boot and its
namespace of process numbers are in the name, too: numbers of another container mean nothing here.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

__all__ = ["is_alive", "this_process", "this_program"]

# Fields of /proc/PID/stat behind the command's name: R, S, Z, ...; start in ticks since boot.
_STATE, _START = 0, 19


def this_process() -> str:
    """Return the name of this process: boot, namespace, number and start, as text."""
    return _named(os.getpid())


@functools.cache
def this_program() -> str:
    """Return the name of this program for people: its main module, and the folder of it.

    A program that is installed, such as a server or a test runner, is named with the folder that it was started in: it
    runs many applications.
    """
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    name = spec.name.removesuffix(".__main__") if spec is not None else Path(file or "python").name
    try:
        folder = Path.cwd()
        if file is not None and not any(
            Path(file).resolve().is_relative_to(prefix) for prefix in (sys.prefix, sys.base_prefix)
        ):
            folder = Path(file).resolve().parent
        if folder.is_relative_to(Path.home()):
            return f"{name} in {Path('~') / folder.relative_to(Path.home())}"
    except (OSError, RuntimeError):  # the folder was removed, or the user has no home
        return name
    return f"{name} in {folder}"


def is_alive(process: str) -> bool | None:
    """Return whether the process of this name (`this_process`) still runs; None where that cannot be known."""
    boot, space, number, start = [*process.split("/"), "", "", ""][:4]
    if boot != _boot():
        return False
    if space != _namespace(os.getpid()) or not number.isdigit():
        return None
    now = _start_of(int(number))
    if now and not start:  # it could not be known when the name was made
        return None
    return None if now is None else bool(now) and now == start


@functools.lru_cache(maxsize=4)
def _named(pid: int) -> str:
    return f"{_boot()}/{_namespace(pid)}/{pid}/{_start_of(pid) or ''}"


@functools.cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


@functools.lru_cache(maxsize=4)
def _namespace(pid: int) -> str:
    try:
        return os.fspath(Path(f"/proc/{pid}/ns/pid").readlink()).removeprefix("pid:[").removesuffix("]")
    except OSError:
        return ""


def _start_of(pid: int) -> str | None:
    """Return when the process started, as text; "" where there is no such process, None where that is not known."""
    return _start_in_proc(pid) if Path("/proc/self/stat").exists() else _start_by_psutil(pid)


def _start_in_proc(pid: int) -> str | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
    except (FileNotFoundError, ProcessLookupError):
        return ""
    except OSError:
        return None
    values = fields.split()
    return "" if values[_STATE] in "ZX" else values[_START]


def _start_by_psutil(pid: int) -> str | None:
    try:
        import psutil  # noqa: PLC0415 - optional, and only needed here
    except ImportError:
        return None
    try:
        process = psutil.Process(pid)
        return "" if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
    except psutil.NoSuchProcess:
        return ""
    except psutil.Error:
        return None
