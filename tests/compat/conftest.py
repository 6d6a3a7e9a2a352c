"""The room's own event loop."""

import pytest


@pytest.fixture
def anyio_backend():
    return "asyncio"  # as applications of the openai package; both loops are tried in `tests/client`
