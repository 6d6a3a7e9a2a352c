"""`disco state show`: what the state file knows, as tables."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from disco import amounts
from disco.cli.console import Screen
from disco.cli.state.opening import chosen_path, existing_path, read
from disco.cost.tally import UNITS
from disco.cost.windows import in_words
from disco.state.budget_tables import Counted, counted
from disco.state.contents import Series, file_size, read_series
from disco.state.facts import Fact, read_facts

__all__ = ["run_show"]


class _Shown(NamedTuple):
    series: list[Series]
    histories: list[tuple[str, str, str, int, float]]
    facts: dict[str, list[Fact]]
    budgets: list[Counted]


def run_show(screen: Screen, given: str | None) -> int:
    """Print all tables that have a row."""
    path = existing_path(given)
    if path is None:
        screen.line(f"Nothing has been learnt yet: there is no file {chosen_path(given)}.")
        return 0
    shown, now = read(path, _read), time.time()
    is_empty = not any(shown)
    screen.line(
        f"{path}, {file_size(path) / 1024:.0f} KiB" + (": nothing has been learnt yet." if is_empty else "")
    )
    _table(
        screen,
        "Learnt",
        ("endpoint", "address", "model", "what", "number", "median", "oldest", "newest"),
        [
            [
                *(s.subject if any(s.subject) else ("(all)", "", "")),
                *(
                    s.kind,
                    s.number,
                    amounts.number(s.median),
                    _age(now - s.oldest_at),
                    _age(now - s.newest_at),
                ),
            ]
            for s in shown.series
        ],
    )
    _table(
        screen,
        "Histories of scores",
        ("task", "model", "score", "seen", "newest"),
        [[*names, seen, _age(now - at)] for *names, seen, at in shown.histories],
    )
    _table(
        screen,
        "Servers that cool down",
        ("endpoint", "address", "model", "why", "for"),
        [_breaker(fact, now) for fact in shown.facts.pop("breaker", [])],
    )
    _table(
        screen,
        "Verdicts of probes",
        ("address", "model", "continues by", "age"),
        [
            [*_names(fact, 2), fact.value.get("method"), _age(now - fact.at)]
            for fact in shown.facts.pop("verdict", [])
        ],
    )
    for kind, facts in shown.facts.items():
        _table(
            screen,
            kind.capitalize(),
            ("of", "value", "age"),
            [[" ".join(fact.key), _numbers(fact.value), _age(now - fact.at)] for fact in facts],
        )
    _table(
        screen,
        "Budgets",
        ("account", "of", "time", "spent", "reserved", "spent by, lately"),
        [_budget(tally, now) for tally in shown.budgets],
    )
    if any(not tally.key.account for tally in shown.budgets):
        screen.line(
            "(none): all programs of this user whose budget names no account spend it together. For a budget of one "
            'program alone, name an account: budget={"usd": 5, "per": "month", "account": "my-app"}.'
        )
    return 0


def _table(screen: Screen, title: str, columns: tuple[str, ...], rows: list[list[Any]]) -> None:
    if rows:
        screen.table(title, columns, [["" if cell is None else cell for cell in row] for row in rows])


def _read(connection: sqlite3.Connection) -> _Shown:
    kinds = [
        kind for (kind,) in connection.execute("SELECT DISTINCT kind FROM facts ORDER BY kind").fetchall()
    ]
    return _Shown(
        read_series(connection),
        connection.execute(
            "SELECT task, model, kind, seen, at FROM histories ORDER BY task, model, kind"
        ).fetchall(),
        {kind: read_facts(connection, kind) for kind in kinds},
        counted(connection, time.time()),
    )


def _breaker(fact: Fact, now: float) -> list[Any]:
    try:
        left_s = float(fact.value["until"]) - now
    except (KeyError, TypeError, ValueError):
        left_s = 0.0
    return [
        *_names(fact, 3),
        fact.value.get("why"),
        f"{left_s:.0f} s" if left_s > 0 else "over; the next request tries it",
    ]


def _names(fact: Fact, count: int) -> list[str]:
    """Return the first names of a fact's key; the file may be a stranger's, so the key may have fewer."""
    return [*fact.key, *[""] * count][:count]


def _budget(tally: Counted, now: float) -> list[Any]:
    key, amount = tally.key, amounts.money if tally.key.unit == "usd" else amounts.tokens
    counted = (amount(units / UNITS[key.unit]) for units in (tally.spent, tally.reserved))
    return [
        key.account or "(none)",
        key.scope,
        in_words(key.window, now),
        *counted,
        ", ".join(tally.programs),
    ]


def _numbers(value: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {number}" for name, number in value.items())


def _age(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
