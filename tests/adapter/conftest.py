"""Lets the tests of this folder make tiny models, and read texts with them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "endpoints" / "llamacpp" / "layers"))


@pytest.fixture
def words(monkeypatch):
    """Read "w7" as the tiny model's word of that number: its tokenizer has no bytes, and llama.cpp would abort."""
    from disco.adapter.teacher import Teacher

    monkeypatch.setattr(
        Teacher, "tokenize", lambda self, text, special: [3 + int(word[1:]) for word in text.split()]
    )
