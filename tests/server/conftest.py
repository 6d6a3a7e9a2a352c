"""Servers shared by the tests of this room."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from serving import Served, serving

from disco import AsyncDisco


@pytest.fixture(scope="session")
def local() -> Iterator[Served]:
    """Only the real model on this machine."""
    with serving(lambda **more: AsyncDisco(local="smollm2-135m", policy="private", **more)) as served:
        yield served
