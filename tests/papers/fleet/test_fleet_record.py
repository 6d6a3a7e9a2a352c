"""`python -m papers.fleet record` with a real model as target and draft."""

from __future__ import annotations

import pytest
from papers.fleet.__main__ import main
from papers.fleet.agreement import Choice, agreement, write_answer
from papers.local_model import LocalModel

from disco.replay import read_drafts

pytestmark = pytest.mark.real

MODEL = "smollm2-135m"


@pytest.mark.slow
def test_a_model_agrees_with_itself_and_not_with_a_strangers_tokens():
    model = LocalModel(MODEL, threads=1, context_tokens=256)
    try:
        prompt = model.prompt([{"role": "user", "content": "Name three rivers."}])
        for temperature in (0.0, 0.8):
            choice = Choice(temperature, seed=7)
            answer = write_answer(model, prompt, 8, choice)
            assert len(answer) == 8 or model.ends_answer(answer[-1])
            own = agreement(model, prompt, answer, choice)
            assert own.accepts == bytes([1] * len(answer))
            assert all(0 < value <= 1 for value in own.confidence)
            # One wrong token: it is refused, and those behind it are judged behind it.
            changed = [*answer[:4], answer[4] + 1, *answer[5:]]
            found = agreement(model, prompt, changed, choice)
            assert found.accepts[:5] == bytes([1, 1, 1, 1, 0])
            assert found.confidence[:5] == pytest.approx(own.confidence[:5])
        model.batch_tokens = 5  # read in small batches, it is the same
        assert agreement(model, prompt, answer, choice).accepts == own.accepts
    finally:
        model.close()


def test_the_command_writes_a_trace(tmp_path, capsys):
    texts, out = tmp_path / "prompts.txt", tmp_path / "trace.jsonl"
    texts.write_text("Name a river.\n\nName a tree.\nName a bird.\n")
    arguments = ["record", MODEL, MODEL, "--texts", str(texts), "--out", str(out), "--prompts", "2"]
    assert main([*arguments, "--tokens", "6", "--threads", "1", "--drafters", "2"]) == 0
    requests = read_drafts(out)
    assert [one.drafter for one in requests] == [0, 1]
    assert 0 < requests[0].arrival_s < requests[1].arrival_s
    for one in requests:
        assert one.output_tokens == len(one.accepts) == len(one.confidence) <= 6
        assert set(one.accepts) == {1}
    shown = capsys.readouterr()
    assert "agrees at 100.0%" in shown.out
    assert "river" not in shown.out + shown.err + out.read_text()
    texts.write_text("\n")
    assert main(arguments) == 2
    assert "has no prompt" in capsys.readouterr().err
