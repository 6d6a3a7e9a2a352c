"""The evaluation on free-text answers, from the shipped trace."""

import json
from dataclasses import replace

import numpy as np
import pytest
from papers.ladder.answer_trace import load_answer_trace
from papers.ladder.judges import compare_judges
from papers.recserve.ladder_material import DATA
from papers.recserve.sequence_tables import sequence_tables
from papers.recserve.sequences import run_sequences, simulated_ladder

from disco.judging import DEFAULT_SEQUENCE_CONFIDENCE


@pytest.fixture(scope="module")
def shipped():
    return load_answer_trace(DATA / "xquad-en.csv.gz")


@pytest.fixture(scope="module")
def short(shipped):
    return run_sequences(runs=2, trace=replace(shipped, rows=shipped.rows[::4]))


def test_the_default_judge_is_the_best_on_the_shipped_answers(shipped):
    assert len(shipped) == 1_190
    best, *others = compare_judges(shipped)
    assert best.judge == DEFAULT_SEQUENCE_CONFIDENCE
    assert all(one.behind.low > 0.0 for one in others)
    rivals = ("sum", "weakest", "mean", "short answer")
    for limit in (0.2, 0.4, 0.5, 0.7):
        assert compare_judges(shipped, rivals, good_f1=limit)[0].judge == DEFAULT_SEQUENCE_CONFIDENCE
    assert compare_judges(shipped, rivals, good_f1=0.0)[0].judge == "mean"  # one right word is enough


def test_the_top_tier_is_simulated_from_the_right_answers(shipped):
    ladder = simulated_ladder(shipped, "sum", right=0.9)
    device, top = ladder.quality.T
    is_right = top == 1.0
    assert np.array_equal(device, shipped.f1)
    assert 0.88 < is_right.mean() < 0.93
    assert np.array_equal(top[~is_right], device[~is_right])
    assert np.array_equal(ladder.answer_bytes[~is_right, 1], shipped.answer_bytes[~is_right])


def test_early_exit_holds_beta_and_saves_tokens(short):
    for one in short.exits:
        assert abs(one.share - one.beta) < 0.05
        assert one.changed < 10.0
        assert one.written <= 1.0
    assert any(one.written < 0.9 for one in short.exits)


def test_tables_name_what_is_simulated(short):
    tables = sequence_tables(short)
    for table in tables:
        assert {len(row) for row in table.rows} == {len(table.header)}
    assert "simulated" in tables[1].title
    assert any("SIMULATED" in note for note in tables[1].notes)
    assert len(tables[1].rows) == 2 + 5 * 6
    json.dumps(short.to_dict())
