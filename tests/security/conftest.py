"""What the tests of this room share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def _no_environment() -> Iterator[None]:
    """Nobody's own key or server."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "DISCO_SERVER_KEY"):
            patch.delenv(name, raising=False)
        yield
