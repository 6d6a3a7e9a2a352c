"""How a running `disco serve` tells the programs of its user where the host of its model is: one small file.

The file is in a folder that only the user can open, and only the user can read the file. It names the host's socket,
which is in such a folder, too, and the key of the host's API.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal

import platformdirs
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from disco.endpoints.attached.process_identity import is_running
from disco.endpoints.runtimes import Program
from disco.notices import warn

__all__ = ["VARIABLE", "Announcement", "ServedModel", "announce", "live_announcements", "serve_folder"]


VARIABLE: Final = "DISCO_ATTACH"
_OFF: Final = frozenset({"off", "0", "false", "no"})
_USUAL: Final = frozenset({"", "auto", "on", "1", "true", "yes"})
_MOST_BYTES: Final = 65_536
_MOST_FILES: Final = 64


def _absolute(path: str) -> str:
    if not Path(path).is_absolute():
        raise ValueError("not an absolute path")
    return path


Name = Annotated[str, Field(min_length=1, max_length=500)]
Absolute = Annotated[str, Field(max_length=4096), AfterValidator(_absolute)]
Positive = Annotated[int, Field(gt=0)]
Port = Annotated[int, Field(gt=0, lt=65_536)]


class ServedModel(BaseModel):
    """The model that a host runs, and with what.

    Attributes:
        name: as in requests.
        path: of the GGUF file.
        fingerprint: of the model's file and its chat template (`named_fingerprint`).
        context_tokens: prompt and answer together.
        slots: answers written at the same time.
        threads, batch_tokens: as in `HostSettings`.
        vocabulary: fingerprint of the tokenizer.
        parameters: number of weights.
    """

    model_config = ConfigDict(frozen=True)

    name: Name
    path: Absolute
    fingerprint: Name
    context_tokens: Positive | None = None
    slots: Positive = 1
    threads: Positive = 1
    batch_tokens: Positive = 64
    vocabulary: Name | None = None
    parameters: Positive | None = None


class Announcement(BaseModel):
    """The host of one running server.

    Attributes:
        version: of this file; another version is left alone.
        pid, process_start: the host's process; see `process_identity`.
        started_s: when the server began to serve, Unix time.
        serve_pid, serve_port: the server that has started the host, and where it listens itself.
        program: what runs the model.
        socket: the path of the host's Unix socket; None where it has none.
        port: the host's port of 127.0.0.1, where it has no socket.
        key: of the host's API, made anew for each process. Not in repr.
        load_s: how long the host took to load the model, s.
        model: what it runs.
    """

    model_config = ConfigDict(frozen=True)

    version: Literal[2] = 2
    pid: Positive
    process_start: Name | None
    started_s: Annotated[float, Field(allow_inf_nan=False)]
    serve_pid: Positive
    serve_port: Port
    program: Program
    socket: Absolute | None = None
    port: Port | None = None
    key: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{32,100}$", repr=False)]
    load_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    model: ServedModel

    @model_validator(mode="after")
    def _has_one_address(self) -> Announcement:
        if (self.socket is None) == (self.port is None):
            raise ValueError("it has either a socket or a port")
        return self

    @property
    def is_live(self) -> bool:
        """Whether the host runs, and nobody but this user could have made its socket."""
        if self.socket is not None:
            socket = Path(self.socket)
            try:
                if not _is_closed(socket.parent.lstat(), stat.S_ISDIR):
                    return False
                if not stat.S_ISSOCK(socket.lstat().st_mode):
                    return False
            except OSError:
                return False
        return is_running(self.pid, self.process_start)


def serve_folder() -> Path | None:
    """Return the folder of the announcements; None where the user wants none (`DISCO_ATTACH=off`)."""
    named = os.environ.get(VARIABLE, "").strip()
    if named.lower() in _OFF:
        return None
    if named.lower() in _USUAL:
        return platformdirs.user_state_path("disco", appauthor=False) / "serve"
    return Path(named).expanduser()


def announce(announcement: Announcement, folder: Path) -> Path | None:
    """Write the announcement into the folder; return its file.

    A folder that cannot be used costs a warning.
    """
    # Named after the host: who removes the file of one that has ended must not meet the next one's.
    file = folder / f"{announcement.serve_port}-{announcement.pid}.json"
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
        return None
    return file


def live_announcements(folder: Path) -> list[Announcement]:
    """Return the announcements of hosts that run, that of the server first that has served longest.

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
    live = [one for one in found if one.is_live]
    return sorted(live, key=lambda one: (one.started_s, one.serve_pid))


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
