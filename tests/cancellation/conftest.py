"""What the matrix is played on: one real model for all of it, and servers that say what a test gives them."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import moved_clock
import pytest

# `leaving.py` is shared with tests/benchmarks/bench_cancel.py.
sys.path.insert(0, str(Path(__file__).parent))

import leaving


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return moved_clock.backend(request.param)


@pytest.fixture(scope="session")
def device():
    made = leaving.device()
    anyio.run(made.warm_up)
    yield made
    anyio.run(made.aclose)
