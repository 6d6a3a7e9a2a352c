"""Figures of mixed answers: intervals over groups, the verdict of Eq. 7, and how long models agree."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from papers.quality.quality_figures import eq7_of, quality_figures
from papers.quality.quality_tables import quality_tables
from papers.quality.quality_trace import (
    MEASURES,
    MixedRow,
    QualityTrace,
    load_quality_trace,
    save_quality_trace,
)
from papers.quality.shipped import SHIPPED, shipped_tables, shipped_trace

from disco.errors import ConfigurationError
from disco.replay import Figure

NUMBERS = st.floats(-1, 1)


def row(prompt, first, second="", cut=0, kept=0, tokens=20, same=None, **measures):
    return MixedRow(
        first, second, "stop", prompt, prompt // 2, 100 + prompt, cut, kept, tokens, 90, same, same, measures
    )


def trace(rows):
    return QualityTrace("texts", "", "", "small", "large", (), "judge", 256, tuple(rows))


def of_qualities(small, large, mixed, measure="f1"):
    """One mixed answer for each prompt, from the small to the large model."""
    rows = []
    for prompt, (a, b, m) in enumerate(zip(small, large, mixed, strict=True)):
        rows += [row(prompt, "large", same=90, **{measure: b}), row(prompt, "small", same=4, **{measure: a})]
        rows.append(row(prompt, "small", "large", 4, 3, **{measure: m}))
    return trace(rows)


@given(value=NUMBERS, gap=st.floats(0, 1), half=st.floats(0, 1))
def test_the_verdict_says_where_the_mean_lies_and_whether_the_interval_agrees(value, gap, half):
    lower = Figure(value, value - half, value + half)
    higher = Figure(value - gap, value - gap - half, value - gap + half)
    verdict = eq7_of(lower, higher)
    if verdict == "below":
        assert value + half < 0
    elif verdict == "above":
        assert value - gap - half > 0
    else:
        assert (verdict == "holds") == (value >= -1e-9 and value - gap <= 1e-9)


@pytest.mark.parametrize(
    ("measure", "mixed", "verdict"),
    [("f1", 0.5, "holds"), ("f1", 0.1, "below"), ("f1", 0.9, "above"), ("judge_nats", 0.1, "above")],
)
def test_a_mixture_is_compared_with_both_models_the_right_way_round(measure, mixed, verdict):
    spread = np.linspace(-0.05, 0.05, 20)
    figures = quality_figures(of_qualities(0.4 + spread, 0.6 + spread, mixed + spread, measure))
    (one,) = figures.measures
    (cell,) = one.mixed
    assert (cell.eq7, cell.handed_over, one.prompts, one.groups) == (verdict, 1.0, 20, 10)
    assert one.gap.mean == pytest.approx(0.2)
    assert cell.value.mean == pytest.approx(mixed)
    sign = -1 if measure == "judge_nats" else 1
    worse, better = (0.6, 0.4) if sign < 0 else (0.4, 0.6)
    assert cell.over_lower.mean == pytest.approx(sign * (mixed - worse))
    assert cell.over_higher.mean == pytest.approx(sign * (mixed - better))
    (every, shorter, longer) = figures.beginnings
    assert every.tokens == (4.0,) * 5
    assert (shorter.prompts, longer.prompts, every.equal) == (10, 10, 0.0)


def test_a_prompt_without_a_measure_counts_in_no_answer_and_tables_name_both_models():
    whole = of_qualities([0.4] * 4, [0.6] * 4, [0.5] * 4)
    rows = [r._replace(measures={}) if (r.prompt, r.second) == (0, "large") else r for r in whole.rows]
    figures = quality_figures(trace(rows))
    assert figures.measures[0].prompts == 3
    tables = quality_tables(trace(rows), figures)
    assert [len(table.rows) for table in tables] == [2, 3, 1]
    assert all(len(cells) == len(table.header) for table in tables for cells in table.rows)
    assert "Small: small. Large: large." in tables[0].notes[1]


def test_a_trace_is_read_as_it_was_written_and_another_file_is_refused(tmp_path):
    path = tmp_path / "t.csv.gz"
    rows = [row(0, "large", same=3, **dict.fromkeys(MEASURES, 0.25)), row(0, "large", "small", 4, 2, f1=1.0)]
    save_quality_trace(trace(rows), path)
    found = load_quality_trace(path)
    assert list(found.rows) == rows
    assert (found.small, found.judge, found.tokens) == ("small", "judge", 256)
    assert rows[1].handed_over
    assert not rows[0].handed_over
    other = tmp_path / "o.csv"
    other.write_text("first,second\n")
    with pytest.raises(ConfigurationError, match=r"python -m papers\.measure quality"):
        load_quality_trace(other)


def test_the_shipped_traces_show_what_the_page_says():
    """Long answers tell the models apart; no mixed one is worse than the small model or better than the large one."""
    trace = shipped_trace("xquad-long")
    found = {one.measure: one for one in quality_figures(trace).measures}
    for measure in ("recall", "told_nats"):
        assert found[measure].gap.low > 0
        assert {cell.eq7 for cell in found[measure].mixed} <= {"holds", "within the interval"}
    assert found["told_nats"].own[trace.large].mean < found["told_nats"].nothing.mean
    assert {cell.cut for cell in found["recall"].mixed} == {4, 16, 40, 64, 80}
    tables = shipped_tables()
    assert len(tables) > len(SHIPPED)
    assert all(len(cells) == len(table.header) for table in tables for cells in table.rows)
