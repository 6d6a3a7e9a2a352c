"""The machine: Python, cores, free memory and what the local model needs of it, and the disk of the user's folders."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Final

import platformdirs

from disco.cli.doctor.finding import Facts, Finding, Setup, does_not, unchecked, works
from disco.endpoints.context_size import BUFFERS_BYTES, cache_bytes_per_token, context_size
from disco.endpoints.free_memory import free_bytes
from disco.endpoints.gguf_header import GgufError, Header, read_header
from disco.endpoints.saved_prompts.prompt_cache import MAX_BYTES

__all__ = ["check_disk", "check_memory", "check_python", "needed_bytes"]

_GIB: Final = 2**30
_MIB: Final = 2**20
_LEAST_PYTHON: Final = (3, 11)
_LITTLE_BYTES: Final = 64 * _MIB  # of a disk: the state file and route records still fit


def check_python(setup: Setup, facts: Facts) -> Finding:  # noqa: ARG001 - as all checks
    """Look at Python's version, the system and its cores."""
    version = platform.python_version()
    cores = _usable_cores()
    where = f"Python {version} on {platform.system()} {platform.machine()}, {cores} core{'s' if cores > 1 else ''}"
    if sys.version_info[:2] < _LEAST_PYTHON:
        wanted = ".".join(map(str, _LEAST_PYTHON))
        return does_not(
            "python", f"{where}: disco needs Python {wanted} or later.", f"python{wanted} -m venv .venv"
        )
    try:
        own = f" disco-llm {metadata.version('disco-llm')}."
    except metadata.PackageNotFoundError:
        own = " disco runs from its source, and is not installed."
    return works("python", f"{where}.{own}")


def check_memory(setup: Setup, facts: Facts) -> Finding | None:  # noqa: ARG001 - as all checks
    """Compare the free memory with what the local model's file says that the model needs."""
    free = free_bytes()
    path = facts.model_file
    if free is None:
        return unchecked(
            "memory",
            "This system does not tell its free memory.",
        )
    if path is None:
        return works("memory", f"{_size(free)} are free.")
    try:
        needed = needed_bytes(read_header(path), path.stat().st_size, free)
    except (GgufError, OSError):
        return works("memory", f"{_size(free)} are free.")
    facts.model_fits = needed <= free
    what = f"The model takes at most about {_size(needed)} of memory, and {_size(free)} are free."
    if facts.model_fits:
        return works("memory", what)
    return does_not(
        "memory",
        f"The model does not fit: it needs about {_size(needed)} of memory, and {_size(free)} are free.",
        "Close other programs, or name a smaller model (a file of fewer weights, or of a smaller quantisation such as "
        "Q4_0) with --local",
    )


def check_disk(setup: Setup, facts: Facts) -> list[Finding]:  # noqa: ARG001 - as all checks
    """Look at the space of the disks on which disco keeps state and saved prompts."""
    found = []
    places = {
        "state": platformdirs.user_state_path("disco", appauthor=False),
        "saved prompts": platformdirs.user_cache_path("disco", appauthor=False),
    }
    seen: set[int] = set()
    for what, folder in places.items():
        there = existing(folder)
        try:
            disk, left = there.stat().st_dev, shutil.disk_usage(there).free
        except OSError as error:
            found.append(
                does_not("disk", f"{there} cannot be read ({error.strerror}).", f"Make {there} readable")
            )
            continue
        if disk in seen:
            continue
        seen.add(disk)
        if left < _LITTLE_BYTES:
            found.append(
                does_not(
                    "disk",
                    f"The disk of {folder} ({what}) is full: {_size(left)} are left.",
                    "Delete what you do not need on it; `disco state prompts --forget` deletes the saved prompts",
                )
            )
        elif left < MAX_BYTES:
            found.append(
                works(
                    "disk",
                    f"The disk of {folder} ({what}) has {_size(left)} left.",
                    f"With prompt_cache, saved prompts take up to {_size(MAX_BYTES)}: make room first",
                )
            )
        else:
            found.append(works("disk", f"The disk of {folder} ({what}) has {_size(left)} left."))
    return found


def existing(path: Path) -> Path:
    """Return a path, or the nearest folder above it that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def needed_bytes(header: Header, file_bytes: int, free: int | None) -> int:
    """Return the memory that a model takes, bytes: its weights, the caches of its slots, and buffers.

    What a header does not tell counts as nothing: the result is then too small.
    """
    size = context_size(header, file_bytes=file_bytes, free_bytes=free)
    return file_bytes + cache_bytes_per_token(header) * size.context_tokens * size.slots + BUFFERS_BYTES


def _usable_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return os.cpu_count() or 1


def _size(number: float) -> str:
    return f"{number / _GIB:.1f} GiB" if number >= _GIB else f"{number / _MIB:.0f} MiB"
