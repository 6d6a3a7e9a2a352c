"""Facts in the state file: the last word on something, as a JSON object of numbers and short names."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from disco.state.observations import is_storable

__all__ = ["Fact", "drop_fact", "prune_facts", "put_fact", "read_facts"]

MOST_FACTS: Final = 512
"""How many facts of one kind are kept; the oldest go first."""


class Fact(NamedTuple):
    """What is known of one thing.

    Attributes:
        key: the names of the thing: an endpoint, an address, a model.
        value: what is known.
        at: since when, Unix time, seconds.
    """

    key: tuple[str, ...]
    value: Mapping[str, Any]
    at: float


def put_fact(
    connection: sqlite3.Connection, kind: str, key: tuple[str, ...], value: Mapping[str, Any], at: float
) -> None:
    """Set what is known of a thing, in place of what was; of more than `MOST_FACTS`, the oldest goes."""
    if is_storable(key):
        connection.execute(
            "INSERT INTO facts (kind, key, value, at) VALUES (?, ?, ?, ?) "
            "ON CONFLICT (kind, key) DO UPDATE SET value = excluded.value, at = excluded.at",
            (kind, json.dumps(key), json.dumps(value, allow_nan=False), at),
        )
        _keep_newest(connection, kind)


def drop_fact(connection: sqlite3.Connection, kind: str, key: tuple[str, ...]) -> None:
    """Forget what is known of a thing."""
    connection.execute("DELETE FROM facts WHERE kind = ? AND key = ?", (kind, json.dumps(key)))


def read_facts(connection: sqlite3.Connection, kind: str) -> list[Fact]:
    """Return the facts of a kind, the oldest first. What is no fact is left out."""
    facts = []
    for row in connection.execute("SELECT key, value, at FROM facts WHERE kind = ? ORDER BY at", (kind,)):
        try:
            key, value, at = json.loads(row[0]), json.loads(row[1]), float(row[2])
        except (ValueError, TypeError, RecursionError):
            continue
        if isinstance(value, dict) and isinstance(key, list) and all(isinstance(name, str) for name in key):
            facts.append(Fact(tuple(key), value, at))
    return facts


def prune_facts(connection: sqlite3.Connection, kind: str, before: float) -> None:
    """Delete the facts of a kind that are older than that Unix time."""
    connection.execute("DELETE FROM facts WHERE kind = ? AND at < ?", (kind, before))


def _keep_newest(connection: sqlite3.Connection, kind: str) -> None:
    connection.execute(
        "DELETE FROM facts WHERE kind = ? AND key NOT IN "
        "(SELECT key FROM facts WHERE kind = ? ORDER BY at DESC LIMIT ?)",
        (kind, kind, MOST_FACTS),
    )
