"""`disco state`: shows, exports and forgets what clients have learnt."""

from __future__ import annotations

import argparse
import json
import sqlite3
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from disco import amounts
from disco.cli.console import Screen
from disco.cli.output_files import check_output, write
from disco.cli.shared_options import add_state
from disco.cost.tally import UNITS
from disco.cost.windows import in_words
from disco.endpoints.saved_prompts import forget_saved_prompts, saved_prompts
from disco.endpoints.saved_prompts.prompt_cache import default_folder
from disco.errors import ConfigurationError
from disco.state import Database, state_path
from disco.state.budget_tables import Counted, counted
from disco.state.contents import Chosen, Series, export, file_size, forget, read_series
from disco.state.facts import Fact, read_facts
from disco.state.file_faults import NotOursError, files_of, is_broken, why_and_remedy
from disco.state.schema import damage_of

__all__ = ["add"]

T = TypeVar("T")
_HEADER = b"SQLite format 3\0"


def add(parser: argparse.ArgumentParser) -> None:
    """Add the options of `disco state`."""
    subcommands = parser.add_subparsers(required=True)
    show = subcommands.add_parser("show", help="what is known of each endpoint and model, and since when")
    show.set_defaults(run=run_show)
    exported = subcommands.add_parser("export", help="everything that is learnt, as JSON")
    exported.add_argument("out", nargs="?", default="-", metavar="FILE", help="default: standard output")
    exported.set_defaults(run=run_export)
    forgotten = subcommands.add_parser(
        "forget",
        help="delete what is learnt",
        description="Deletes what all of the given choices apply to, and says what that was. Programs may run "
        "meanwhile: they keep what they have in memory. What budgets have spent is only forgotten with --all.",
    )
    forgotten.add_argument(
        "--all", action="store_true", help="everything, spent budgets too; also a damaged file"
    )
    forgotten.add_argument(
        "--endpoint", metavar="NAME", help="of this endpoint (server, device, a tier's name)"
    )
    forgotten.add_argument("--model", metavar="NAME", help="of this model")
    forgotten.add_argument(
        "--kind", metavar="KIND", help="such as ttft_s, breaker, verdict or history; see show"
    )
    forgotten.add_argument("--older-than", type=float, metavar="DAYS", help="learnt before so many days")
    forgotten.set_defaults(run=run_forget)
    prompts = subcommands.add_parser(
        "prompts", help="the saved prompts of local models (docs/how-to/warm-start.md)"
    )
    prompts.add_argument(
        "--folder", metavar="FOLDER", help="where they lie (default: the user's folder for caches)"
    )
    prompts.add_argument("--forget", action="store_true", help="delete them")
    prompts.set_defaults(run=run_prompts)
    for one in (show, exported, forgotten):
        add_state(one)


def chosen_path(given: str | None) -> Path:
    """Return the path of the file that `--state` means.

    Raises:
        ConfigurationError: there is none, because it is off; or the path is no file's.
    """
    if given is not None and Path(given).is_dir():
        raise ConfigurationError(f"--state {given}: this is a folder. Name a file in it.")
    path = state_path(given)
    if path is None:
        raise ConfigurationError(
            "There is no state file: --state or DISCO_STATE switches it off, or the user has no home. Name one with "
            "--state FILE."
        )
    return path


def existing_path(given: str | None) -> Path | None:
    """Return the same; None where nothing has been kept there yet."""
    path = chosen_path(given)
    return path if path.exists() else None


def read(path: Path, work: Callable[[sqlite3.Connection], T]) -> T:
    """Return what `work` reads from the file.

    Raises:
        ConfigurationError: the file cannot be read; the message says why, and what can be done.
    """

    def checked(connection: sqlite3.Connection) -> T:
        if (damage := damage_of(connection)) is not None:
            raise damage
        return work(connection)

    database = Database(path, warns=False)
    try:
        found = database.read(checked, None)
    finally:
        database.close()
    if found is None:
        raise fault_of(database)
    return found


def fault_of(database: Database) -> ConfigurationError:
    """Return the error that says what is wrong with the file."""
    assert database.fault is not None
    why, remedy = why_and_remedy(database.fault, database.path)
    return ConfigurationError(f"The state file {database.path} cannot be used: {why}. {remedy}.")


class _Shown(NamedTuple):
    series: list[Series]
    histories: list[tuple[str, str, str, int, float]]
    facts: dict[str, list[Fact]]
    budgets: list[Counted]


def run_show(screen: Screen, arguments: argparse.Namespace) -> int:
    """Print all tables that have a row."""
    path = existing_path(arguments.state)
    if path is None:
        screen.line(f"Nothing has been learnt yet: there is no file {chosen_path(arguments.state)}.")
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


