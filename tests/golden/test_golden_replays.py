"""What the production path makes of 10,000 requests for each preset stays what it is; see README.md."""

import sys
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # its modules are imported by name, as their command runs them

import golden_adapter  # noqa: E402
import replays  # noqa: E402

# Episodes that meet every branch that the first 400 requests of each preset meet.
SLICE = {
    "balanced": (0, 3),
    "battery-saver": (10, 0, 19),
    "cheap": (4, 18),
    "fast": (1, 7, 13, 16),
    "private": (2,),
}
HOW = (
    "`python tests/golden/replays.py --check {}` shows them; README.md says how to compare with another tree"
)


@pytest.mark.parametrize("preset", replays.PRESETS)
def test_requests_are_treated_as_they_were(preset):
    assert [row for row, _ in replays.differing(preset, SLICE[preset])] == [], HOW.format(preset)


@pytest.mark.parametrize("rule", golden_adapter.MUTATIONS)
def test_a_changed_rule_is_noticed(rule, monkeypatch):
    """A net that nothing is caught in would pass the test above."""
    monkeypatch.setattr(golden_adapter, *golden_adapter.MUTATIONS[rule])
    assert any(True for _ in replays.differing("battery-saver", SLICE["battery-saver"]))


@pytest.mark.slow
@pytest.mark.parametrize("preset", replays.PRESETS)
def test_all_requests_are_treated_as_they_were(preset):
    """And the README's table counts what occurs among them."""
    kept = (HERE / f"{preset}.txt").read_text(encoding="ascii").split()
    rows, counts = [], Counter()
    for row, found in replays.results(preset):
        counts.update(replays.events_of(found))
        rows += [row] if replays.digest(found) != kept[row] else []
    assert rows == [], HOW.format(preset)
    assert len(kept) == row + 1 == replays.REQUESTS
    lines = (HERE / "README.md").read_text(encoding="utf-8").splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    at = table[0].index(preset)
    assert {row[0]: int(row[at]) for row in table[1:] if row[at]} == counts
