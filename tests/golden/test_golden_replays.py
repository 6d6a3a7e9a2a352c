"""What the production path makes of 10,000 requests for each preset stays what it is; see README.md."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import golden_adapter
import pytest
import replays

from disco.session.records.route_record import RENAMED

SLICE = 400
FEW = 200
HOW = (
    "`python tests/golden/replays.py --check {}` shows them; README.md says how to compare with another tree"
)


@pytest.mark.parametrize("preset", replays.PRESETS)
def test_the_first_requests_are_treated_as_they_were(preset):
    rows = [row for row, _ in replays.differing(preset, SLICE)]
    assert rows == [], HOW.format(preset)


@pytest.mark.slow
@pytest.mark.parametrize("preset", replays.PRESETS)
def test_all_requests_are_treated_as_they_were(preset):
    """And the README's table counts what occurs among them."""
    digests: list[str] = []
    counts: Counter[str] = Counter()
    for found in replays.results(preset):
        digests.append(replays.digest(found))
        counts.update(replays.events_of(found))
    kept = replays.recorded(preset)
    rows = [row for row, (now, then) in enumerate(zip(digests, kept, strict=True)) if now != then]
    assert rows == [], HOW.format(preset)
    assert len(digests) == replays.REQUESTS
    assert column_of_the_readme(preset) == counts


def column_of_the_readme(preset: str) -> dict[str, int]:
    lines = (Path(replays.__file__).parent / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    at = rows[0].index(preset)
    return {row[0]: int(row[at]) for row in rows[1:] if row[at]}


@pytest.mark.parametrize("rule", golden_adapter.MUTATIONS)
def test_a_changed_rule_is_noticed(rule, monkeypatch):
    """A net that nothing is caught in would pass all the tests above."""
    monkeypatch.setattr(golden_adapter, *golden_adapter.MUTATIONS[rule])
    assert any(True for _ in replays.differing("battery-saver", FEW))


def test_one_request_by_itself_is_what_it_is_in_the_run():
    row = FEW + 7
    assert replays.digest(replays.result("cheap", row)) == replays.recorded("cheap")[row]


def test_another_process_finds_the_same():
    """Nothing may hang on the order of a set (this process has its own hash seed), or on what ran here before."""
    command = [sys.executable, replays.__file__, "--check", "balanced", "--requests", "100"]
    environment = {**os.environ, "PYTHONHASHSEED": "20"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr


def test_a_record_is_projected_on_the_fields_of_schema_2():
    """A field that is added to records later changes no digest; one that is taken away cannot go unnoticed."""
    found = next(r for r in replays.results("cheap", 100) if r.get("record", {}).get("transfers"))["record"]
    record = {RENAMED.get(name, name): value for name, value in found.items()}
    later = {**record, "new": 1, "attempts": [{**t, "new": 2} for t in record["attempts"]]}
    assert golden_adapter.projected(later) == found
    with pytest.raises(KeyError):
        golden_adapter.projected({name: value for name, value in record.items() if name != "segments"})
