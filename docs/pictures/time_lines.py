"""Draws the time lines of the documentation from the records in records/: `python docs/pictures/time_lines.py`.

With `--record`, the demonstration and the examples run first (real models, real servers, some minutes), and their
records replace the old ones. A record that does not show what its picture is about is not taken. A name
(`time_lines.py assist --record`) does so for one picture only.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).parent
RECORDS: Final = HERE / "records"
sys.path.insert(0, str(HERE.parents[1]))  # the tree that this file lies in

from disco.record import read_record, timeline_svg  # noqa: E402
from disco.session.records.route_record import RouteRecord  # noqa: E402

# How a command starts that stands in records/README.txt, with the Python and the tree that run this.
STARTS: Final = {
    "disco": (sys.executable, "-c", "from disco.cli import main; raise SystemExit(main())"),
    "python": (sys.executable,),
}


class Picture(NamedTuple):
    """One picture: its title, the command whose record it draws (a file's name follows), and what that has to show."""

    title: str
    command: tuple[str, ...]
    shows: Callable[[RouteRecord], bool]


def _moves(record: RouteRecord, source: str, target: str, reason: str = "cost") -> bool:
    """Whether the answer moved, so that the reader did not notice."""
    return [(m.source, m.target, m.reason, m.outcome) for m in record.migrations] == [
        (source, target, reason, "switched")
    ] and not record.pace.late_tokens


def _race(record: RouteRecord) -> bool:
    return not record.migrations and [a.outcome for a in record.attempts] in (
        ["finished", "lost"],
        ["lost", "finished"],
    )


def _failover(record: RouteRecord) -> bool:
    return [(failed.endpoint, later.endpoint) for failed, later in record.failovers] == [("server", "device")]


def _drafted(record: RouteRecord) -> bool:
    report = record.attempts[0].speculation
    return report is not None and report.accepted > report.judged // 2 and len(report.timed_windows) > 8


def _split(record: RouteRecord) -> bool:
    return record.finish_reason is not None and len(record.attempts) == 1


DEMO: Final = ("disco", "demo", "--record")
PICTURES: Final = {
    "race": Picture("A race: the device is first", DEMO, _race),
    "move": Picture("A move from the server to the device", DEMO, lambda r: _moves(r, "server", "device")),
    "move-to-server": Picture(
        "A move from the device to the server", DEMO, lambda r: _moves(r, "device", "server")
    ),
    "failover": Picture("The server is killed, and the device takes over", DEMO, _failover),
    "assist": Picture(
        "An assist: the server speaks while the device reads",
        ("python", "examples/assist.py"),
        lambda r: _moves(r, "server", "device", "assist"),
    ),
    "cascade": Picture(
        "A cascade: the device was unsure, and the next tier goes on",
        ("python", "examples/cascade.py"),
        lambda r: _moves(r, "device", "middle", "confidence"),
    ),
    "drafting": Picture(
        "A drafted answer: the device guesses, the server checks",
        ("python", "examples/speculate.py"),
        _drafted,
    ),
    "split": Picture("An answer of a split model", ("python", "docs/pictures/split_run.py"), _split),
}


def draw(name: str) -> str:
    """Return the SVG of one picture from its record."""
    record = read_record((RECORDS / f"{name}.jsonl").read_bytes())
    return timeline_svg(record, title=PICTURES[name].title, name=f"time-line-{name}")


def _run(command: tuple[str, ...]) -> list[str]:
    """Run a command and return the lines of the records that it makes."""
    with tempfile.TemporaryDirectory() as folder:
        routes = Path(folder) / "routes.jsonl"
        program, *arguments = command
        subprocess.run([*STARTS[program], *arguments, str(routes)], check=False, cwd=HERE.parents[1])
        return routes.read_text(encoding="utf-8").strip().split("\n") if routes.exists() else []


def _record(names: list[str]) -> int:
    """Record again; return the exit status: 1 where a command's records do not show what they should."""
    missing = 0
    for command in dict.fromkeys(PICTURES[name].command for name in names):
        lines = _run(command)
        for name in names:
            picture = PICTURES[name]
            if picture.command != command:
                continue
            line = next((line for line in lines if picture.shows(read_record(line))), None)
            if line is None:
                missing += 1
                print(f"{name}: no answer of {' '.join(command)} shows it this time; the old record stays")
            else:
                (RECORDS / f"{name}.jsonl").write_text(line + "\n", encoding="utf-8")
    return 1 if missing else 0


def main() -> int:
    """Draw all pictures, or those that are named; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*PICTURES, []], help="all, if none is named")
    parser.add_argument("--record", action="store_true", help="make the records again, with real models")
    given = parser.parse_args()
    names = given.names or list(PICTURES)
    status = _record(names) if given.record else 0
    for name in names:
        if status and not (RECORDS / f"{name}.jsonl").exists():
            continue
        (HERE / f"{name}.svg").write_text(draw(name), encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
