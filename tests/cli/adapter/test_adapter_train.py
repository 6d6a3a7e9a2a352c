"""`disco adapter train`: mistakes are told before any work is done."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from disco.adapter import making
from disco.cli import adapter
from disco.cli.main import main
from disco.endpoints.llamacpp.layers.adapter_file import Adapter, AdapterFacts, read_adapter
from disco.endpoints.llamacpp.layers.cut import cut_model
from disco.endpoints.llamacpp.layers.layer_files import read_layer_file

sys.path.insert(0, str(Path(__file__).parents[2] / "endpoints" / "llamacpp" / "layers"))
from tiny_model import tiny_llama


@pytest.fixture
def tiny(tmp_path):
    return tiny_llama(tmp_path / "tiny.gguf")


@pytest.fixture
def trained(monkeypatch):
    """No training, and no torch: what comes out is the model's third layer."""
    monkeypatch.setattr(adapter, "require_torch", lambda: None)
    orders = []

    def made(order, watcher):
        orders.append(order)
        watcher.writing("training", 120, 2.0)
        facts = making.read_facts(order.path, order.layers)
        known = AdapterFacts(
            making.weights_name(order.path), order.layers, order.block, 120, 0.25, 0.5, "here"
        )
        return Adapter(known, facts.layer)

    monkeypatch.setattr(adapter, "make_adapter", made)
    return orders


def test_without_torch_the_extra_is_named(tiny, monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else found(name, *rest)
    )
    assert main(["adapter", "train", str(tiny)]) == 2
    assert 'pip install "disco-llm[adapter]"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--minutes", "0"], "--minutes must be more than 0"),
        (["--tokens", "0"], "--tokens must be at least 1"),
        (["--threads", "-1"], "--threads must be at least 1"),
        (["--out", "no/such/folder/a.npz"], "There is no folder"),
        (["--out", "none.device.gguf"], "There is no model file"),
        (["--out", "tiny.gguf"], "was not cut by disco"),
    ],
)
def test_mistakes_are_told_before_any_work(tiny, trained, monkeypatch, capsys, options, said):
    monkeypatch.chdir(tiny.parent)
    assert main(["adapter", "train", str(tiny), *options]) == 2
    assert said in capsys.readouterr().err
    assert trained == []


def test_a_devices_file_of_another_model_or_of_other_layers_is_not_touched(tiny, trained, tmp_path, capsys):
    other = cut_model(tiny_llama(tmp_path / "other.gguf", seed=8), 2, tmp_path)["device"]
    assert main(["adapter", "train", str(tiny), "--out", str(other)]) == 2
    assert "cut from another model" in capsys.readouterr().err
    one = cut_model(tiny, 1, tmp_path)["device"]
    assert main(["adapter", "train", str(tiny), "--out", str(one)]) == 2
    assert "add --layers 1" in capsys.readouterr().err
    assert trained == []


def test_the_adapter_is_written_to_a_file_of_its_own_or_into_the_devices(
    tiny, trained, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert (
        main(["adapter", "train", str(tiny), "--block", "attention", "--minutes", "2", "--tokens", "9"]) == 0
    )
    assert read_adapter(tmp_path / "tiny.m2.npz").facts.greedy_acceptance == 0.25
    assert "Held-out acceptance: 0.250 at temperature 0, 0.500 at 0.8" in capsys.readouterr().out
    assert (trained[0].seconds, trained[0].tokens, trained[0].block) == (120, 9, "attention")
    device = cut_model(tiny, 2, tmp_path)["device"]
    assert main(["adapter", "train", str(tiny), "--out", str(device)]) == 0
    assert read_layer_file(device, "device").has_adapter
