"""Compares what the laboratory computes and prints with what it computed and printed before.

    python tests/papers/compare_saved.py             # all of it: minutes
    python tests/papers/compare_saved.py pd verdicts

`saved/NAME.json.gz` has the figures of an evaluation and the lines that it printed, at commit 11724d30, with the seeds
of its defaults. Two runs of one commit agree in all of it but times. So every other difference is a change of the code
and needs a row in `KNOWN` with its reason; the exit status is 1 where one has none.
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SAVED = Path(__file__).with_name("saved")

# What is run in examples/, behind `python`; {json} is the file that the figures are written to.
COMMANDS = {
    "disco": "-m papers.disco_paper --json {json}",
    "recserve": "-m papers.recserve --json {json}",
    "pd": "-m papers.pd_device --json {json}",
    "dsd": "-m papers.dsd --json {json}",
    "hat": "-m papers.hat --json {json}",
    "day": "-m papers.day --json {json}",
    "drift": "-m papers.drift --json {json}",
    "fleet-pair": "-m papers.fleet run one-pair --vary window.n=1,2,4,8 --vary mode=distributed,alone --seeds 2 "
    "--jobs 1 --json {json}",
    "fleet-dsd": "-m papers.fleet run dsd-cnndm dsd-gsm8k dsd-humaneval --set arrivals.requests=700 "
    "--set skip_ms=5000 --set auto_topology.drafters=120 --vary mode=distributed,alone --jobs 1 --json {json}",
    "fleet-train": "-m papers.fleet train --fleets 12 --held-out 6 --epochs 10 --jobs 1 --out {json}",
    "verdicts": "-c 'from disco.cli import main; raise SystemExit(main())' replay "
    "../tests/papers/saved/verdicts.jsonl --verdicts --json {json}",
}
QUICK = ("fleet-pair", "verdicts")  # take seconds

# Times of this machine, and where the figures were written to.
TIMINGS = {"took_s", "ours_ms"}
TIMED_LINE = re.compile(
    r"(?:Replaying|Simulating|Training): [\d.]+ s|(?:Figures|Weights): .*"
    r"|(?:length_threshold|optimal_wait|wait_time) \| [\d,]+ \| .*"  # DiSCo's Figure 9: how long a plan takes
)


class KnownChange(NamedTuple):
    """The differences of an evaluation whose text the pattern finds, and why they are right."""

    evaluation: str
    pattern: str
    reason: str


KNOWN = [
    KnownChange(
        "day",
        r"battery-saver|server-first",
        "The preset battery-saver is gone; the day has server-first, the default, in its place.",
    ),
    KnownChange(
        "day",
        r"^printed: .*(Device|Server|Lengths): ",
        "The profiles of the day stand in one line, without the advice on options of the former command.",
    ),
    KnownChange(
        "disco",
        r"oracle|GPT \| S \| B-1\.1B \| 23\.85 \| 37\.7±1\.8 \| \+13\.8 \| 42\.0 \| – \| 38\.[67]",
        "The oracle of P99 minimises the very quantile that is shown, so it is a little lower than before.",
    ),
    *(
        KnownChange(
            paper,
            r"^printed: .*(where \| what is shown here|claim \| here\b)",
            "The paper's contradictions are claims, with their columns.",
        )
        for paper in ("dsd", "hat")
    ),
    KnownChange(
        "dsd",
        r"best throughput in all 12 columns|each policy of Figure 5 adds|they cross at 50-60 ms",
        "Whether a claim holds comes first in its verdict; its figures are as they were.",
    ),
    KnownChange(
        "hat",
        r"chunks lower TTFT \(Table V|cuts TBT by 49\.5 %",
        "Whether a claim holds comes first in its verdict; its figures are as they were.",
    ),
    KnownChange("dsd", r"fleet measure, 1 thread", "The command that measured passes has its new name."),
    KnownChange("fleet-train", r"^made\.by: ", "The command that made the weights has its new name."),
]


class Difference(NamedTuple):
    """One number, text or printed line that is not as it was. None: it is not there."""

    where: str
    before: Any
    after: Any

    def __str__(self) -> str:
        def short(value: Any) -> str:
            return "nothing" if value is None else json.dumps(value, ensure_ascii=False)[:110]

        return f"{self.where}: {short(self.before)} -> {short(self.after)}"


def named(items: list[Any]) -> dict[str, Any]:
    """The items of a list by their texts where they have some (a preset, a server), else by their places."""
    names: Counter[str] = Counter()
    found = {}
    for place, item in enumerate(items):
        texts = [value for value in item.values() if isinstance(value, str)] if isinstance(item, dict) else []
        name = ", ".join(texts)[:80] or str(place)
        names[name] += 1
        found[name if names[name] == 1 else f"{name} #{names[name]}"] = item
    return found


def leaves(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """The numbers and texts of a JSON value, each with its place, without times."""
    if isinstance(value, dict) and value.keys() == {
        "mean",
        "low",
        "high",
    }:  # some intervals were saved as lists
        value = list(value.values())
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in TIMINGS:
                yield from leaves(inner, f"{where}.{key}" if where else key)
    elif isinstance(value, list):
        for name, inner in named(value).items():
            yield from leaves(inner, f"{where}[{name}]")
    else:
        yield where, value


def same(before: Any, after: Any) -> bool:
    """Whether two values are one but for the rounding of another processor."""
    if isinstance(before, int | float) and isinstance(after, int | float):
        if math.isnan(before) or math.isnan(after):
            return math.isnan(before) and math.isnan(after)
        return math.isclose(before, after, rel_tol=1e-9, abs_tol=1e-12)
    return bool(before == after)


def cells(printed: str) -> list[str]:
    """The printed lines without times and without what draws a table: its widths and rules."""
    lines = (
        " | ".join(part.strip() for part in re.split("[│┃]", line) if part) for line in printed.splitlines()
    )
    lines = (line.strip() for line in lines)
    return [line for line in lines if re.search(r"[^\W_]", line) and not TIMED_LINE.fullmatch(line)]


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[Difference]:
    """What differs between two runs of an evaluation: `figures` (JSON), and `printed` (lines)."""
    was, now = dict(leaves(before["figures"])), dict(leaves(after["figures"]))
    found = [
        Difference(where, was.get(where), now.get(where))
        for where in {**was, **now}
        if where not in was or where not in now or not same(was[where], now[where])
    ]
    matcher = difflib.SequenceMatcher(None, before["printed"], after["printed"], autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind != "equal":
            gone, new = before["printed"][a:b], after["printed"][c:d]
            found += [Difference("printed", line, None) for line in gone]
            found += [Difference("printed", None, line) for line in new]
    return found


def saved(name: str) -> dict[str, Any]:
    return json.loads(gzip.decompress((SAVED / f"{name}.json.gz").read_bytes()))


def computed(name: str) -> dict[str, Any]:
    """Run an evaluation. Raises RuntimeError with what it said if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        command = [sys.executable, *shlex.split(COMMANDS[name].format(json=shlex.quote(str(path))))]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
        ran = subprocess.run(
            command,
            cwd=ROOT / "examples",
            env=environment,
            check=False,
            capture_output=True,
            encoding="utf-8",
        )
        if ran.returncode:
            raise RuntimeError(f"{shlex.join(command)}: exit status {ran.returncode}\n{ran.stderr}")
        return {"figures": json.loads(path.read_text(encoding="utf-8")), "printed": cells(ran.stdout)}


