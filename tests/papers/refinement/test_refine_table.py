"""Tables of refined prompts: what was saved is loaded, and the shipped ones agree with docs/concepts/refine.md."""

import math
from dataclasses import astuple, replace
from pathlib import Path

import pytest
from papers.refinement import load_refine_table, save_refine_table, shipped_refine_table

from disco.errors import ConfigurationError

DOCS = Path(__file__).parents[3] / "docs" / "concepts" / "refine.md"
SHIPPED = ("xquad-en", "xquad-en-all")


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_table_is_the_one_of_the_docs(name, tmp_path):
    table = shipped_refine_table(name)
    docs = DOCS.read_text(encoding="utf-8")
    assert f"\n{table.rows[0].questions} questions:\n" in docs
    for row in table.rows:
        assert f"| {row.nats:.2f} [{row.nats_low:.2f}, {row.nats_high:.2f}] |" in docs
        for mean in ("nats", "over_full", "over_random", "f1", "f1_over_full", "gold_kept"):
            low, value, high = (getattr(row, f"{mean}{end}") for end in ("_low", "", "_high"))
            assert math.isnan(value) or low <= value <= high
    save_refine_table(table, tmp_path / "t.csv")
    again = load_refine_table(tmp_path / "t.csv")
    assert repr(again) == repr(table)  # nan is not equal to itself
    assert len(astuple(again.rows[0])) == len(astuple(table.rows[0]))


def test_a_row_is_found_by_its_arm():
    table = shipped_refine_table("xquad-en-all")
    assert table.row("lexical", 0.4).begun == 0
    assert table.row("lexical", 0.4, 4).begun == 4
    with pytest.raises(KeyError):
        table.row("lexical", 0.41)


def test_a_table_that_is_not_there_or_damaged_is_an_error_in_words(tmp_path):
    with pytest.raises(ConfigurationError, match="there is no file"):
        shipped_refine_table("none")
    path = tmp_path / "t.csv"
    table = shipped_refine_table("xquad-en")
    save_refine_table(replace(table, rows=table.rows[:1]), path)
    path.write_text(path.read_text().replace("nats_low", "low"))
    with pytest.raises(ConfigurationError, match="this is no trace of refined prompts"):
        load_refine_table(path)
