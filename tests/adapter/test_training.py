"""The adapter in torch: what llama.cpp computes, and what training does. Needs the extra `adapter`."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_model import tiny_llama

pytest.importorskip("torch")

import torch

from disco.adapter import making
from disco.adapter.loss import head_loss
from disco.adapter.making import Order, make_adapter, write_answers
from disco.adapter.model_facts import read_facts
from disco.adapter.network import AdapterLayer, normed
from disco.adapter.recipe import Recipe
from disco.adapter.training import agreement, initial_tensors, train
from disco.endpoints.llamacpp.layers.adapter_file import put_adapter, weights_name
from disco.endpoints.llamacpp.layers.cut import cut_model
from disco.endpoints.llamacpp.layers.device_model import DeviceModel

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("words")]

TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
IDS = [5, 9, 33, 33, 2, 71, 8, 12, 5, 9, 40, 41]


def draft_logits(device, ids):
    model = DeviceModel(
        device, context_tokens=64, threads=1, batch_tokens=64, gpu_layers=0, keep_loading=lambda: True
    )
    try:
        model.forget()
        states = model.compute_states(0, 0, ids, logits_from=0).copy()
        return states, np.stack([model.logits(place).copy() for place in range(len(ids))])
    finally:
        model.close()


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("block", ["full", "attention"])
def test_the_layer_computes_what_llama_cpp_computes_with_its_weights(tmp_path, architecture, block):
    factors = architecture == "llama" and block == "full"
    whole = tiny_llama(tmp_path / "tiny.gguf", architecture=architecture, rope_freqs=factors)
    facts = read_facts(whole, 2)
    tensors = initial_tensors(facts, block)
    tensors = {name: one.astype(np.float16).astype(np.float32) for name, one in tensors.items()}
    states, found = draft_logits(cut_model(whole, 2, tmp_path, adapter=tensors)["device"], IDS)
    with torch.no_grad():
        made = AdapterLayer(facts, tensors)(torch.from_numpy(states)[None])[0]
        logits = (
            normed(made, torch.from_numpy(facts.output_norm), facts.epsilon) @ torch.from_numpy(facts.head).T
        )
    spread = float(np.std(found))
    assert np.abs(logits.numpy() - found).max() < 0.01 * spread


def test_the_heads_loss_and_its_gradient_are_those_of_torch():
    torch.manual_seed(1)
    made = torch.randn(11, 6)
    head, bias = torch.randn(9, 6), torch.randn(9)
    places = torch.stack([torch.randperm(9)[:3] for _ in range(11)])
    shares = torch.rand(11, 3)
    shares /= shares.sum(-1, keepdim=True)
    shares[4] = 0  # nothing to learn there
    loss, gradient = head_loss(made, head, bias, places, shares, torch.empty(4, 9))
    again = made.clone().requires_grad_()
    chances = torch.log_softmax(again @ head.T + bias, -1).gather(-1, places)
    wanted = -(chances * shares).sum() / 10
    wanted.backward()
    assert loss == pytest.approx(wanted.item(), rel=1e-5)
    assert torch.allclose(gradient, again.grad, atol=1e-6)


@pytest.fixture
def prompts(monkeypatch):
    """Prompts of the tiny model's words; the built-in ones are none for it."""
    monkeypatch.setattr(
        making, "training_prompts", lambda seed: (f"w{n % 90} w{n * 7 % 90}" for n in range(24))
    )
    monkeypatch.setattr(making, "held_out_prompts", lambda: ["w3 w5 w8", "w50 w60"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    return tiny_llama(path, more={"tokenizer.chat_template": TEMPLATE})


class Told:
    def __init__(self):
        self.what, self.looks = set(), []

    def writing(self, what, tokens, seconds):
        self.what.add(what)

    def training(self, progress):
        self.looks.append(progress)


def test_an_adapter_is_made_from_the_models_own_answers_and_drafts_in_llama_cpp(whole, tmp_path, prompts):
    told = Told()
    adapter = make_adapter(Order(path=whole, layers=2, tokens=300, seconds=60_000), told)
    assert told.what == {"held-out", "training"}
    assert adapter.facts.weights == weights_name(whole)
    assert told.looks[-1].share == 1
    device = cut_model(whole, 2, tmp_path)["device"]
    untrained = draft_logits(device, IDS)
    put_adapter(device, adapter)
    trained = draft_logits(device, IDS)
    assert np.array_equal(untrained[0], trained[0])  # the states are the model's, whatever the adapter
    facts = read_facts(whole, 2)
    with torch.no_grad():
        made = AdapterLayer(facts, adapter.tensors)(torch.from_numpy(trained[0])[None])[0]
        logits = (
            normed(made, torch.from_numpy(facts.output_norm), facts.epsilon) @ torch.from_numpy(facts.head).T
        )
    assert (logits.argmax(-1).numpy() == trained[1].argmax(-1)).all()


def test_training_learns_the_models_tokens(whole, prompts):
    facts = read_facts(whole, 2)
    held_out, answers = write_answers(Order(path=whole, layers=2, tokens=300, seconds=60_000), facts, Told())
    told = Told()
    recipe = Recipe(batch_tokens=64, epochs=30)
    layer = train(facts, answers, held_out, recipe, told=told.training)
    assert told.looks[-1].loss < 0.9 * told.looks[1].loss
    untrained = AdapterLayer(facts, initial_tensors(facts, "full"))
    assert agreement(facts, layer, answers) > agreement(facts, untrained, answers)


def test_training_ends_when_its_time_is_over(whole, prompts):
    facts = read_facts(whole, 2)
    order = Order(path=whole, layers=2, tokens=40, seconds=60_000)
    held_out, answers = write_answers(order, facts, Told())
    now = iter(range(10_000))
    told = Told()
    layer = train(
        facts,
        answers,
        held_out,
        Recipe(batch_tokens=64, epochs=1e6),
        until=50,
        told=told.training,
        clock=lambda: next(now),
    )
    assert told.looks[-1].share == 1
    assert next(now) < 60
    assert 0 <= agreement(facts, layer, held_out) <= 1
