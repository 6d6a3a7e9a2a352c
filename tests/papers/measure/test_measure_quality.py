"""`python -m papers.measure quality`: what is cut and handed over, what is scored, and that only numbers are kept."""

import json

import pytest
from papers.measure.__main__ import main
from papers.measure.answer_scores import preference
from papers.measure.mixed_answers import WrittenAnswer, cut_answer
from papers.measure.quality_prompts import QualityPrompt, own_prompts, question_prompts
from papers.model_argument import model_name
from papers.quality.quality_trace import MEASURES, load_quality_trace
from question_file import PARAGRAPHS, write_questions
from scripted_server import chunk, scripted_server, sse, stream

from disco.endpoints.llamacpp import EngineEndpoint
from disco.endpoints.openai_api import OpenAIEndpoint
from disco.endpoints.openai_api.sdk_client import PlainClient
from disco.events import Delta


@pytest.fixture
def texts(tmp_path):
    return write_questions(tmp_path / "questions.json")


def test_every_paragraph_has_its_turn_before_any_has_a_second_one(texts):
    prompts = question_prompts(texts, "long", 1)
    assert [(one.group, one.gold) for one in prompts] == [
        (0, ("rye",)),
        (1, ("twice a day",)),
        (0, ("1802",)),
    ]
    assert all("ferry" in one.messages[0]["content"] for one in question_prompts(texts, "long", 2))
    assert "mill" not in repr(prompts)
    short = question_prompts(texts, "short", 1)[0]
    assert short.request(9).params == {"temperature": 0, "max_tokens": 9, "stop": ["\n"]}
    assert short.messages[-1]["content"].startswith(f"Text: {PARAGRAPHS[0][0]}")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("p.txt", " \n", "has no prompt"),
        ("p.jsonl", '{"prompt": "a"}\n{"secret": 1}', "line 2"),
        ("p.jsonl", "secret", "line 1"),
        ("p.jsonl", '{"messages": []}', "line 1"),
    ],
)
def test_a_file_of_prompts_in_another_form_is_refused_and_not_quoted(tmp_path, capsys, name, content, says):
    file = tmp_path / name
    file.write_text(content)
    command = [
        "quality",
        "--small",
        "a.gguf",
        "--large",
        "b.gguf",
        "--out",
        str(tmp_path / "o.csv"),
    ]
    assert main([*command, "--prompts", str(file), "--judge", "b.gguf"]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "secret" not in error


def test_a_users_own_prompts_are_lines_or_conversations(tmp_path):
    lines, conversations = tmp_path / "p.txt", tmp_path / "p.jsonl"
    lines.write_text("one\n\ntwo\n")
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "three"}]
    conversations.write_text(json.dumps({"messages": turns}) + "\n" + json.dumps({"prompt": "four"}))
    assert [one.messages[0]["content"] for one in own_prompts(lines)] == ["one", "two"]
    assert [one.messages[-1]["content"] for one in own_prompts(conversations)] == ["three", "four"]
    assert [one.group for one in own_prompts(conversations)] == [0, 1]


def test_only_a_line_feed_ends_a_line_of_prompts(tmp_path):
    """JSON allows U+2028 in a text, and a text may have a form feed."""
    lines, conversations = tmp_path / "p.txt", tmp_path / "p.jsonl"
    lines.write_text("one\x0cand\u2028two\n", encoding="utf-8")
    conversations.write_text('{"prompt": "three\u2028and\x85four"}\n', encoding="utf-8")
    assert [one.messages[0]["content"] for one in own_prompts(lines)] == ["one\x0cand\u2028two"]
    assert [one.messages[0]["content"] for one in own_prompts(conversations)] == ["three\u2028and\x85four"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--cuts", "4,x"], "--cuts must be numbers"),
        (["--cuts", "0"], "between 1 and 255"),
        (["--assist", "256"], "between 1 and 255"),
        (["--large", "a.gguf"], "one name"),
        (["--paragraphs", "3"], "between 1 and 2"),
        (["--tokens", "0"], "at least 1"),
        (["--small", "smollm2-135m@Q99"], "has no quantisation"),
    ],
)
def test_wrong_arguments_are_refused_before_the_work(texts, tmp_path, capsys, more, says):
    command = ["quality", "--texts", str(texts), "--small", "a.gguf", "--large", "b.gguf"]
    assert main([*command, "--out", str(tmp_path / "o.csv"), *more]) == 2
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [texts]


def test_models_are_named_without_their_folders():
    assert model_name("smollm2-135m@q2_k") == "smollm2-135m@Q2_K"
    assert model_name("/a/b/c.gguf") == "c"
    assert model_name("http://localhost:1/v1#qwen3:4b") == "qwen3:4b (server)"
    assert model_name("http://localhost:1/v1") == "localhost:1 (server)"


