"""`disco split cut` and `disco split audit`: files that are proved, and what the cloud reads of texts."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from disco.cli import main
from disco.cli.split.split_audit import TextAudit, shares
from disco.endpoints.llamacpp.layers import cut_check
from disco.endpoints.llamacpp.layers.cut import cut_model
from disco.endpoints.llamacpp.layers.layer_files import cut_files, read_layer_file
from tests.endpoints.llamacpp.layers.tiny_model import tiny_llama

TEXT = " ".join(f"w{number}" for number in (3, 9, 27, 81, 40, 11, 5, 5, 62, 17))


@pytest.fixture
def tiny(tmp_path):
    return tiny_llama(tmp_path / "tiny.gguf")


@pytest.mark.real
def test_cut_writes_proves_and_says_what_comes_next(tiny, tmp_path, capsys):
    """The proof is a real one, in a process of its own; a part that was there before is replaced."""
    folder = tmp_path / "parts"
    folder.mkdir()
    files = cut_files(tiny, folder)
    files["cloud"].write_text("older")
    assert main(["split", "cut", str(tiny), "--layers", "3", "--out", str(folder)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "The device keeps 3 of 4 layers, the embedding and the head:" in printed
    assert "The cloud gets the other layers, and neither vocabulary nor head." in printed
    assert "Checked with 24 tokens: the same logits, bit for bit, as the whole model." in printed
    assert "disco serve --layers tiny.cloud.gguf" in printed
    assert f"disco split audit {files['device']}" in printed
    assert all(str(file) in printed for file in files.values())
    assert sorted(folder.iterdir()) == sorted(files.values())


@pytest.mark.real
def test_parts_that_fail_the_proof_are_not_written(tiny, tmp_path, monkeypatch, capsys):
    (tmp_path / "crash.py").write_text("import os\nos.abort()\n")
    monkeypatch.setattr(cut_check, "_MAIN", "crash")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["split", "cut", str(tiny), "--out", str(tmp_path / "parts")]) == 2
    assert "llama.cpp crashed (SIGABRT) with the parts of tiny.gguf" in capsys.readouterr().err
    assert list((tmp_path / "parts").iterdir()) == []


@pytest.mark.real
def test_a_trained_adapter_is_not_thrown_away(tiny, tmp_path, monkeypatch, capsys):
    import numpy as np

    monkeypatch.setattr("disco.cli.split.split_cut.check_cut", lambda *_: cut_check.CutCheck(24, 0.0, 0))
    cut_model(tiny, 2, tmp_path, adapter={"attn_norm.weight": np.ones(64, np.float32)})
    again = ["split", "cut", str(tiny), "--out", str(tmp_path)]
    assert main(again) == 2
    assert "holds an adapter that was trained, and would lose it." in capsys.readouterr().err
    assert main([*again, "--replace"]) == 0
    assert main(again) == 0


@pytest.mark.real
def test_an_adapter_that_is_named_or_installed_goes_into_the_devices_file(
    tiny, tmp_path, monkeypatch, capsys
):
    from disco.adapter.model_facts import read_facts
    from disco.endpoints.llamacpp.layers import adapter_file

    monkeypatch.setattr("disco.cli.split.split_cut.check_cut", lambda *_: cut_check.CutCheck(24, 0.0, 0))
    device = cut_files(tiny, tmp_path / "parts")["device"]
    command = ["split", "cut", str(tiny), "--out", str(tmp_path / "parts")]
    known = adapter_file.AdapterFacts(adapter_file.weights_name(tiny), 2, "full", 100, 0.25, 0.3)
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "tiny.m2.npz"
    adapter_file.write_adapter(file, read_facts(tiny, 2).layer, known)
    assert main([*command, "--adapter", "none"]) == 0
    assert "Without an adapter nothing is drafted" in capsys.readouterr().out
    assert not read_layer_file(device, "device").has_adapter
    assert main([*command, "--adapter", str(file)]) == 0
    assert "drafts the model's own token at 25% of the positions" in capsys.readouterr().out
    assert read_layer_file(device, "device").has_adapter
    assert main([*command, "--adapter", "none"]) == 2  # it would be lost
    assert main([*command, "--layers", "1", "--adapter", str(file)]) == 2
    assert "trained behind 2 layers" in capsys.readouterr().err
    (tmp_path / "data" / "package_with_tiny.py").touch()
    known = {(known.weights, 2): ("package_with_tiny", file.name, "pip install package-with-tiny")}
    monkeypatch.setattr(adapter_file, "KNOWN_ADAPTERS", known)
    monkeypatch.syspath_prepend(tmp_path / "data")
    assert main(command) == 0  # the same one, now of a package
    assert read_layer_file(device, "device").has_adapter
    for key, (_, *more) in known.items():
        monkeypatch.setitem(known, key, ("package_that_is_missing", *more))
    assert main([*command, "--replace"]) == 0
    assert "pip install package-with-tiny\nThen cut it again." in capsys.readouterr().out
    assert not read_layer_file(device, "device").has_adapter


@pytest.mark.real
def test_mistakes_are_said_in_one_line(tiny, tmp_path, capsys, monkeypatch):
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\xff")
    found = cut_files(tiny, tmp_path)
    for arguments, complaint in (
        (["cut", "no-such-model"], "Unknown model name 'no-such-model'"),
        (["cut", str(tmp_path / "no.gguf")], "There is no model file"),
        (["cut", str(tiny), "--layers", "4", "--out", str(tmp_path)], "can keep 1 to 3 of the 4 layers"),
        (["audit", str(tiny), "--layers", "0"], "can keep 1 to 3 of the 4 layers"),
        (["audit", str(tiny), "--text", str(tmp_path / "empty.txt")], "empty.txt holds no text"),
        (
            ["audit", str(tiny), "--text", str(tmp_path / "binary.txt")],
            "binary.txt is text in UTF-16; save it as UTF-8",
        ),
        (["audit", str(tiny), "--text", str(tmp_path / "none.txt")], "none.txt; check the path"),
        (["audit", str(tiny), "--threads", "0"], "--threads must be at least 1, not 0"),
        (["audit", str(found["device"])], "There is no model file"),
    ):
        assert main(["split", *arguments]) == 2
        said = capsys.readouterr().err
        assert complaint in said
        assert said.count("\n") == 1
    cut_model(tiny, 2, tmp_path)
    assert main(["split", "audit", str(found["device"]), "--layers", "3"]) == 2
    assert "tiny.device.gguf has 2 layers, not 3" in capsys.readouterr().err
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *a: None if name == "gguf" else find_spec(name, *a)
    )
    for command in ("cut", "audit"):
        assert main(["split", command, str(tiny)]) == 2
        assert 'pip install "disco-llm[split]"' in capsys.readouterr().err


@pytest.mark.real
def test_audit_reads_prompts_and_answers_and_tells_no_text(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("disco.cli.split.split_audit.check_cut", lambda *_: None)  # has its own tests
    text = tmp_path / "mine.txt"
    text.write_text(TEXT)
    common = ["--text", str(text), "--threads", "1"]
    assert main(["split", "audit", str(tiny), "--layers", "1", "--json", *common]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert (told["layers"], told["total_layers"]) == (1, 4)
    (of_text,) = told["texts"]
    assert of_text["tokens"] == of_text["recovered"] >= 10
    assert (told["recovered"], told["answer_read"], told["drawn_recovered"]) == (1.0, 1.0, 1.0)
    assert of_text["answer"] > 0
    assert of_text["drawn"] > 0
    assert "recovers 100.0% of the prompts' tokens" in err
    assert not re.search(r"(?<![a-z])w\d", out + err)  # `gw1` is a worker of the tests


@pytest.mark.real
def test_audit_of_files_that_were_cut(tiny, tmp_path, capsys):
    """Without the cloud's files of the same cut it audits prompts only. --show prints what was recovered."""
    files = cut_model(tiny, 2, tmp_path)
    text = tmp_path / "mine.txt"
    text.write_text(TEXT)
    common = ["split", "audit", str(files["device"]), "--text", str(text), "--show"]
    cut_model(tiny, 3, tmp_path / "other")
    Path(tmp_path / "other" / "tiny.cloud.gguf").replace(files["cloud"])
    assert main(common) == 0
    printed = capsys.readouterr().out
    assert "There is no tiny.cloud.gguf of the same cut here, so answers are not audited." in printed
    assert "greedy" not in printed
    assert "Recovered of text 1:" in printed
    assert "w27" in printed


def test_shares_are_of_all_tokens():
    one = TextAudit(
        tokens=3,
        recovered=3,
        first=1,
        tried=9,
        s=1.0,
        answer=0,
        answer_read=0,
        drawn=0,
        drawn_recovered=0,
        text="a",
    )
    two = TextAudit(
        tokens=1,
        recovered=0,
        first=0,
        tried=9,
        s=1.0,
        answer=4,
        answer_read=3,
        drawn=0,
        drawn_recovered=0,
        text="b",
    )
    assert shares([one, two]) == {
        "recovered": 0.75,
        "first": 0.25,
        "answer_read": 0.75,
        "drawn_recovered": None,
    }


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("layers", ["1", "2", "3"])
def test_the_shipped_prompts_are_read_from_the_real_models_states(layers, capsys):
    assert main(["split", "audit", "smollm2-135m", "--layers", layers, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["recovered"] >= 0.95
    assert told["drawn_recovered"] >= 0.95
    assert told["answer_read"] == 1.0
    assert len(told["texts"]) == 6
