"""How a running `disco serve` tells the programs of its user where its model can be used: one small file.

The file is in a folder that only the user can open, and only the user can read the file. It holds a key, made anew at
each start, with which the server proves to a program that it wrote the file, and the program that it may read it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from disco.endpoints.attached.process_identity import is_running
from disco.notices import warn

__all__ = ["VARIABLE", "Announcement", "ServedModel", "announced", "live_announcements", "serve_folder"]


VARIABLE: Final = "DISCO_ATTACH"
_OFF: Final = frozenset({"off", "0", "false", "no"})
_USUAL: Final = frozenset({"", "auto", "on", "1", "true", "yes"})
_MOST_BYTES: Final = 65_536
_MOST_FILES: Final = 64

Name = Annotated[str, Field(min_length=1, max_length=500)]


class ServedModel(BaseModel):
    """The model that a `disco serve` runs, and what it does for programs that attach.

    Attributes:
        name: as in `local/NAME`.
        fingerprint: of the model's file and its chat template (`named_fingerprint`).
        context_tokens: prompt and answer together.
        vocabulary: fingerprint of the tokenizer.
        parameters: number of weights.
        features, logp, label_scores, progress: as in `Capabilities`.
    """

    model_config = ConfigDict(frozen=True)

    name: Name
    fingerprint: Name
    context_tokens: Annotated[int, Field(gt=0)] | None = None
    vocabulary: Name | None = None
    parameters: Annotated[int, Field(gt=0)] | None = None
    features: Annotated[tuple[Name, ...], Field(max_length=32)] = ()
    logp: bool = False
    label_scores: bool = False
    progress: bool = False


class Announcement(BaseModel):
    """One running server.

    Attributes:
        version: of the protocol; another version is left alone.
        pid, process_start: its process; see `process_identity`.
        started_s: when it began to serve, Unix time.
        host, port: where it listens; an address of this machine.
        key: 64 hexadecimal digits, made at each start. Not in repr.
        model: what it serves.
    """

    model_config = ConfigDict(frozen=True)

    version: Literal[1] = 1
    pid: Annotated[int, Field(gt=0)]
    process_start: Name | None
    started_s: Annotated[float, Field(allow_inf_nan=False)]
    host: Name
    port: Annotated[int, Field(gt=0, lt=65_536)]
    key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", repr=False)]
    model: ServedModel

    @field_validator("host")
    @classmethod
    def _is_here(cls, host: str) -> str:
        if not ipaddress.ip_address(host).is_loopback:
            raise ValueError("not an address of this machine")
        return host


def serve_folder() -> Path | None:
    """Return the folder of the announcements; None where the user wants none (`DISCO_ATTACH=off`)."""
    named = os.environ.get(VARIABLE, "").strip()
    if named.lower() in _OFF:
        return None
    if named.lower() in _USUAL:
        return platformdirs.user_state_path("disco", appauthor=False) / "serve"
    return Path(named).expanduser()


@contextlib.contextmanager
def announced(announcement: Announcement, folder: Path) -> Iterator[Path | None]:
    """Keep the announcement in the folder; yield its file. A folder that cannot be used costs a warning."""
    file = folder / f"{announcement.port}-{announcement.pid}.json"
    try:
        _prepare(folder)
        draft = file.with_suffix(f".{secrets.token_hex(4)}")
        try:
            with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as out:
                out.write(announcement.model_dump_json())
            draft.replace(file)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        warn(
            f"Other programs cannot attach to this server: {folder} cannot be used "
            f"({error.strerror or type(error).__name__}). Make it a folder that only you can open and write, or name "
            f"another one in the variable {VARIABLE}."
        )
        yield None
        return
    try:
        yield file
    finally:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def live_announcements(folder: Path) -> list[Announcement]:
    """Return the announcements of servers whose process runs, the one that has served longest first.

    Only what this user alone could have written counts: on POSIX, the folder and the file must be the user's, and
    closed to all others. The folder may be missing.
    """
    try:
        if not _is_closed(folder.lstat(), stat.S_ISDIR):
            return []
        names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))  # noqa: PTH208 - names only
    except OSError:
        return []
    found = [one for name in names[:_MOST_FILES] if (one := _read(folder / name)) is not None]
    live = [one for one in found if is_running(one.pid, one.process_start)]
    return sorted(live, key=lambda one: (one.started_s, one.pid))


def _read(file: Path) -> Announcement | None:
    try:
        opened = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(opened, "rb") as source:
            if not _is_closed(os.fstat(opened), stat.S_ISREG):
                return None
            return Announcement.model_validate_json(source.read(_MOST_BYTES))
    except (OSError, ValidationError):
        return None  # another version's, half of one, or not ours


def _is_closed(found: os.stat_result, kind: Callable[[int], bool]) -> bool:
    """Return whether it is of this kind, the user's, and closed to all others."""
    if not kind(found.st_mode):
        return False
    if os.name != "posix":
        return True  # the folder is in the user's profile, which the system protects
    return found.st_uid == os.getuid() and not found.st_mode & 0o077


def _prepare(folder: Path) -> None:
    """Make the folder, and remove what servers left that were killed.

    Raises:
        OSError: it cannot be made, or is open to others.
    """
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # `parents` would leave it open to others
    folder.mkdir(exist_ok=True, mode=0o700)
    if not _is_closed(folder.lstat(), stat.S_ISDIR):
        raise PermissionError("it is open to other users, or another user's")
    for file in folder.glob("*.json"):
        left = _read(file)
        if left is not None and not is_running(left.pid, left.process_start):
            file.unlink(missing_ok=True)
