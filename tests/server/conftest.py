"""Servers shared by the tests of this room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from serving import Served, serving

from disco import AsyncDisco


@pytest.fixture(scope="session")
def local() -> Iterator[Served]:
    """Only the real model on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OPENAI_API_KEY", raising=False)
        with serving(lambda **more: AsyncDisco(local="smollm2-135m", policy="private", **more)) as served:
            yield served
