"""The files of adapters: what comes back is what was written, and an adapter for other weights is never used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from servers import smollm2_gguf
from tiny_model import tiny_llama

from disco.endpoints.llamacpp.layers import adapter_file
from disco.endpoints.llamacpp.layers.adapter_file import (
    KNOWN_ADAPTERS,
    Adapter,
    AdapterFacts,
    fits,
    fits_weights,
    holds,
    known_adapter,
    put_adapter,
    read_adapter,
    weights_name,
    write_adapter,
)
from disco.endpoints.llamacpp.layers.cut import cut_model
from disco.endpoints.llamacpp.layers.layer_files import read_layer_file
from disco.errors import ConfigurationError, ModelFileError

gguf = pytest.importorskip("gguf")


def tensors_of(whole, layer):
    reader = gguf.GGUFReader(whole)
    prefix = f"blk.{layer}."
    return {
        one.name.removeprefix(prefix): np.array(one.data, np.float32)
        for one in reader.tensors
        if one.name.startswith(prefix)
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture
def adapter(whole):
    return Adapter(
        AdapterFacts(weights_name(whole), 2, training_tokens=12, made="by hand"), tensors_of(whole, 3)
    )


def test_an_adapter_comes_back_in_16_bits(adapter, tmp_path):
    path = tmp_path / "a.npz"
    write_adapter(path, adapter.tensors, adapter.facts)
    found = read_adapter(path)
    assert found.facts == adapter.facts
    assert found.tensors.keys() == adapter.tensors.keys()
    for name, one in found.tensors.items():
        assert one.dtype == np.float32
        assert np.array_equal(one, adapter.tensors[name].astype(np.float16))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not really", b"\x93NUMPY", b"{}" * 99])
def test_a_file_that_is_no_adapters_is_refused_with_the_way_to_make_one(tmp_path, content):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="disco adapter train"):
        read_adapter(path)


def test_files_that_are_missing_or_hold_no_finite_numbers_are_refused(adapter, tmp_path):
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_adapter(tmp_path / "none.npz")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_adapter(tmp_path / "no" / "a.npz", adapter.tensors, adapter.facts)
    write_adapter(tmp_path / "a.npz", {"attn_q.weight": np.full((4, 4), np.nan)}, adapter.facts)
    with pytest.raises(ModelFileError, match="not finite"):
        read_adapter(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", facts=np.array('{"weights": "x"}'))
    with pytest.raises(ModelFileError, match="no adapter's file"):
        read_adapter(tmp_path / "b.npz")


def test_weights_have_one_name_in_all_quantisations_and_in_the_devices_file(whole, tmp_path):
    quantised = tiny_llama(tmp_path / "q8.gguf", quantised=True)
    assert weights_name(quantised) == weights_name(whole)
    assert weights_name(cut_model(whole, 1, tmp_path)["device"]) == weights_name(whole)
    assert weights_name(tiny_llama(tmp_path / "other.gguf", seed=8)) != weights_name(whole)


def test_an_adapter_for_other_weights_or_layers_is_refused(adapter, whole, tmp_path):
    fits(adapter, whole, 2)
    with pytest.raises(ModelFileError, match="behind 2 layers"):
        fits(adapter, whole, 1)
    other = tiny_llama(tmp_path / "other.gguf", seed=8)
    with pytest.raises(ModelFileError, match="other weights"):
        fits(adapter, other, 2)
    with pytest.raises(ModelFileError, match="another model"):
        fits_weights(cut_model(other, 2, tmp_path)["device"], whole)


def test_the_adapter_of_a_package_is_found_by_weights_and_layers(adapter, whole, tmp_path, monkeypatch):
    assert known_adapter(whole, 2) is None
    known = {(weights_name(whole), 2): ("package_with_tiny", "tiny.m2.npz", "pip install it")}
    monkeypatch.setattr(adapter_file, "KNOWN_ADAPTERS", known)
    q8 = tiny_llama(tmp_path / "q8.gguf", quantised=True)
    assert known_adapter(q8, 2) == "pip install it"
    (tmp_path / "package_with_tiny.py").touch()
    write_adapter(tmp_path / "tiny.m2.npz", adapter.tensors, adapter.facts)
    monkeypatch.syspath_prepend(tmp_path)
    found = known_adapter(q8, 2)
    assert isinstance(found, Adapter)
    assert found.facts == adapter.facts
    assert known_adapter(whole, 3) is None
    assert known_adapter(tiny_llama(tmp_path / "other.gguf", seed=8), 2) is None
    assert known_adapter(tmp_path / "none.gguf", 2) is None


def test_the_package_in_the_repository_has_what_is_known_of_it(monkeypatch):
    """Its folder is what pip installs; the small model is the one that it is for."""
    monkeypatch.syspath_prepend(Path(__file__).parents[4] / "examples" / "adapter-smollm2")
    found = known_adapter(smollm2_gguf(), 2)
    assert isinstance(found, Adapter)
    assert (found.facts.weights, found.facts.layers) in KNOWN_ADAPTERS


def test_an_adapter_put_into_a_devices_file_is_the_one_that_cutting_puts_there(adapter, whole, tmp_path):
    cut = cut_model(whole, 2, tmp_path / "with", adapter=adapter.tensors)["device"]
    device = cut_model(whole, 2, tmp_path / "without")["device"]
    assert not read_layer_file(device, "device").has_adapter
    assert not holds(device, adapter)
    put_adapter(device, adapter)
    assert read_layer_file(device, "device").has_adapter
    assert holds(device, adapter)
    assert holds(cut, adapter)
    other = {name: 2 * one for name, one in adapter.tensors.items()}
    assert not holds(device, Adapter(adapter.facts, other))
    there, wanted = (gguf.GGUFReader(one) for one in (device, cut))
    assert {name: one.contents() for name, one in there.fields.items() if not name.startswith("GGUF.")} == {
        name: one.contents() for name, one in wanted.fields.items() if not name.startswith("GGUF.")
    }
    of_cut = {one.name: one for one in wanted.tensors}
    for one in there.tensors:
        assert one.tensor_type == of_cut[one.name].tensor_type
        assert np.array_equal(one.data, of_cut[one.name].data), one.name
    # Attention alone in its place: nothing is left of the feed-forward part before.
    attention = {name: one for name, one in adapter.tensors.items() if not name.startswith("ffn_")}
    put_adapter(device, Adapter(adapter.facts, attention))
    left = {
        one.name: one.data for one in gguf.GGUFReader(device).tensors if one.name.startswith("blk.2.ffn_")
    }
    assert left
    assert not any(np.any(data) for data in left.values())
    with pytest.raises(ModelFileError, match="another shape"):
        put_adapter(device, Adapter(adapter.facts, {"attn_q.weight": np.zeros((8, 8), np.float32)}))
    assert read_layer_file(device, "device").has_adapter  # as it was