def reason_of(name: str, difference: Difference) -> str | None:
    """Why a difference is right, if that is known."""
    text = f"{difference.where}: {difference.before} -> {difference.after}"
    return next(
        (one.reason for one in KNOWN if one.evaluation == name and re.search(one.pattern, text)), None
    )


def unexplained(name: str, after: dict[str, Any], *, say: Any = print) -> list[Difference]:
    """Say how a run compares with the saved one; return the differences without a reason."""
    before = saved(name)
    found = differences(before, after)
    unknown = [one for one in found if reason_of(name, one) is None]
    numbers = sum(isinstance(value, int | float) for _, value in leaves(before["figures"]))
    say(
        f"{name}: {numbers:,} numbers and {len(before['printed']):,} lines; {len(found):,} differ, "
        f"{len(unknown):,} of them without a known reason"
    )
    for reason, count in Counter(filter(None, (reason_of(name, one) for one in found))).items():
        say(f"  {count:,}: {reason}")
    for one in unknown:
        say(f"  {one}")
    return unknown


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(COMMANDS)} (default: all)")
    names = parser.parse_args(arguments).names or list(COMMANDS)
    if strange := set(names) - set(COMMANDS):
        parser.error(f"no such evaluation: {', '.join(sorted(strange))}; there are {', '.join(COMMANDS)}")
    return 1 if [one for name in names for one in unexplained(name, computed(name))] else 0


if __name__ == "__main__":
    sys.exit(main())
