"""`disco chat --record`: what happened is kept, and an impossible file is said before anything is loaded."""

from __future__ import annotations

import json

import pytest

from disco.cli import main

pytestmark = pytest.mark.real

QUESTION = "What is a xylophone-4711?"


def test_a_conversation_is_recorded_without_its_words(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    said = iter([QUESTION, ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(said))
    path = tmp_path / "routes.jsonl"
    assert main(["chat", "--policy", "private", "--record", str(path)]) == 0
    assert capsys.readouterr().out
    (record,) = path.read_text(encoding="utf-8").splitlines()
    assert json.loads(record)["winner"] == "device"
    assert "xylophone" not in record


def test_a_file_that_cannot_be_written_ends_it_at_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("builtins.input", lambda prompt: pytest.fail("it should not have asked"))
    assert main(["chat", "--record", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err
