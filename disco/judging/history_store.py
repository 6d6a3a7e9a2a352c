"""Where histories of scores are kept between runs: numbers only, never a text."""

from __future__ import annotations

import json
import math
import os
import tempfile
import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from disco.errors import ConfigurationError
from disco.notices import warn

__all__ = ["FileStore", "HistoryKey", "HistoryStore", "StoredHistory", "store_of"]

_VERSION = 1
_MOST_BYTES = 256 * 2**20  # a file beyond this is not one of ours


class HistoryKey(NamedTuple):
    """Whose scores these are.

    Attributes:
        task: name of the task, as the application gave it.
        model: name of the endpoint and of its model.
        kind: how the scores were made: "class", "agreement" (of a model with another one's text) or a
            `SequenceConfidence`; "lowest_mean" for the lowest "mean" at any
            checkpoint, which the rule "exact" compares (`early_exit`).
    """

    task: str
    model: str
    kind: str

    @property
    def seed(self) -> int:
        """Seed of the exact rule's tie breaker.

        Histories differ in it, so that over many histories a share beta of the first answers goes up, too.
        """
        return zlib.crc32("\0".join(self).encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True)
class StoredHistory:
    """What is kept of one history.

    Attributes:
        scores: from the oldest to the newest.
        seen: how many scores were pushed in all.
        labels: centred scores of the labels of the last answers, oldest first; empty where answers are no classes.
        classes: a checksum of the classes that the labels are, a number.
        exits: (number, score) of the answers that went up early; see `ExitHistory.exits`.
        labels_seen: how many of the answers with `labels` this process has added; not kept by a `FileStore`.
    """

    scores: tuple[float, ...]
    seen: int
    labels: tuple[tuple[float, ...], ...] = ()
    classes: int = 0
    exits: tuple[tuple[int, float], ...] = ()
    labels_seen: int = 0


class HistoryStore(Protocol):
    """Keeps histories between runs. It reports its own failures; it does not raise them."""

    def load(self) -> Mapping[HistoryKey, StoredHistory]:
        """Return everything that is kept; nothing where there is nothing, or where it cannot be read."""
        ...

    def save(self, histories: Mapping[HistoryKey, StoredHistory]) -> None:
        """Keep these, in place of what was kept under the same keys.

        Args:
            histories: what to keep, by key.
        """
        ...


class FileStore:
    """A JSON file that only its user can read. Replaced as a whole, so that it is never half written.

    Of two clients or processes, the one that saves last keeps its histories of the keys that both have. Two processes
    that save at the same moment may lose what one of them saves.

    Args:
        path: the file; it need not exist.
    """

    _writing = threading.Lock()  # of all stores: clients save in threads, and two may have the same file

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def load(self) -> Mapping[HistoryKey, StoredHistory]:
        """Read the file. A file that is missing is empty; one that cannot be read costs a warning and is left alone."""
        return self._read() or {}

    def _read(self) -> Mapping[HistoryKey, StoredHistory] | None:
        """Return what the file holds; None, with a warning, where it cannot be read."""
        try:
            if self.path.stat().st_size > _MOST_BYTES:
                raise ValueError("too large")
            return _parsed(json.loads(self.path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            warn(
                f"{self.path} cannot be read as histories of scores. Judging begins without them, and saves none. "
                "Delete the file, or give another path."
            )
            return None

    def save(self, histories: Mapping[HistoryKey, StoredHistory]) -> None:
        """Write the file anew; a failure costs a warning. A file that cannot be read is not overwritten.

        Args:
            histories: what to keep, by key.
        """
        with self._writing:
            kept = self._read()
            if kept is not None:
                self._write({**kept, **histories})

    def _write(self, kept: Mapping[HistoryKey, StoredHistory]) -> None:
        content = {"version": _VERSION, "histories": [_written(key, kept[key]) for key in sorted(kept)]}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            number, name = tempfile.mkstemp(dir=self.path.parent, prefix=self.path.name, suffix=".new")
            try:
                # `mkstemp` makes a file that only the user can read.
                with os.fdopen(number, "w", encoding="utf-8") as file:
                    json.dump(content, file, allow_nan=False, separators=(",", ":"))
                os.replace(name, self.path)  # noqa: PTH105 - the same on both kinds of path
            except BaseException:
                os.unlink(name)  # noqa: PTH108
                raise
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            warn(
                f"The histories of scores could not be written to {self.path} ({why}). They end with the client. Make "
                "the file writable, or give another path."
            )


def store_of(histories: str | os.PathLike[str] | HistoryStore | None) -> HistoryStore | None:
    """Return the store that `histories=` of a client means: a file for a path, the object itself, or none.

    Raises:
        ConfigurationError: it is neither a path nor a store, or the path is that of a folder.
    """
    if histories is None:
        return None
    if isinstance(histories, str | os.PathLike):
        if not os.fspath(histories) or Path(histories).is_dir():
            raise ConfigurationError(
                f"histories={os.fspath(histories)!r} is not the path of a file. Give one, such as "
                'histories="histories.json".'
            )
        return FileStore(histories)
    if not (hasattr(histories, "load") and hasattr(histories, "save")):
        raise ConfigurationError(
            f"histories is a {type(histories).__name__}. Give the path of a file, or an object with the methods load "
            "and save of disco.judging.HistoryStore."
        )
    return histories


def _written(key: HistoryKey, history: StoredHistory) -> dict[str, Any]:
    made: dict[str, Any] = {**key._asdict(), "seen": history.seen, "scores": history.scores}
    more = {"labels": history.labels, "classes": history.classes, "exits": history.exits}
    return {**made, **{name: value for name, value in more.items() if value}}


def _parsed(content: Any) -> dict[HistoryKey, StoredHistory]:
    if content["version"] != _VERSION:
        raise ValueError("another version")
    return {
        HistoryKey(str(one["task"]), str(one["model"]), str(one["kind"])): StoredHistory(
            tuple(_finite(score) for score in one["scores"]),
            int(one["seen"]),
            tuple(tuple(_finite(score) for score in row) for row in one.get("labels", ())),
            int(one.get("classes", 0)),
            tuple((int(number), _finite(score)) for number, score in one.get("exits", ())),
        )
        for one in content["histories"]
    }


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    return number
