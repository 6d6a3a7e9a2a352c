"""The model's own answers: many at once are those of one at a time, and their states are what the parts compute."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_model import tiny_llama

from disco.adapter.answers import TOP
from disco.adapter.making import Order, write_answers
from disco.adapter.model_facts import read_facts
from disco.adapter.teacher import Teacher, Wish
from disco.endpoints.llamacpp.layers.cut import cut_model
from disco.endpoints.llamacpp.layers.device_model import DeviceModel
from disco.errors import ConfigurationError, ModelFileError

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("words")]

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
PROMPTS = ["w1 w2 w3", "w9", "w20 w4 w20 w4 w7 w8", "w33 w2"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    return tiny_llama(path, more={"tokenizer.chat_template": TEMPLATE})


def written(whole, prompts, slots, temperature=0.0, keep_on=lambda: True):
    teacher = Teacher(read_facts(whole, 2), layers=2, seed=1, context_tokens=64, threads=1, slots=slots)
    try:
        wishes = [Wish(prompt, temperature) for prompt in prompts]
        return {
            tuple(a.ids[: a.prompt_tokens]): a for a in teacher.write(wishes, most_tokens=6, keep_on=keep_on)
        }
    finally:
        teacher.close()


def test_answers_written_at_once_are_those_written_one_after_another(whole):
    alone, together = written(whole, PROMPTS, 1), written(whole, PROMPTS, 3)
    assert alone.keys() == together.keys()
    assert len(alone) == len(PROMPTS)
    for prompt, one in alone.items():
        assert np.array_equal(one.ids, together[prompt].ids)
        # Rows beside others are rounded otherwise: the states are kept in 16 bits.
        assert np.allclose(one.shallow, together[prompt].shallow, atol=2e-2)
        assert np.allclose(one.final, together[prompt].final, atol=2e-2)


def test_states_and_tokens_of_an_answer_are_the_models(whole, tmp_path):
    facts = read_facts(whole, 2)
    device = DeviceModel(
        cut_model(whole, 2, tmp_path)["device"],
        context_tokens=64,
        threads=1,
        batch_tokens=64,
        gpu_layers=0,
        keep_loading=lambda: True,
    )
    device.forget()
    for one in written(whole, PROMPTS, 2).values():
        device.cut(0, 0)
        states = device.compute_states(0, 0, one.ids[:-1].tolist())
        assert np.allclose(states, one.shallow, atol=1e-2)
        assert one.final.shape == (one.tokens, facts.hidden)
        assert one.top_ids.shape == (one.tokens, TOP)
        # At temperature 0 the best token is the one that was written, and the head says so of the state before it.
        assert one.top_ids[:, 0].tolist() == one.ids[one.prompt_tokens :].tolist()
        logits = one.final.astype(np.float32) @ facts.head.T
        assert logits.argmax(-1).tolist() == one.top_ids[:, 0].tolist()
        shares = np.exp(logits - logits.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        assert np.allclose(np.take_along_axis(shares, one.top_ids, -1), one.top_shares, atol=0.02)
    device.close()


def test_no_answer_comes_once_writing_is_to_end(whole):
    assert written(whole, PROMPTS, 2, keep_on=lambda: False) == {}


def test_a_time_that_is_too_short_for_an_answer_is_told(whole):
    class Unheard:
        def writing(self, what, tokens, seconds): ...

    order = Order(path=whole, layers=2, seconds=0)
    with pytest.raises(ConfigurationError, match="Allow more minutes"):
        write_answers(order, read_facts(whole, 2), Unheard(), clock=lambda: 5.0)


def test_models_for_which_no_adapter_can_be_trained_are_refused(tmp_path):
    scaled = tiny_llama(tmp_path / "scaled.gguf", more={"llama.rope.scaling.type": "yarn"})
    with pytest.raises(ModelFileError, match="scales its rotation"):
        read_facts(scaled, 2)
    other = tiny_llama(tmp_path / "other.gguf", architecture="gemma")
    with pytest.raises(ModelFileError, match="gemma"):
        read_facts(other, 2)
    with pytest.raises(ConfigurationError, match="1 to 3"):
        read_facts(tiny_llama(tmp_path / "tiny.gguf"), 4)
