"""The folder of saved prompts: bounded, and shared by all programs of a user that name it.

No process locks the folder. Files appear and disappear as a whole, so a process that finds one gone goes on without it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from disco.endpoints.saved_prompts.prompt_cache import PromptCache, default_folder
from disco.endpoints.saved_prompts.prompt_file import (
    NAMES,
    PART,
    PromptHead,
    UnusableFileError,
    file_name,
    is_own,
    read_all,
    read_head,
    write_file,
)

__all__ = ["PromptFolder", "SavedPrompt", "forget_saved_prompts", "saved_prompts"]

_LEFT_BEHIND_S: Final = 600.0  # a file that is half written so long belongs to a process that was killed


@dataclass(frozen=True, slots=True)
class SavedPrompt:
    """One saved prompt, in numbers.

    Attributes:
        file: the file's name.
        model: the model's fingerprint, 16 hexadecimal digits.
        tokens: length of the prompt; None where the file is damaged, or of a later version.
        size_bytes: size of the file.
        saved_at, used_at: Unix times, s. A damaged file has only the second.
    """

    file: str
    model: str
    tokens: int | None
    size_bytes: int
    saved_at: float | None
    used_at: float


def saved_prompts(folder: str | os.PathLike[str] | None = None) -> list[SavedPrompt]:
    """Return all saved prompts, the one used last first; empty where there is no such folder.

    Args:
        folder: None: the usual one.
    """
    found = []
    for path, stat in _files(default_folder() if folder is None else Path(folder).expanduser()):
        tokens = saved_at = None
        with contextlib.suppress(UnusableFileError, OSError):
            head = read_head(path)
            tokens, saved_at = len(head.ids), head.saved_at
        model = path.name.partition("-")[0]
        found.append(SavedPrompt(path.name, model, tokens, stat.st_size, saved_at, stat.st_mtime))
    return sorted(found, key=lambda one: one.used_at, reverse=True)


def forget_saved_prompts(folder: str | os.PathLike[str] | None = None) -> int:
    """Delete all saved prompts, also those that are half written; return how many files were deleted.

    Other files in the folder stay. A program that runs may save its prompts again.

    Raises:
        OSError: a file cannot be deleted.
    """
    files = _files(default_folder() if folder is None else Path(folder).expanduser(), parts=True)
    for path, _ in files:
        path.unlink(missing_ok=True)
    return len(files)


class PromptFolder:
    """The saved prompts of one model in a folder. Mutable: `_heads` (by path), `_seen_at` (the folder's own time).

    Args:
        cache: where, and how much.
        model: fingerprint of the model and of how it was loaded, 16 bytes.
        warn: called with a sentence, once for each file that cannot be used.
    """

    def __init__(self, cache: PromptCache, model: bytes, warn: Callable[[str], None]) -> None:
        self.path = cache.path
        self._cache = cache
        self._model = model
        self._warn = warn
        self._warned: set[str] = set()
        self._heads: dict[Path, PromptHead] = {}
        self._seen_at: int | None = None

    def heads(self) -> list[PromptHead]:
        """Return what is saved of this model now. Files are read again only if the folder has changed."""
        try:
            changed_at = self.path.stat().st_mtime_ns
        except OSError:
            self._heads, self._seen_at = {}, None
            return []
        if changed_at != self._seen_at:
            mine = f"{self._model.hex()[:16]}-"
            paths = [
                path
                for path, stat in _files(self.path)
                if path.name.startswith(mine) and stat.st_size <= self._cache.max_bytes
            ]
            known = {path: self._heads.get(path) or self._head(path) for path in paths}
            self._heads = {path: head for path, head in known.items() if head is not None}
            # A clock may stand still between two changes: what has just changed is looked at once more.
            is_settled = time.time_ns() - changed_at > 2 * 10**9
            self._seen_at = changed_at if is_settled else None
        return list(self._heads.values())

    def _head(self, path: Path) -> PromptHead | None:
        return self._usable(path, lambda: (read_head(path), None))[0]

    def read(self, head: PromptHead) -> bytearray | None:
        """Return the state of a saved prompt; None where it is gone, or cannot be used."""
        found, state = self._usable(head.path, lambda: read_all(head.path))
        # Another process may have saved the same prompt anew. The name promises the same tokens.
        return state if found is not None and found.ids == head.ids else None

    def _usable(
        self, path: Path, read: Callable[[], tuple[PromptHead, bytearray | None]]
    ) -> tuple[PromptHead | None, bytearray | None]:
        try:
            head, state = read()
            if head.model != self._model:
                raise UnusableFileError("foreign")
        except FileNotFoundError:
            self._heads.pop(path, None)
        except UnusableFileError as error:
            self.reject(path, error)
        except OSError as error:
            self._warn_once(path, f"cannot be read ({_reason(error)}). Make it readable, or delete it.")
        except MemoryError:
            self._warn_once(path, "does not fit into the memory that is free. Its prompt is read again.")
        else:
            return head, state
        return None, None

    def reject(self, path: Path, error: UnusableFileError) -> None:
        """Leave a file out from now on, with a warning; a damaged one is deleted."""
        self._heads.pop(path, None)
        if error.why == "damaged":
            with contextlib.suppress(OSError):
                path.unlink()
            self._warn_once(
                path, "is damaged. It was not used, and deleted: its prompt is read again, and saved again."
            )
        elif error.why == "later":
            self._warn_once(
                path,
                "was made by a later version of disco. It is left alone. Update disco, or delete the file.",
            )
        else:
            self._warn_once(
                path,
                "is not of disco's making, another model's, or open for others to write to. It is left alone. Move it "
                "to another folder, or name another one with prompt_cache=...",
            )

    def _warn_once(self, path: Path, what: str) -> None:
        if path.name not in self._warned:
            self._warned.add(path.name)
            self._warn(
                f"{'The folder of saved prompts' if path == self.path else 'The saved prompt'} {path} {what}"
            )

    def used(self, head: PromptHead) -> None:
        """Remember that a saved prompt was of use just now."""
        with contextlib.suppress(OSError):
            os.utime(head.path)

    def add(self, head: PromptHead, state: memoryview, *, keeps_going: Callable[[], bool]) -> bool:
        """Save a prompt; `path` and `model` of its head are set here. What was used least recently makes room for it.

        Returns:
            Whether it was saved: not where it is larger than the whole folder may be, or `keeps_going` said so.
        """
        head = replace(head, path=self.path / file_name(self._model, head.ids), model=self._model)
        size = len(state) + 4 * len(head.ids) + 128
        if size > self._cache.max_bytes:
            return False
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._make_room(size, 1)
            is_saved = write_file(head, state, keeps_going=keeps_going)
            if is_saved:
                self._make_room(0, 0, keep=head.path)  # another process may have saved one, too
        except OSError as error:
            self._warn_once(
                self.path,
                f"cannot be written ({_reason(error)}): no prompt is saved there. Make the folder writable, make room, "
                "or name another one with prompt_cache=...",
            )
            return False
        return is_saved

    def remove(self, head: PromptHead) -> None:
        """Delete a saved prompt, which another one replaces."""
        self._heads.pop(head.path, None)
        with contextlib.suppress(OSError):
            head.path.unlink()

    def _make_room(self, size: int, entries: int, keep: Path | None = None) -> None:
        files = sorted(_files(self.path, parts=True), key=lambda file: file[1].st_mtime)
        now, left = time.time(), []
        for path, stat in files:
            if path.suffix == PART and now - stat.st_mtime > _LEFT_BEHIND_S:
                path.unlink(missing_ok=True)
            else:
                left.append((path, stat.st_size))
        total, count = sum(bytes_ for _, bytes_ in left) + size, len(left) + entries
        for path, bytes_ in left:
            if total <= self._cache.max_bytes and count <= self._cache.max_entries:
                return
            if path == keep or path.suffix == PART:
                continue
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                total, count = total - bytes_, count - 1


def _files(folder: Path, *, parts: bool = False) -> list[tuple[Path, os.stat_result]]:
    """Return the user's files of saved prompts in a folder; with `parts` also those that are half written."""
    found = []
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return []
    for entry in entries:
        if NAMES.fullmatch(entry.name) and (parts or not entry.name.endswith(PART)):
            with contextlib.suppress(OSError):
                if is_own(stat := entry.stat(follow_symlinks=False)):
                    found.append((Path(entry.path), stat))
    return found


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__
