"""`python -m papers.measure refine`: its arms, its options and its table."""

import json
import math

import pytest
from papers.measure.__main__ import main
from papers.measure.paragraph_run import Measured
from papers.measure.refine_arms import arms_of, kept_units, task_of
from papers.measure.refine_summary import summarise
from papers.measure.squad_questions import read_questions
from papers.refinement import load_refine_table

from disco.errors import ConfigurationError

TEXT = (
    "The mill at Orrin ground rye for the whole valley and its people. It burned down in 1802, on a night in March. "
    "A ferry crosses the lake twice a day in summer, and once in autumn. The baker bought flour from his cousin. "
    "Nobody remembers the name of the last miller there. In winter the road over the pass is often closed."
)
QUESTIONS = (("When did the mill burn?", "1802"), ("What closes in winter?", "the road over the pass"))


@pytest.fixture
def texts(tmp_path):
    paragraphs = [
        {
            "context": TEXT.replace("Orrin", place),
            "qas": [
                {
                    "question": question,
                    "answers": [{"text": answer, "answer_start": TEXT.replace("Orrin", place).index(answer)}],
                }
                for question, answer in QUESTIONS
            ],
        }
        for place in ("Orrin", "Sundhaven")
    ]
    path = tmp_path / "questions.json"
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return path


def test_a_task_knows_which_units_hold_the_answer_in_any_place_of_a_long_prompt(texts):
    questions = read_questions(texts)
    arm = next(arm for arm in arms_of([0.2], 4, every=False) if arm.name == "lexical")
    for question in questions:
        for paragraphs in ((), tuple(dict.fromkeys(one.paragraph for one in questions))):
            task = task_of(question, paragraphs)
            content = task.messages[-1]["content"]
            held = [
                content[start:end] for (start, end), gold in zip(task.spans, task.gold, strict=True) if gold
            ]
            assert len(held) == 1
            assert question.answers[0] in held[0]
            assert sum(kept_units(task, arm)) < len(task.gold)


def test_the_table_has_means_and_intervals_over_paragraphs():
    arms = [arm for arm in arms_of([], 4, every=False) if arm.name in ("full", "lexical", "random")]
    nats = {"full": 2.0, "lexical": 2.5, "random": 4.0}
    found = [
        [{arm: Measured(nats[arm.name] + noise, 0.5, arm.name != "random", arm.keep, 10) for arm in arms}]
        * count
        for noise, count in ((0.0, 3), (1.0, 1), (0.5, 4))
    ]
    rows = {row.arm: row for row in summarise(found, arms)}
    row = rows["lexical"]
    assert (row.questions, row.kept_share, row.prompt_tokens) == (8, 0.4, 10.0)
    assert row.nats == pytest.approx(2.5 + 3 / 8)
    assert 2.5 <= row.nats_low < row.nats < row.nats_high <= 3.5
    assert [row.over_full, row.over_full_low, row.over_full_high] == pytest.approx([0.5] * 3)
    assert [row.over_random, row.over_random_low] == pytest.approx([-1.5] * 2)
    assert (row.gold_kept, rows["random"].gold_kept) == (1.0, 0.0)
    assert (row.f1, row.f1_low, row.f1_high) == (0.5, 0.5, 0.5)
    assert math.isnan(rows["full"].over_random)


@pytest.mark.parametrize(
    ("options", "says"),
    [(["--tokens", "0"], "--tokens must be"), (["--paragraphs", "0"], "--paragraphs must be")],
)
def test_wrong_options_are_refused(texts, tmp_path, capsys, options, says):
    out = str(tmp_path / "t.csv")
    assert main(["refine", "--texts", str(texts), "--out", out, *options]) == 2
    assert says in capsys.readouterr().err


def test_another_file_is_no_table(texts):
    with pytest.raises(ConfigurationError, match="this is no trace of refined prompts"):
        load_refine_table(texts)


@pytest.mark.slow
@pytest.mark.real
def test_every_arm_is_measured(texts, tmp_path, capsys):
    out = tmp_path / "t.csv"
    command = [
        "refine",
        "--texts",
        str(texts),
        "--out",
        str(out),
        "--arms",
        "all",
        "--keep",
        "0.4",
    ]
    command += ["--tokens", "2"]
    one_each = json.loads(texts.read_text())
    for paragraph in one_each["data"][0]["paragraphs"]:
        del paragraph["qas"][1:]
    texts.write_text(json.dumps(one_each))
    assert main([*command, "--paragraphs", "1"]) == 0
    table = load_refine_table(out)
    arms = arms_of([0.4], 4, every=True)
    assert [(row.arm, row.keep, row.begun) for row in table.rows] == [
        (arm.name, arm.keep, arm.begun) for arm in arms
    ]
    for row in table.rows:
        assert row.questions == 1
        assert 0.0 < row.nats < 30.0
        assert 0.0 <= row.f1 <= 1.0
    full, none, lexical = (table.row(*arm) for arm in (("full", 1.0), ("none", 0.0), ("lexical", 0.4)))
    assert none.prompt_tokens < lexical.prompt_tokens < full.prompt_tokens
    assert none.nats > full.nats
    assert (full.gold_kept, lexical.gold_kept, none.gold_kept) == (1.0, 1.0, 0.0)
    said = capsys.readouterr()
    assert "1802" not in said.out + said.err
    assert "Orrin" not in out.read_text()
    assert set(tmp_path.iterdir()) == {texts, out}  # no unfinished rows are left


def test_numbers_of_unfinished_rows_survive_as_json():
    one = Measured(1.2345, 0.25, True, 0.4, 99)
    assert Measured.of_cells(json.loads(json.dumps(one.cells()))) == one
