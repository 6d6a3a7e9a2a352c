"""Makes `leaving.py` importable, which is shared with tests/benchmarks/bench_cancel.py."""

from __future__ import annotations

import sys
from pathlib import Path

import moved_clock
import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return moved_clock.backend(request.param)
