"""All that is in a state file: to be shown, exported and forgotten."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from disco.state.facts import read_facts
from disco.state.file_faults import files_of
from disco.state.observations import Subject

__all__ = ["Chosen", "Series", "export", "file_size", "forget", "read_series"]


class Series(NamedTuple):
    """The observations of one kind of one subject.

    Attributes:
        subject: of whom.
        kind: of what, with its unit.
        number: how many.
        median: of their values.
        oldest_at: when the oldest was made, Unix time, s.
        newest_at: when the newest was made.
    """

    subject: Subject
    kind: str
    number: int
    median: float
    oldest_at: float
    newest_at: float


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is to be forgotten: what all of the given choices apply to; without one, everything that is learnt.

    Attributes:
        endpoint: name of an endpoint.
        model: name of a model.
        kind: a kind of observation ("ttft_s"), "breaker", "verdict" or "history".
        before: what was learnt before this Unix time, s.
    """

    endpoint: str | None = None
    model: str | None = None
    kind: str | None = None
    before: float | None = None


def read_series(connection: sqlite3.Connection) -> list[Series]:
    """Return what is known, by subject and kind."""
    found = []
    for number, kind, *subject in connection.execute(
        "SELECT id, kind, endpoint, address, model FROM series ORDER BY endpoint, address, model, kind"
    ).fetchall():
        rows = connection.execute("SELECT at, value FROM observations WHERE series = ?", (number,)).fetchall()
        if rows:
            times = [at for at, _ in rows]
            middle = float(median(value for _, value in rows))
            found.append(Series(Subject(*subject), kind, len(rows), middle, min(times), max(times)))
    return found


def export(connection: sqlite3.Connection) -> dict[str, Any]:
    """Return everything that is learnt as plain JSON data. Times are Unix times in seconds."""
    series = []
    for number, *names in connection.execute(
        "SELECT id, kind, endpoint, address, model FROM series ORDER BY id"
    ).fetchall():
        rows = connection.execute(
            "SELECT at, value, extra FROM observations WHERE series = ? ORDER BY id", (number,)
        ).fetchall()
        observations = [dict(zip(("at", "value", "extra"), row, strict=True)) for row in rows]
        named = dict(zip(("kind", "endpoint", "address", "model"), names, strict=True))
        series.append({**named, "observations": observations})
    histories = []
    for number, *names in connection.execute(
        "SELECT id, task, model, kind, seen, at FROM histories ORDER BY id"
    ).fetchall():
        scores = connection.execute(
            "SELECT score FROM scores WHERE history = ? ORDER BY id", (number,)
        ).fetchall()
        named = dict(zip(("task", "model", "kind", "seen", "at"), names, strict=True))
        histories.append({**named, "scores": [score for (score,) in scores]})
    kinds = [
        kind for (kind,) in connection.execute("SELECT DISTINCT kind FROM facts ORDER BY kind").fetchall()
    ]
    facts = {kind: [one._asdict() for one in read_facts(connection, kind)] for kind in kinds}
    return {"version": 1, "series": series, "histories": histories, "facts": facts}


def forget(connection: sqlite3.Connection, chosen: Chosen) -> dict[str, int]:
    """Delete what is chosen of what is learnt; return how many observations, histories and facts that were.

    What budgets have spent stays: to forget it would allow to spend it again.
    """
    gone = {
        "observations": _forget_observations(connection, chosen),
        "histories": _forget_histories(connection, chosen),
        "facts": _forget_facts(connection, chosen),
    }
    return {what: count for what, count in gone.items() if count}


def _forget_observations(connection: sqlite3.Connection, chosen: Chosen) -> int:
    where, values = ["1"], []
    for name in ("endpoint", "model", "kind"):
        if (wanted := getattr(chosen, name)) is not None:
            where.append(f"{name} = ?")
            values.append(wanted)
    those = f"series IN (SELECT id FROM series WHERE {' AND '.join(where)})"  # noqa: S608 - names of this module
    if chosen.before is not None:
        those += " AND at < ?"
        values.append(chosen.before)
    count = connection.execute(f"DELETE FROM observations WHERE {those}", values).rowcount  # noqa: S608 - as above
    connection.execute("DELETE FROM series WHERE id NOT IN (SELECT series FROM observations)")
    return count


def _forget_histories(connection: sqlite3.Connection, chosen: Chosen) -> int:
    count = 0
    for number, model, at in connection.execute("SELECT id, model, at FROM histories").fetchall():
        endpoint, _, own = model.partition("/")  # as `Judging` names them
        applies = (
            chosen.kind in (None, "history")
            and chosen.endpoint in (None, endpoint)
            and chosen.model in (None, own, model)
            and (chosen.before is None or at < chosen.before)
        )
        if applies:
            count += connection.execute("DELETE FROM histories WHERE id = ?", (number,)).rowcount
    return count


def _forget_facts(connection: sqlite3.Connection, chosen: Chosen) -> int:
    count = 0
    for kind, key, at in connection.execute("SELECT kind, key, at FROM facts").fetchall():
        try:
            names = [str(name) for name in json.loads(key)] or [""]
        except (ValueError, TypeError, RecursionError):
            names = [""]
        applies = (
            chosen.kind in (None, kind)
            and (chosen.endpoint is None or names[0] == chosen.endpoint)
            and (chosen.model is None or names[-1] == chosen.model)
            and (chosen.before is None or at < chosen.before)
        )
        if applies:
            count += connection.execute("DELETE FROM facts WHERE kind = ? AND key = ?", (kind, key)).rowcount
    return count


def file_size(path: Path) -> int:
    """Return how many bytes a state file takes, with what lies beside it."""
    return sum(file.stat().st_size for file in files_of(path))
