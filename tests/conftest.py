"""Fixtures shared by all rooms."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Reading the world's certificates costs every client 60 ms; servers here speak plain HTTP, or bring a certificate.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)

from quick_model import use_quick_model
from servers import LlamaServer, llama_cpp_server, native_llama_server


def pytest_configure(config: pytest.Config) -> None:
    use_quick_model(config.cache.mkdir("models"))


with contextlib.suppress(ImportError):  # the frameworks' environment has no hypothesis
    from hypothesis import HealthCheck, settings

    # Its clock of 0.2 s an example, and of 1 s for drawing the first ones, tell of the machine, not of the code.
    settings.register_profile(
        "steady", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
    )
    settings.load_profile("steady")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Async tests (marked `anyio`) run on both event loops."""
    return request.param


@pytest.fixture(scope="session")
def llama_server() -> Iterator[LlamaServer]:
    """The real llama-cpp-python server with SmolLM2-135M, started once per test run."""
    with llama_cpp_server() as server:
        yield server


@pytest.fixture(scope="session")
def native_server() -> Iterator[LlamaServer]:
    """llama.cpp's own llama-server with SmolLM2-135M, two answers at once, started once per test run."""
    with native_llama_server(slots=2) as server:
        yield server
