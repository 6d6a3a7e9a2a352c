"""Traces of free-text answers, and the judges that are compared on them."""

import math
from dataclasses import astuple

import numpy as np
import pytest
from papers.ladder.answer_trace import AnswerRow, AnswerTrace, load_answer_trace, save_answer_trace
from papers.ladder.judges import JUDGES, compare_judges, discriminate

from disco.errors import ConfigurationError
from disco.replay import Figure

ROWS = (
    AnswerRow(0, 500, 130, 4, 12, 0.0, 0.0, False, "length", (-1.5, -0.25, -2.0)),
    AnswerRow(0, 500, 131, 9, 9, 1.0, 1.0, True, "stop", (-0.0625,)),
    AnswerRow(1, 700, 190, 7, 0, 0.0, 0.0, False, "stop", ()),
)


def made(rows=ROWS):
    return AnswerTrace("made", "invented", "none", "m", rows, {"prompt": "none"})


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
def test_a_trace_is_read_back_as_it_was_written(tmp_path, name):
    path = tmp_path / name
    save_answer_trace(made(), path)
    read = load_answer_trace(path)
    assert read.rows == ROWS
    assert (read.name, read.source, read.licence, read.model) == ("made", "invented", "none", "m")
    assert read.notes == {"prompt": "none"}


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (lambda lines: ["{}", *lines[1:]], "line 1"),
        (lambda lines: [lines[0].replace('"model"', '"modell"'), *lines[1:]], "'model' is missing"),
        (lambda lines: [lines[0], "a,b", *lines[2:]], "line 2"),
        (lambda lines: [*lines[:3], "1,2", *lines[4:]], "line 4"),
        (lambda lines: [*lines[:2], lines[2].replace("-0.25", "0.25"), *lines[3:]], "line 3.*above 0"),
        (lambda lines: [*lines[:3], lines[3].replace("1.0000", "1.5", 1), *lines[4:]], "line 4.*F1"),
    ],
)
def test_a_damaged_trace_is_named_with_the_line(tmp_path, broken, says):
    path = tmp_path / "trace.csv"
    save_answer_trace(made(), path)
    path.write_text("\n".join(broken(path.read_text().splitlines())))
    with pytest.raises(ConfigurationError, match=says) as raised:
        load_answer_trace(path)
    assert str(path) in str(raised.value)


def made_scores(seed=0, n=60):
    draw = np.random.default_rng(seed)
    good = draw.random(n) < 0.4
    return np.round(draw.normal(size=n) + good, 1), good  # rounded: some scores are equal


def test_the_area_counts_the_pairs_in_order():
    scores, good = made_scores()
    pairs = [(a > b) + 0.5 * (a == b) for a in scores[good] for b in scores[~good]]
    found = discriminate(scores, good, np.arange(len(scores)))
    assert found.area == pytest.approx(np.mean(pairs))
    parts = np.reshape(pairs, (good.sum(), (~good).sum()))
    variance = parts.mean(axis=1).var() / good.sum() + parts.mean(axis=0).var() / (~good).sum()
    assert found.interval().high - found.area == pytest.approx(1.959964 * math.sqrt(variance))
    assert found.over(found) == Figure(0.0, 0.0, 0.0)


def test_answers_of_one_group_count_as_one():
    """Each answer twice, in a group of its own, is no more evidence than once."""
    scores, good = made_scores()
    once = discriminate(scores, good, np.arange(len(scores)))
    twice = discriminate(np.repeat(scores, 2), np.repeat(good, 2), np.repeat(np.arange(len(scores)), 2))
    assert astuple(twice.interval()) == pytest.approx(astuple(once.interval()))


def test_judges_see_tokens_and_lengths():
    first, second, _ = ROWS
    assert JUDGES["weakest"](first) == pytest.approx(math.exp(-2.0))
    assert JUDGES["weakest of the first 4 tokens"](first) == JUDGES["weakest"](first)
    assert JUDGES["mean, lowest at a checkpoint"](second) == JUDGES["mean"](second)
    assert JUDGES["short answer"](second) > JUDGES["short answer"](first)
    figures = compare_judges(made())
    assert {one.judge for one in figures} == set(JUDGES)
    by_name = {one.judge: one for one in figures}
    assert by_name["sum"].good.mean == 1.0
    assert by_name["short prompt"].good.mean == 0.5
    assert by_name["sum"].contains.mean == 1.0
    assert by_name["sum"].finished is None  # only one answer with tokens ended by itself


def test_judges_need_good_and_bad_answers():
    with pytest.raises(ValueError, match="some answers are good"):
        compare_judges(made(ROWS[:1]))
