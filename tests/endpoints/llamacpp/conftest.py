"""What the tests of llama.cpp as an endpoint share."""

import pytest


@pytest.fixture
def anyio_backend():
    """A real model takes its time: where the loop matters, a test says that it runs on both."""
    return "asyncio"
