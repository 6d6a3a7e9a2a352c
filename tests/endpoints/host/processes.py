"""What /proc tells of a process."""

from __future__ import annotations

from pathlib import Path

import pytest

needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def listens_at(pid: int) -> list[str]:
    """The addresses at which a process listens, as /proc/net/tcp writes them."""
    sockets = {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    found = []
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/{pid}/net/{table}").read_text(encoding="utf-8").splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                found.append(fields[1].partition(":")[0])
    return found


def told(pid: int) -> bytes:
    """The command line and the environment of a process."""
    return Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()


def llama_cpp_in(pid: int | str) -> list[str]:
    """What a process has of llama.cpp in its memory: the library's files, and those of models."""
    rows = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()
    files = {row.split(maxsplit=5)[5] for row in rows if len(row.split(maxsplit=5)) == 6}
    marks = ("llama", "ggml", ".gguf")
    return sorted(file for file in files if any(mark in file.rpartition("/")[2] for mark in marks))
