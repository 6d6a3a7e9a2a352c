"""A folder of announcements of its own for each test, and a server that other programs may attach to."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Served, serving

from disco import AsyncDisco
from disco.endpoints.attached.announcement import VARIABLE

KEY = "callers-key-0123456789"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where servers announce themselves to the programs of this test."""
    where = tmp_path / "serve"
    monkeypatch.setenv(VARIABLE, str(where))
    return where


@pytest.fixture(scope="session")
def attachable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    """A server with the real model and a callers' key, and the folder in which it is announced."""
    where = tmp_path_factory.mktemp("attach") / "serve"
    with contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(VARIABLE, str(where))
            served = stack.enter_context(serving(model_here, attachable=True, key=KEY))
        assert list(where.glob("*.json"))
        yield served, where


def model_here(**more: Any) -> AsyncDisco:
    return AsyncDisco(local="smollm2-135m", policy="private", attach=False, **more)
