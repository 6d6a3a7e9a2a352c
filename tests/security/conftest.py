"""What the tests of this room share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from recorder import Recorder, recording


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's own key or server."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "DISCO_SERVER_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """A server that keeps every byte it is sent and never answers."""
    with recording() as server:
        yield server