def test_a_cut_drops_the_last_word_and_keeps_the_ids_of_the_rest():
    words = ["The", " mill", " ground", " rye", "."]
    deltas = tuple(Delta(word, ids=(number,)) for number, word in enumerate(words))
    answer = WrittenAnswer("".join(words), deltas, "stop", 7)
    model = EngineEndpoint()  # nothing is loaded
    prefix = cut_answer(answer, 3, model, model)
    assert (prefix.text, prefix.tokens, prefix.withheld) == ("The mill", 2, "")
    assert cut_answer(answer, 1, model, model).text == ""
    assert cut_answer(answer, 5, model, model) is None


@pytest.mark.slow
@pytest.mark.real
def test_both_models_write_mixed_answers_and_only_numbers_are_kept(texts, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    out, figures = tmp_path / "q.csv", tmp_path / "q.json"
    command = ["quality", "--texts", str(texts), "--answers", "short", "--threads", "1"]
    command += [
        "--small",
        "smollm2-135m@Q8_0",
        "--large",
        "smollm2-135m",
        "--judge",
        "smollm2-135m",
        "--preferences",
    ]
    command += ["--tokens", "6", "--cuts", "2", "--assist", "", "--questions", "1"]
    assert main([*command, "--out", str(out), "--json", str(figures)]) == 0
    trace = load_quality_trace(out)
    small, large = trace.small, trace.large
    assert (small, large, trace.prompts) == ("smollm2-135m@Q8_0", "smollm2-135m", 1)
    rows = {(row.first, row.second, row.cut): row for row in trace.rows}
    assert set(rows) == {(large, "", 0), (small, "", 0), (small, large, 2), (large, small, 2), ("", "", 0)}
    nothing = rows.pop(("", "", 0))
    assert set(nothing.measures) == {"told_nats"}
    for row in rows.values():
        assert set(row.measures) == set(MEASURES)
        assert row.kept_tokens <= row.tokens <= 6
        assert 0 <= row.measures["preferred"] <= 1
    own, other = rows[large, "", 0], rows[small, "", 0]
    assert own.same_tokens == own.tokens >= other.same_tokens
    assert other.measures["preferred"] == 0.5
    # The first two tokens of the right answer are the source's, the others the target's.
    mixed = [rows[pair].measures["gold_nats"] for pair in ((small, large, 2), (large, small, 2))]
    both = [row.measures["gold_nats"] for row in (own, other)]
    assert sum(mixed) == pytest.approx(sum(both), abs=1e-3)
    assert {one["measure"] for one in json.loads(figures.read_text())["measures"]} == set(MEASURES)
    said = capsys.readouterr()
    assert "mill" not in said.out + said.err + figures.read_text() + out.read_text()


@pytest.mark.slow
@pytest.mark.real
def test_a_server_writes_and_judges_too(native_server, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    out, prompts = tmp_path / "q.csv", tmp_path / "p.txt"
    prompts.write_text("Name a river.\n")
    server = f"{native_server.base_url}#{native_server.model}"
    command = ["quality", "--prompts", str(prompts), "--small", "smollm2-135m", "--threads", "1"]
    command += ["--large", server, "--judge", server, "--tokens", "8", "--cuts", "4", "--assist", ""]
    assert main([*command, "--out", str(out)]) == 0
    rows = {(row.first, row.second): row for row in load_quality_trace(out).rows}
    large = f"{native_server.model} (server)"
    assert set(rows) == {
        (large, ""),
        ("smollm2-135m", ""),
        ("smollm2-135m", large),
        (large, "smollm2-135m"),
    }
    for row in rows.values():
        assert set(row.measures) == {"preferred"}  # a server scores no text that it did not write
        assert 0 <= row.measures["preferred"] <= 1
        assert 0 < row.tokens <= 8


@pytest.mark.real
@pytest.mark.anyio
async def test_a_judge_without_log_probabilities_is_asked_in_both_orders():
    def says(reply):
        return stream(sse(chunk(reply), chunk(finish="stop")))

    prompt = QualityPrompt([{"role": "user", "content": "Name a river."}], 0)
    scripts = [says("Answer 1."), says("2"), says("1"), says("1"), says("I cannot say."), says("2")]
    async with (
        scripted_server(*scripts) as server,
        PlainClient(base_url=server.base_url, api_key="k") as client,
    ):
        judge = OpenAIEndpoint(client=client)
        found = [await preference(judge, prompt, "The Rhine.", "Hamburg.") for _ in range(3)]
        assert await preference(judge, prompt, "The Rhine.", "The Rhine.") == 0.5
    assert found == [1.0, 0.5, 0.75]
    first, second, *_ = (body["messages"][0]["content"] for _, _, body in server.requests)
    assert first.index("Name a river.") < first.index("The Rhine.") < first.index("Hamburg.")
    assert second.index("Hamburg.") < second.index("The Rhine.")
    assert len(server.requests) == 6
