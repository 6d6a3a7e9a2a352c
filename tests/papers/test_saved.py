"""The figures of the laboratory are those of before its move, number by number."""

from __future__ import annotations

import copy

import pytest

from tests.papers.compare_saved import COMMANDS, QUICK, ROOT, cells, computed, differences, saved, unexplained

moved = pytest.mark.skipif(
    not (ROOT / "examples" / "papers").is_dir(), reason="the laboratory has not moved to examples/papers yet"
)


@moved
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in COMMANDS]
)
def test_every_number_is_as_before_or_its_change_has_a_reason(name):
    assert unexplained(name, computed(name)) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_evaluation_was_saved(name):
    before = saved(name)
    assert before["figures"]
    assert before["printed"]
    assert differences(before, before) == []


def test_each_kind_of_difference_is_found_and_named():
    before = {
        "figures": {"took_s": 1.0, "rows": [{"server": "a", "ttft_s": 0.5}, {"server": "b", "ttft_s": 0.25}]},
        "printed": cells("Replaying: 1.0 s\n┏━━━┳━━━┓\n┃ a ┃ b ┃\n│ 1 │ 2.5 s │\nFigures: a.json"),
    }
    assert before["printed"] == ["a | b", "1 | 2.5 s"]
    after = copy.deepcopy(before)
    after["figures"]["took_s"] = 2.0
    after["figures"]["rows"][0]["ttft_s"] += 1e-13
    assert differences(before, after) == []
    after["figures"]["rows"] = [{"server": "c", "ttft_s": 1.0}, {"server": "b", "ttft_s": 0.26}]
    after["printed"][1] = "1 | 2.6 s"
    assert list(map(str, differences(before, after))) == [
        'rows[a].server: "a" -> nothing',
        "rows[a].ttft_s: 0.5 -> nothing",
        "rows[b].ttft_s: 0.25 -> 0.26",
        'rows[c].server: nothing -> "c"',
        "rows[c].ttft_s: nothing -> 1.0",
        'printed: "1 | 2.5 s" -> nothing',
        'printed: nothing -> "1 | 2.6 s"',
    ]
