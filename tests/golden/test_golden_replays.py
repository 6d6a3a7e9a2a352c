"""What the production path makes of 10,000 requests for each preset stays what it is; see README.md."""

import sys
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
    assert [row for row, _ in replays.differing(preset)] == [], HOW.format(preset)
