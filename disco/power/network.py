"""Whether the network is metered, where the platform tells cheaply.

Linux: NetworkManager's property `Metered`, read through systemd's `busctl`, which is there where NetworkManager usually
is. Windows and macOS know it too, but only through interfaces that Python does not reach without further packages
(`NetworkInformation.GetConnectionCost`, `NWPath.isExpensive`): there it is not known, and the application may say it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import Final

__all__ = ["is_metered", "metered_of"]

_ASK: Final = (
    *("--system", "--no-pager", "--timeout=1", "get-property"),
    "org.freedesktop.NetworkManager",
    "/org/freedesktop/NetworkManager",
    *("org.freedesktop.NetworkManager", "Metered"),
)
WITHIN_S: Final = 2.0
# NMMetered: unknown, yes, no, guessed yes (a phone's access point), guessed no.
_VALUES: Final = {1: True, 2: False, 3: True, 4: False}


def is_metered() -> bool | None:
    """Return whether the network of this machine is metered; None where the platform does not tell. Blocks for ms."""
    if not sys.platform.startswith("linux"):
        return None
    command = shutil.which("busctl")
    if command is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command of the system
            [command, *_ASK],
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return metered_of(done.stdout) if done.returncode == 0 else None


def metered_of(printed: str) -> bool | None:
    """Return what busctl printed, such as "u 4", as an answer; None where it says that nothing is known."""
    kind, _, value = printed.strip().partition(" ")
    return _VALUES.get(int(value)) if kind == "u" and value.isdigit() else None
