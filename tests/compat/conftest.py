"""The room's own event loop, and where its helpers are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def anyio_backend() -> str:
    """Applications of the openai package run on asyncio; both loops are tried in `tests/client`."""
    return "asyncio"
