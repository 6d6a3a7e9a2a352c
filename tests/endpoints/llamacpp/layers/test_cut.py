"""Cutting: the parts compute what the whole model does, bit for bit; what cannot be cut is refused by name."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny_model import tiny_llama

from disco.endpoints.llamacpp.layers import cut_check
from disco.endpoints.llamacpp.layers.cut import cut_model
from disco.endpoints.llamacpp.layers.cut_check import check_cut, compare
from disco.endpoints.llamacpp.layers.layer_files import PARTS, cut_files, read_layer_file
from disco.errors import ConfigurationError, ModelFileError

pytestmark = pytest.mark.real


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"tied": False},
        {"rope_freqs": True},
        {"quantised": True},
        {"architecture": "qwen2"},
        {"architecture": "qwen3", "tied": False},
    ],
    ids=str,
)
def test_the_parts_compute_the_whole_models_logits_bit_for_bit(kind, tmp_path):
    source = tiny_llama(tmp_path / "tiny.gguf", **kind)
    for layers in (1, 3):
        found = compare(source, cut_model(source, layers, tmp_path / "parts"))
        assert (found.delta, found.differing, found.tokens) == (0.0, 0, 24)


def test_what_the_parts_hold(tmp_path):
    """The cloud's part holds neither vocabulary nor embedding nor head, and only the device's has a tokenizer."""
    source = tiny_llama(tmp_path / "tiny.gguf", layers=5, tied=False, more={"general.note": "mine"})
    told = []
    files = cut_model(source, 2, tmp_path / "new" / "folder", progress=lambda *so_far: told.append(so_far))
    assert files == cut_files(source, tmp_path / "new" / "folder")
    assert told[-1][0] == told[-1][1] > 0
    assert sorted(path.name for path in files["device"].parent.iterdir()) == [
        f"tiny.{part}.gguf" for part in sorted(PARTS)
    ]
    held = {part: gguf.GGUFReader(file) for part, file in files.items()}
    whole = {one.name: one for one in gguf.GGUFReader(source).tensors}
    tensors = {part: {one.name: one for one in reader.tensors} for part, reader in held.items()}
    blocks = {
        part: {name.split(".")[1] for name in names if name[:3] == "blk"} for part, names in tensors.items()
    }
    assert blocks == {"device": {"0", "1", "2"}, "cloud": {"0", "1", "2"}, "head": {"0"}}
    assert np.array_equal(tensors["cloud"]["blk.2.ffn_up.weight"].data, whole["blk.4.ffn_up.weight"].data)
    assert not tensors["device"]["blk.2.attn_q.weight"].data.any()  # the adapter
    assert tensors["cloud"]["token_embd.weight"].data.size == 64
    assert "output.weight" not in tensors["cloud"]
    keys = {
        part: {name for name in reader.fields if name[:9] == "tokenizer"} for part, reader in held.items()
    }
    assert "tokenizer.ggml.tokens" in keys["device"]
    assert keys["cloud"] == keys["head"] == {"tokenizer.ggml.model"}
    assert held["cloud"].get_field("general.note").contents() == "mine"
    described = {part: read_layer_file(file, part) for part, file in files.items()}
    assert {(one.layers, one.total_layers, one.hidden) for one in described.values()} == {(2, 5, 64)}
    assert len({one.fingerprint for one in described.values()}) == 1
    assert not described["device"].has_adapter
    with pytest.raises(ModelFileError, match="part 'cloud' of a model, and the part 'device' is needed"):
        read_layer_file(files["cloud"], "device")
    with pytest.raises(ModelFileError, match=r"disco split cut tiny.gguf"):
        read_layer_file(source, "device")


def test_a_trained_adapter_is_written_and_changes_only_the_drafts(tmp_path):
    source = tiny_llama(tmp_path / "tiny.gguf")
    adapter = {
        "attn_v.weight": np.full((32, 64), 0.5, np.float32),
        "attn_norm.weight": np.ones(64, np.float32),
    }
    files = cut_model(source, 2, tmp_path, adapter=adapter)
    assert read_layer_file(files["device"], "device").has_adapter
    tensors = {one.name: one.data for one in gguf.GGUFReader(files["device"]).tensors}
    assert (tensors["blk.2.attn_v.weight"] == 0.5).all()
    assert not tensors["blk.2.attn_q.weight"].any()
    assert compare(source, files).delta == 0.0
    for wrong, complaint in (
        ({"attn_v.weight": np.zeros((64, 32), np.float32)}, "attn_v.weight' has another shape"),
        ({"attn_x.weight": np.zeros(3, np.float32)}, "'attn_x.weight' that no layer"),
    ):
        with pytest.raises(ModelFileError, match=complaint):
            cut_model(source, 2, tmp_path, adapter=wrong)
    assert read_layer_file(files["device"], "device").has_adapter  # the older files stay


REFUSED = {
    "another architecture": (
        {"architecture": "gemma3"},
        "architecture 'gemma3', which disco cannot cut.*llama, qwen2",
    ),
    "experts": ({"more": {"llama.expert_count": 8}}, "llama.expert_count"),
    "a scaled embedding": ({"more": {"llama.embedding_scale": 12.0}}, "llama.embedding_scale"),
    "scaled residuals": ({"more": {"llama.residual_scale": 0.2}}, "llama.residual_scale"),
    "scaled logits": ({"more": {"llama.logit_scale": 16.0}}, "llama.logit_scale"),
    "numbers by layer": ({"more": {"llama.expert_used": [1, 2, 1, 2]}}, "llama.expert_used for each layer"),
    "one of several pieces": ({"more": {"split.count": 3}}, "one of 3 pieces.*--merge"),
    "an unknown tensor": ({"tensors": {"per_layer.weight": (4, 4)}}, "to put: per_layer.weight"),
    "a layer with more": (
        {"tensors": {"blk.3.attn_output.bias": (64,)}},
        "layer 3 of .* are not those of layer 0",
    ),
    "a layer behind the last": (
        {"tensors": {"blk.4.attn_q.weight": (64, 64)}},
        "to put: blk.4.attn_q.weight",
    ),
    "a rotation by context": ({"tensors": {"rope_factors_long.weight": (8,)}}, "rope_factors_long.*context"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_cut_is_refused_by_name(what, tmp_path):
    kind, complaint = REFUSED[what]
    source = tiny_llama(tmp_path / "tiny.gguf", **kind)
    with pytest.raises(ModelFileError, match=complaint):
        cut_model(source, 2, tmp_path / "parts")
    assert not (tmp_path / "parts").exists()


def test_mistakes_get_clear_errors(tmp_path, monkeypatch):
    source = tiny_llama(tmp_path / "tiny.gguf")
    for layers in (0, 4, -1, 99):
        with pytest.raises(ConfigurationError, match=f"1 to 3 of the 4 layers of tiny.gguf, not {layers}"):
            cut_model(source, layers, tmp_path)
    files = cut_model(source, 2, tmp_path)
    for file in files.values():
        with pytest.raises(ModelFileError, match="cut already"):
            cut_model(file, 1, tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigurationError, match="file cannot be written"):
        cut_model(source, 2, tmp_path / "file")
    with pytest.raises(ModelFileError, match="not a usable GGUF file"):
        cut_model(tmp_path / "file", 2, tmp_path)
    whole = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: whole._replace(free=1000))
    with pytest.raises(ConfigurationError, match=r"has room for 0 MB. Make room"):
        cut_model(source, 2, tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "gguf" else find_spec(name))
    with pytest.raises(ConfigurationError, match=r'"split": pip install "disco-llm\[split\]"'):
        cut_model(source, 2, tmp_path)


def test_a_disk_that_fills_up_leaves_no_files(tmp_path):
    resource = pytest.importorskip("resource")
    source = tiny_llama(tmp_path / "tiny.gguf")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(ConfigurationError, match="parts cannot be written"):
            cut_model(source, 2, tmp_path / "parts")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((tmp_path / "parts").iterdir()) == []


def test_two_cuts_at_once(tmp_path, monkeypatch):
    """Of the same layers: both have their files. Of others in one folder: the mixture is noticed."""
    source = tiny_llama(tmp_path / "tiny.gguf")
    with ThreadPoolExecutor(4) as threads:
        several = [threads.submit(cut_model, source, 2, tmp_path) for _ in range(4)]
    assert len({tuple(one.result().items()) for one in several}) == 1
    assert compare(source, several[0].result()).delta == 0.0
    assert len(list(tmp_path.iterdir())) == 4
    replace, others = Path.replace, []

    def in_between(self, target):
        replace(self, target)
        if not others:
            others.append(1)
            cut_model(source, 3, tmp_path)

    monkeypatch.setattr(Path, "replace", in_between)
    with pytest.raises(ConfigurationError, match="at the same time, and the files are mixed"):
        cut_model(source, 2, tmp_path)


def test_tokens_that_are_no_text_are_copied_as_they_are(tmp_path):
    source = tiny_llama(tmp_path / "tiny.gguf")
    data = source.read_bytes()
    assert data.count(b"w77") == 1
    source.write_bytes(data.replace(b"w77", b"\xff\xfe\xfd"))
    files = cut_model(source, 2, tmp_path)
    assert b"\xff\xfe\xfd" in files["device"].read_bytes()


def test_parts_that_crash_or_compute_something_else_are_refused(tmp_path, monkeypatch, capfd):
    """In a process of its own: this one lives on."""
    source = tiny_llama(tmp_path / "tiny.gguf")
    files = cut_model(source, 2, tmp_path)
    other = tiny_llama(tmp_path / "other.gguf", seed=8)

    def check(drafts):
        check_cut(other, drafts)

    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    with pytest.raises(ModelFileError, match=r"other numbers than the whole model.*removed"):
        cut_model(source, 2, tmp_path, check=check)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    crash = tmp_path / "crash.py"
    crash.write_text(
        "import os, sys\nprint('secret GGML_ASSERT(n > 0) failed', file=sys.stderr, flush=True)\nos.abort()\n"
    )
    monkeypatch.setattr(cut_check, "_MAIN", "crash")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        ModelFileError, match=r"crashed \(SIGABRT\) after GGML_ASSERT\(n > 0\) failed"
    ) as refused:
        check_cut(source, files)
    assert "secret" not in str(refused.value)
    assert cut_check.main([str(source), *(str(files[part]) for part in ("device", "cloud", "cloud"))]) == 3
    told = capfd.readouterr().out
    assert "is the part 'cloud' of a model" in told
    crash.write_text(f"import sys\nprint({told!r})\nsys.exit(3)\n")
    with pytest.raises(ModelFileError, match=r"llama.cpp refuses the parts of tiny.gguf, .*part 'cloud'"):
        check_cut(source, files)
    crash.write_text("import time\ntime.sleep(600)\n")
    with pytest.raises(ModelFileError, match=r"not computed within 0.3 s"):
        check_cut(source, files, within_s=0.3)
