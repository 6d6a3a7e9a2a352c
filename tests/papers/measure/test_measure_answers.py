"""`python -m papers.measure answers`: what it asks, what it keeps, and that it goes on where it was interrupted."""

import json
import os

import pytest
from papers.ladder.answer_trace import load_answer_trace
from papers.measure.__main__ import main
from papers.measure.answers import settings_of
from papers.measure.squad_questions import exact_match, read_questions, token_f1, token_recall
from question_file import ANSWERS, write_questions


@pytest.fixture
def texts(tmp_path):
    return write_questions(tmp_path / "questions.json")


def test_questions_keep_their_order_and_paragraph(texts):
    questions = read_questions(texts)
    assert [(one.answers, one.paragraph_number) for one in questions] == [
        (("rye",), 0),
        (("1802",), 0),
        (("twice a day",), 1),
    ]
    assert "mill" not in repr(questions)  # a text never appears in a message


@pytest.mark.parametrize(
    ("answer", "gold", "f1", "recall", "exact"),
    [
        ("The Rye!", ["rye"], 1.0, 1.0, True),
        ("rye and oats", ["rye"], 0.5, 1.0, False),
        ("oats", ["rye", "an oats"], 1.0, 1.0, True),
        ("oats", ["rye and oats"], 0.5, 1 / 3, False),
        ("rye rye", ["rye"], 2 / 3, 1.0, False),
        ("", ["rye"], 0.0, 0.0, False),
    ],
)
def test_answers_are_compared_as_squad_does(answer, gold, f1, recall, exact):
    assert token_f1(answer, gold) == pytest.approx(f1)
    assert token_recall(answer, gold) == pytest.approx(recall)
    assert exact_match(answer, gold) is exact


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "is not JSON"),
        ('{"data": [{}]}', "format of SQuAD"),
        ('{"data": []}', "no question"),
        (
            '{"data": [{"paragraphs": [{"context": "c", "qas": [{"question": "q", "answers": [{"text": null}]}]}]}]}',
            "format of SQuAD",
        ),
    ],
)
def test_other_files_are_refused(tmp_path, capsys, content, says):
    path = tmp_path / "q.json"
    path.write_text(content)
    assert main(["answers", "--texts", str(path), "--out", str(tmp_path / "t.csv")]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert str(path) in error


def test_the_questions_are_not_overwritten_and_a_wrong_model_leaves_nothing(texts, tmp_path, capsys):
    before = texts.read_bytes()
    assert main(["answers", "--texts", str(texts), "--out", str(texts)]) == 2
    assert "would overwrite" in capsys.readouterr().err
    assert main(["answers", "--texts", str(texts), "--out", str(tmp_path)]) == 2
    assert "this is a folder" in capsys.readouterr().err
    out = str(tmp_path / "t.csv")
    assert main(["answers", "--texts", str(texts), "--out", out, "--model", "none.gguf"]) == 2
    assert capsys.readouterr().err  # there is no such model, or no llama.cpp
    assert texts.read_bytes() == before
    assert list(tmp_path.iterdir()) == [texts]


def test_a_shorter_measurement_does_not_lose_the_rows_of_a_longer_one(texts, tmp_path):
    """Three answers are known, from a run that was interrupted; so no model is needed for the first one or two."""
    out, part = tmp_path / "t.csv", tmp_path / "t.csv.part"
    row = json.dumps(["0", "1", "2", "3", "4", "0.5000", "0.5000", "0", "stop", "-1.0000"])
    settings = json.dumps(settings_of(texts, "smollm2-135m", 32), sort_keys=True)
    part.write_text("\n".join((settings, row, row, row, "")))
    before = part.read_bytes()
    command = ["answers", "--texts", str(texts), "--out", str(out)]
    for count in (1, 2):
        assert main([*command, "--questions", str(count)]) == 0
        assert len(load_answer_trace(out)) == count
        assert part.read_bytes() == before
    assert main(command) == 0
    assert not part.exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="this user may write everywhere")
def test_a_file_that_may_not_be_written_is_refused_before_the_work(texts, tmp_path, capsys):
    out = tmp_path / "t.csv"
    out.touch(mode=0o400)
    assert main(["answers", "--texts", str(texts), "--out", str(out)]) == 2
    assert "no permission" in capsys.readouterr().err


@pytest.mark.real
def test_a_question_that_does_not_fit_the_model_is_an_error_in_words(texts, tmp_path, capsys):
    texts.write_text(texts.read_text().replace("The mill", "The mill " * 9_000))
    assert main(["answers", "--texts", str(texts), "--out", str(tmp_path / "t.csv")]) == 2
    assert "context" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.real
def test_numbers_are_kept_and_a_run_goes_on_where_it_ended(texts, tmp_path, capsys):
    out, part = tmp_path / "t.csv.gz", tmp_path / "t.csv.gz.part"
    command = [
        "answers",
        "--texts",
        str(texts),
        "--out",
        str(out),
        "--tokens",
        "6",
        "--threads",
        "1",
    ]
    assert main([*command, "--questions", "1"]) == 0
    first = load_answer_trace(out).rows
    assert not part.exists()
    assert main(command) == 0
    trace = load_answer_trace(out)
    assert trace.rows[:1] == first
    assert [row.paragraph for row in trace.rows] == [0, 0, 1]
    for row, answer in zip(trace.rows, ANSWERS, strict=True):
        assert row.gold_bytes == len(answer)
        assert 1 <= len(row.logp) <= 6
        assert row.finish in ("stop", "length")
    # An interrupted run: one whole row, which no model would give, and half of another.
    invented = json.dumps(["0", "1", "2", "3", "4", "0.5000", "0.5000", "0", "stop", "-1.0000"])
    settings = json.dumps(settings_of(texts, "smollm2-135m", 6), sort_keys=True)
    part.write_text(f'{settings}\n{invented}\n["0", "1')
    assert main(command) == 0
    resumed = load_answer_trace(out)
    assert resumed.rows[0].text_bytes == 1
    assert resumed.rows[1:] == trace.rows[1:]
    part.write_text(f"another run\n{invented}\n")
    assert main(command) == 2
    assert part.exists()
    said = capsys.readouterr()
    assert "other settings or texts" in said.err
    assert "rye" not in said.out + said.err
