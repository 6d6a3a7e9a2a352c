"""`python -m papers.measure ladder`: labelled texts in, numbers out; what was measured is not measured again."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from papers.ladder.label_trace import load_label_trace
from papers.measure.__main__ import main
from papers.measure.few_shot import FewShotPrompt, choose_examples
from papers.measure.labelled_texts import LabelledText, read_texts, without
from papers.measure.logistic_regression import LogisticRegression
from papers.measure.unfinished import Unfinished

from disco.errors import ConfigurationError

THINGS = ("plot", "cast", "ending", "music", "pace")
WORDS = (("dull", "weak", "stale"), ("bright", "strong", "fresh"))


def made_texts(count, seed=0):
    """Texts whose second word says the label; no sentence of a real data set."""
    draw = np.random.default_rng(seed)
    texts = []
    for _ in range(count):
        label = int(draw.integers(2))
        things, words = draw.choice(THINGS, 2), draw.choice(WORDS[label], 2)
        texts.append(
            LabelledText(label, f"a {words[0]} {things[0]} and {words[1]} {things[1]} , {draw.integers(99)}")
        )
    return texts


def written(path, texts):
    path.write_text("".join(f"{one.label} {one.text}\n" for one in texts))
    return str(path)


def test_both_forms_of_texts_are_read(tmp_path):
    texts = made_texts(5)
    assert read_texts(written(tmp_path / "a.txt", texts), labels=2) == texts
    rows = [{"label": one.label, "text": one.text, "split": "test"} for one in texts]
    rows.insert(2, {"label": 0, "text": "another", "split": "train"})
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    assert read_texts(packed, labels=2, split="test") == texts
    assert len(read_texts(packed, labels=2)) == 6
    (tmp_path / "old.txt").write_bytes("1 café\n".encode("cp1252"))
    assert read_texts(tmp_path / "old.txt", labels=2, encoding="cp1252") == [LabelledText(1, "café")]
    with pytest.raises(ConfigurationError, match="is not UTF-8 text"):
        read_texts(tmp_path / "old.txt", labels=2)
    with pytest.raises(ConfigurationError, match="is not utf-16 text"):
        read_texts(tmp_path / "old.txt", labels=2, encoding="utf-16")
    (tmp_path / "marked.txt").write_bytes(b"\xef\xbb\xbf1 good\n")  # with the mark that some editors write
    assert read_texts(tmp_path / "marked.txt", labels=2) == [LabelledText(1, "good")]
    spaced = LabelledText(1, texts[0].text.upper().replace(" ,", ","))
    assert list(without([spaced, LabelledText(0, "new")], texts)) == [LabelledText(0, "new")]


@pytest.mark.parametrize(
    ("name", "content", "options", "says"),
    [
        ("a.txt", "0 fine\nfine\n", {}, "line 2: the line must begin with the number"),
        ("a.txt", "0 fine\n2 secret\n", {}, "line 2: the label must be a number from 0 to 1"),
        ("a.txt", "0 fine\n1 \n", {}, "line 2: the text is missing"),
        (
            "a.jsonl",
            '{"label": 0, "text": "a"}\n{"label": 0, "text": "secret\n',
            {},
            "line 2: this is no JSON",
        ),
        ("a.jsonl", '{"label": true, "text": "a"}\n', {}, "line 1: the label"),
        ("a.jsonl", '{"text": "secret"}\n', {}, "line 1: the object must have"),
        ("a.jsonl", '{"label": 0, "text": "a"}\n', {"split": "dev"}, "no text of the split 'dev'"),
        ("a.txt", "0 fine\n", {"split": "dev"}, "has no splits"),
        ("a.txt", "\n", {}, "has no text"),
    ],
)
def test_a_bad_file_is_refused_with_its_line_and_without_its_text(tmp_path, name, content, options, says):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=says) as raised:
        read_texts(path, labels=2, **options)
    assert str(path) in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("pairs", [False, True])
def test_logistic_regression_learns_which_words_tell_the_label(pairs):
    train, test = made_texts(300), made_texts(60, seed=1)
    model = LogisticRegression(
        [one.text for one in train], [one.label for one in train], label_count=2, pairs=pairs
    )
    scores = np.array([model.scores(one.text) for one in test])
    assert (scores.argmax(axis=1) == [one.label for one in test]).all()
    np.testing.assert_allclose(np.exp(scores).sum(axis=1), 1.0)
    np.testing.assert_allclose(model.scores("unheard of"), np.log([0.5, 0.5]), atol=0.3)
    assert model.flops(test[0].text) > model.flops("unheard of") == 0


def test_the_prompt_has_examples_of_every_label_and_the_ends_of_a_long_text():
    train = made_texts(200)
    examples = choose_examples(train, 2, 6, seed=4)
    assert sorted(one.label for one in examples) == [0, 0, 0, 1, 1, 1]
    assert all(examples[place].label != examples[place + 1].label for place in (0, 2, 4))
    assert examples == choose_examples(train, 2, 6, seed=4) != choose_examples(train, 2, 6, seed=5)
    prompt = FewShotPrompt(examples, ("bad", "good"), first_words=2, last_words=1)
    request = prompt.request("one<br />two three four five")
    assert request.classes == (" bad", " good")
    assert request.messages[0]["content"].endswith("Review: one two ... five\nSentiment:")
    assert request.messages[0]["content"].count("\n\nReview: ") == 6


def test_an_unfinished_measurement_goes_on_and_is_not_mixed_with_another(tmp_path):
    path = tmp_path / "t.csv.part"
    scores = [[[-0.5, -1.5], 0.25, 30], [[-2.0, -0.125], 0.5, 20]]
    with Unfinished(path, {"model": "a"}) as first:
        for score in scores:
            first.add(score)
    path.write_text(path.read_text() + "[[-0.5, -1")  # the line that was being written
    with Unfinished(path, {"model": "a"}) as second:
        assert second.rows == scores
        second.add(scores[0])
    with Unfinished(path, {"model": "a"}) as third:
        assert third.rows == [*scores, scores[0]]
    for found in (path.read_bytes(), b"\xff\xfe, of another program"):
        path.write_bytes(found)
        with pytest.raises(ConfigurationError, match="other settings"):
            Unfinished(path, {"model": "b"})
        assert path.read_bytes() == found
    path.write_text('{"model": "b"}\n[1,\n')
    with pytest.raises(ConfigurationError, match="damaged"):
        Unfinished(path, {"model": "b"})
    path.unlink()
    with Unfinished(path, {"model": "a"}):
        assert path.exists()
    assert not path.exists()  # without rows it would only be in the way of another model


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (("--labels", "good,good"), "--labels"),
        (("--examples", "1"), "--examples must be at least 2"),
        (("--limit", "0"), "--limit"),
        (("--last-words", "-1"), "--last-words"),
        (("--seed", "-1"), "--seed"),
        (("--test-encoding", "utf-99"), "--test-encoding 'utf-99'"),
        (("--test-encoding", "rot13"), "--test-encoding 'rot13'"),
        (("--train", "none.txt"), "no file none.txt"),
    ],
)
def test_an_option_without_a_meaning_is_refused_by_name(tmp_path, capsys, option, says):
    texts = written(tmp_path / "a.txt", made_texts(3))
    command = [
        "ladder",
        "--train",
        texts,
        "--test",
        texts,
        "--out",
        str(tmp_path / "out.csv"),
        *option,
    ]
    assert main(command) == 2
    assert says in capsys.readouterr().err


@pytest.mark.real
def test_the_command_makes_a_trace_of_numbers_and_resumes(tmp_path, capsys, monkeypatch):
    train, test = (
        written(tmp_path / "train.txt", made_texts(320)),
        written(
            tmp_path / "test.txt", [*made_texts(8, 1), made_texts(1)[0]]
        ),  # the last one is also in train
    )
    out = tmp_path / "trace.csv"
    command = ["ladder", "--train", train, "--test", test, "--examples", "2", "--out", str(out)]
    asked = []

    def score_text(device, prompt, text):
        asked.append(text)
        if len(asked) == 4:
            raise KeyboardInterrupt
        return real(device, prompt, text)

    ladder = pytest.importorskip("papers.measure.ladder_measurement")
    real = ladder.score_text
    monkeypatch.setattr(ladder, "score_text", score_text)
    assert main(command) == 130
    assert not out.exists()
    assert main(command) == 0
    assert len(asked) == 10  # the fourth text was asked twice, the first three once
    assert len(set(asked)) == 9
    trace = load_label_trace(out)
    assert [tier.name for tier in trace.tiers] == ["words-300", "words-320", "smollm2-135m"]
    assert (trace.scores.argmax(axis=2) == trace.gold[:, None])[:, :2].all()
    assert (trace.scores[:, 2] < 0).all()
    assert all(tier.cpu_s > 0 for tier in trace.tiers)
    assert trace.tiers[2].flops > 1e9 > trace.tiers[1].flops > 0
    assert not any(word in out.read_text() for pair in WORDS for word in pair)
    assert not list(tmp_path.glob("*.part"))
    said = capsys.readouterr()
    assert "9 texts" in said.out
    assert "texts to score are also training texts" in said.err
    assert main([*command[:-1], test]) == 2
    assert "would overwrite" in capsys.readouterr().err
