"""Histories of scores in the state file. Each program adds its new scores, so that none replaces another one's."""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, TypeVar

from disco.judging import HistoryKey, StoredHistory
from disco.state.database import Database
from disco.state.observations import OLDEST_S, is_storable

__all__ = ["StateHistories", "prune_histories"]

T = TypeVar("T")

KEPT_SCORES: Final = 10_000
"""How many scores of one history are kept: the longest window of a preset."""

KEPT_LABELS: Final = 1_000
MOST_HISTORIES: Final = 128


class StateHistories:
    """A `HistoryStore` on the state file.

    The file is not read by `load`, which a client calls when it is made, but by `read`, which may wait for the file.

    Mutable: `_saved`, by key how many scores and label scores of this process's history the file has, and of which
    classes.

    Attributes:
        saved_every: after how many scores a client saves; adding a few costs little.
        waits: whether `save` may wait for a file.
    """

    saved_every = 10
    waits = False

    def __init__(self, database: Database) -> None:
        self._database = database
        self._saved: dict[HistoryKey, tuple[int, int, int]] = {}

    def load(self) -> Mapping[HistoryKey, StoredHistory]:
        """Return nothing: see the class."""
        return {}

    def read(self, connection: sqlite3.Connection) -> dict[HistoryKey, StoredHistory]:
        """Return all histories of the file."""
        found = connection.execute("SELECT id, task, model, kind, seen, classes FROM histories").fetchall()
        return {
            HistoryKey(str(task), str(model), str(kind)): _history(connection, number, seen, classes)
            for number, task, model, kind, seen, classes in found
            if isinstance(seen, int) and isinstance(classes, int)  # SQLite keeps any value in any column
        }

    def begin_from(self, taken: Mapping[HistoryKey, StoredHistory]) -> None:
        """Take note of what the histories of this process begin with: later scores are new."""
        for key, history in taken.items():
            self._saved[key] = history.seen, 0, history.classes

    def save(self, histories: Mapping[HistoryKey, StoredHistory]) -> None:
        """Add what is new in these histories to the file, without waiting for it."""
        for key, history in histories.items():
            seen, labels, classes = self._saved.get(key, (0, 0, history.classes))
            is_same = classes == history.classes
            new_labels = history.labels_seen - labels if is_same else len(history.labels)
            scores = _newest(history.scores, history.seen - seen)
            if not is_storable(key) or (history.seen <= seen and new_labels <= 0):
                continue
            first = history.seen - len(scores)
            exits = {number - first for number, _ in history.exits if number >= first}
            rows = [(score, int(i in exits)) for i, score in enumerate(scores)]
            rows_of_labels = _newest(history.labels, new_labels)
            self._saved[key] = history.seen, history.labels_seen, history.classes
            self._database.submit(
                partial(_append, key, rows, history.seen - seen, rows_of_labels, history.classes)
            )


def _newest(rows: tuple[T, ...], count: int) -> tuple[T, ...]:
    return rows[-count:] if count > 0 else ()


def _history(connection: sqlite3.Connection, number: int, seen: int, classes: int) -> StoredHistory:
    rows = connection.execute(
        "SELECT score, is_exit FROM scores WHERE history = ? ORDER BY id DESC LIMIT ?", (number, KEPT_SCORES)
    ).fetchall()
    rows = [row for row in reversed(rows) if isinstance(row[0], float) and math.isfinite(row[0])]
    seen = max(seen, len(rows))
    exits: list[tuple[int, float]] = []
    for i, (score, is_exit) in enumerate(rows, seen - len(rows)):
        if is_exit:  # as `ExitHistory` keeps them: of those before it, only the higher ones are needed
            while exits and exits[-1][1] <= score:
                exits.pop()
            exits.append((i, score))
    labels = connection.execute(
        "SELECT label_values FROM label_scores WHERE history = ? ORDER BY id DESC LIMIT ?",
        (number, KEPT_LABELS),
    ).fetchall()
    return StoredHistory(
        tuple(score for score, _ in rows),
        seen,
        tuple(_labels(row[0] for row in reversed(labels))),
        classes,
        tuple(exits),
    )


def _labels(texts: Iterable[object]) -> Iterable[tuple[float, ...]]:
    for text in texts:
        try:
            values = tuple(float(value) for value in json.loads(str(text)))
        except (ValueError, TypeError, RecursionError):
            continue
        if all(map(math.isfinite, values)):
            yield values


def _append(
    key: HistoryKey,
    scores: list[tuple[float, int]],
    seen: int,
    labels: tuple[tuple[float, ...], ...],
    classes: int,
    connection: sqlite3.Connection,
) -> None:
    connection.execute(
        "INSERT INTO histories (task, model, kind, at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (*key, time.time()),
    )
    number, was = connection.execute(
        "SELECT id, classes FROM histories WHERE task = ? AND model = ? AND kind = ?", key
    ).fetchone()
    if was != classes:  # labels of other classes say nothing about these
        connection.execute("DELETE FROM label_scores WHERE history = ?", (number,))
    connection.execute(
        "UPDATE histories SET seen = seen + ?, classes = ?, at = ? WHERE id = ?",
        (seen, classes, time.time(), number),
    )
    _keep_newest(connection, number)
    connection.executemany(
        "INSERT INTO scores (history, score, is_exit) VALUES (?, ?, ?)", [(number, *row) for row in scores]
    )
    connection.executemany(
        "INSERT INTO label_scores (history, label_values) VALUES (?, ?)",
        [(number, json.dumps(row)) for row in labels],
    )
    for table, kept in (("scores", KEPT_SCORES), ("label_scores", KEPT_LABELS)):
        connection.execute(
            f"DELETE FROM {table} WHERE history = ? AND id <= "  # noqa: S608 - one of two names
            f"(SELECT id FROM {table} WHERE history = ? ORDER BY id DESC LIMIT 1 OFFSET ?)",
            (number, number, kept),
        )


def prune_histories(connection: sqlite3.Connection, now: float) -> None:
    """Delete histories that had no score for a long time."""
    connection.execute("DELETE FROM histories WHERE at < ?", (now - OLDEST_S,))


def _keep_newest(connection: sqlite3.Connection, number: int) -> None:
    """Delete the histories that are too many: those that had no score for the longest time, not this one."""
    connection.execute(
        "DELETE FROM histories WHERE id NOT IN (SELECT id FROM histories ORDER BY id = ? DESC, at DESC LIMIT ?)",
        (number, MOST_HISTORIES),
    )
