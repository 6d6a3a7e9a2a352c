"""Fixtures shared by all rooms."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Reading the world's certificates costs every client 60 ms; servers here speak plain HTTP, or bring a certificate.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)

from quick_model import use_quick_model
from servers import LlamaServer, llama_cpp_server, native_llama_server


def pytest_configure(config: pytest.Config) -> None:
    if "not real" in config.option.markexpr:
        sys.addaudithook(_refuse_what_is_real)
    else:
        use_quick_model(config.cache.mkdir("models"))


def _refuse_what_is_real(event: str, arguments: tuple[Any, ...]) -> None:
    """In `make test-fast` a test that connects, listens or loads llama.cpp fails: it lacks the mark `real`."""
    if event in ("socket.connect", "socket.bind") and not isinstance(arguments[1], str | bytes):
        raise RuntimeError("this test uses a socket: mark its module with `pytestmark = pytest.mark.real`")
    if event == "import" and arguments[0] == "llama_cpp":
        raise RuntimeError("this test loads llama.cpp: mark its module with `pytestmark = pytest.mark.real`")


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