def run_export(screen: Screen, arguments: argparse.Namespace) -> int:
    """Write everything that is learnt as JSON.

    Raises:
        ConfigurationError: the output would overwrite the state file, or one of them cannot be used.
    """
    path = existing_path(arguments.state)
    check_output(argparse.Namespace(state=None if path is None else str(path)), out=arguments.out)
    learnt = {} if path is None else read(path, export)
    write(screen, arguments.out, json.dumps(learnt, indent=1), "Everything that is learnt")
    return 0


def run_forget(screen: Screen, arguments: argparse.Namespace) -> int:
    """Delete what is chosen, and print what that was.

    Raises:
        ConfigurationError: nothing is chosen, the number of days is below 0, or the file cannot be changed.
    """
    if arguments.older_than is not None and not arguments.older_than >= 0:
        raise ConfigurationError(
            f"--older-than is a number of days, at least 0, not {arguments.older_than:g}"
        )
    before = None if arguments.older_than is None else time.time() - 86_400.0 * arguments.older_than
    chosen = Chosen(arguments.endpoint, arguments.model, arguments.kind, before)
    is_all = bool(arguments.all)
    if is_all == (chosen != Chosen()):
        raise ConfigurationError(
            "Choose what is forgotten: --all, or some of --endpoint, --model, --kind and --older-than."
        )
    path = existing_path(arguments.state)
    if path is None:
        screen.line(f"Nothing to forget: there is no file {chosen_path(arguments.state)}.")
        return 0
    database = Database(path, warns=False)
    try:
        gone = database.write(partial(_forget, chosen, is_all), None)
        if gone is not None:
            database.tidy()
    finally:
        database.close()
    if gone is None:
        if not is_all:
            raise fault_of(database)
        if not _may_delete(database, arguments.state):
            raise _refusal(database)
        for file in files_of(path):  # the state file last: another program may make a new one at once
            file.unlink(missing_ok=True)
            screen.line(f"Deleted {file}, which was damaged.")
        return 0
    told = ", ".join(f"{count} {what}" for what, count in gone.items())
    screen.line(f"Forgotten: {told or 'nothing, there was none of that'}.")
    return 0


def _forget(chosen: Chosen, is_all: bool, connection: sqlite3.Connection) -> dict[str, int]:  # noqa: FBT001
    connection.execute("PRAGMA secure_delete = ON")  # what is deleted is overwritten
    gone = forget(connection, chosen)
    if is_all and (count := connection.execute("DELETE FROM budgets").rowcount):
        gone["budgets"] = count
    return gone


def _refusal(database: Database) -> ConfigurationError:
    fault = database.fault
    if fault is None or isinstance(fault, NotOursError) or not is_broken(fault):
        return fault_of(database)
    return ConfigurationError(
        f"{database.path} does not look like a state file, not even like a damaged one, so it is left alone. Delete it "
        "yourself, or name another file."
    )


def _may_delete(database: Database, given: str | None) -> bool:
    """Return whether a file is a damaged state file, and no other file that was named by mistake."""
    fault = database.fault
    if fault is None or isinstance(fault, NotOursError) or not is_broken(fault):
        return False
    return (
        given is None or Path(given) == state_path() or database.path.read_bytes()[: len(_HEADER)] == _HEADER
    )


def run_prompts(screen: Screen, arguments: argparse.Namespace) -> int:
    """Print a table of the saved prompts in a folder, or delete them.

    Raises:
        ConfigurationError: a file cannot be deleted.
    """
    folder = default_folder() if arguments.folder is None else Path(arguments.folder).expanduser()
    found = saved_prompts(folder)
    if arguments.forget:
        try:
            count = forget_saved_prompts(folder)
        except OSError as error:
            raise ConfigurationError(f"{error.filename} cannot be deleted: {error.strerror}.") from error
        screen.line(f"Deleted: {count} files in {folder}.")
        return 0
    if not found:
        screen.line(f"No prompt is saved in {folder}.")
        return 0
    total = sum(one.size_bytes for one in found) / 2**20
    screen.line(f"{folder}: {len(found)} saved prompts, {total:.0f} MiB; they hold texts, as tokens.")
    now = time.time()
    screen.table(
        "Saved prompts",
        ("model", "tokens", "MiB", "saved", "used"),
        [
            [
                one.model,
                "damaged" if one.tokens is None else one.tokens,
                f"{one.size_bytes / 2**20:.1f}",
                "" if one.saved_at is None else _ago(now - one.saved_at),
                _ago(now - one.used_at),
            ]
            for one in found
        ],
    )
    return 0


def _ago(seconds: float) -> str:
    for size_s, unit in ((86_400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= size_s:
            return f"{seconds / size_s:.0f} {unit} ago"
    return "just now"
