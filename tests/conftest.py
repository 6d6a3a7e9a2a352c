"""Fixtures shared by all rooms."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

if TYPE_CHECKING:
    from disco.endpoints.host import HostEndpoint
    from disco.endpoints.llamacpp import EngineEndpoint

# Reading the world's certificates costs every client 60 ms.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)
# No test reads or changes the user's own state file; a test of the state file names one.
os.environ["DISCO_STATE"] = "off"
# Nor does the battery or the load of the machine that runs the tests change a plan; a test of that gives readings.
os.environ["DISCO_POWER"] = "off"
# Nor attaches to a `disco serve` of the user's, or of another test; a test that attaches names a folder.
os.environ["DISCO_ATTACH"] = "off"

# Its checks are asserts of tests, though they lie in the package; said before anything imports it.
pytest.register_assert_rewrite("disco.testing.answering", "disco.testing.asking", "disco.testing.stopping")

from quick_model import use_quick_model  # noqa: E402
from servers import LlamaServer, model_server, native_llama_server  # noqa: E402

with contextlib.suppress(ImportError):  # the frameworks' environment has no hypothesis
    from hypothesis import HealthCheck, settings

    # Its clock of 0.2 s an example, and of 1 s for drawing the first ones, tell of the machine, not of the code.
    settings.register_profile(
        "steady",
        max_examples=30,  # each run draws others
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
    settings.load_profile("steady")
    # For `make test-fast`: tests that do not say how many examples they draw draw fewer.
    settings.register_profile("fast", settings.get_profile("steady"), max_examples=25)


def pytest_configure(config: pytest.Config) -> None:
    if "not real" in config.option.markexpr:
        sys.addaudithook(_refuse_what_is_real)
        settings.load_profile("fast")
    else:
        use_quick_model(config.cache.mkdir("models"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What was imported and collected, a million objects, stays: looking through it again takes 0.3 s each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


_LOAD_A_MODEL = ("host.engine_main", "llama_server_child.py", "host/llama_server_main.py")


def _refuse_what_is_real(event: str, arguments: tuple[Any, ...]) -> None:
    """In `make test-fast`, fail a test that connects, listens or loads a model."""
    connects = event in ("socket.connect", "socket.bind") and not isinstance(arguments[1], str | bytes)
    loads = event == "ctypes.dlopen" and "llama" in str(arguments[0])
    starts = event == "subprocess.Popen" and any(str(a).endswith(_LOAD_A_MODEL) for a in arguments[1])
    if connects or loads or starts:
        raise RuntimeError(f"{event}: mark this test, or its module, with `pytest.mark.real`")


OF_THE_USER = (
    *("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"),
    *("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_AD_TOKEN", "AZURE_OPENAI_ENDPOINT", "OPENAI_API_VERSION"),
    *("OPENAI_CUSTOM_HEADERS", "OPENAI_WEBHOOK_SECRET", "DISCO_SERVER_KEY"),
)


@pytest.fixture(scope="session", autouse=True)
def _no_environment() -> Iterator[None]:
    """No test uses a key or a server of whoever runs it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in OF_THE_USER:
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Async tests (marked `anyio`) run on both event loops."""
    return request.param


@pytest.fixture(scope="session")
def llama_server() -> Iterator[LlamaServer]:
    """llama.cpp's own llama-server with SmolLM2-135M, one answer at a time, started once per test run."""
    with model_server() as server:
        yield server


@pytest.fixture(scope="session")
def native_server() -> Iterator[LlamaServer]:
    """llama.cpp's own llama-server with SmolLM2-135M, two answers at once, started once per test run."""
    with native_llama_server(slots=2) as server:
        yield server


@contextlib.contextmanager
def _loaded(kind: type[Any], **options: Any) -> Iterator[Any]:
    endpoint = kind(name="device", context_tokens=2048, threads=1, **options)
    anyio.run(endpoint.warm_up)
    try:
        yield endpoint
    finally:
        anyio.run(endpoint.aclose)


@pytest.fixture(scope="session")
def thread_model() -> Iterator[EngineEndpoint]:
    """SmolLM2-135M in this process, as in a host's, one answer at a time, loaded once per worker. No test closes it."""
    from disco.endpoints.llamacpp import EngineEndpoint  # the frameworks' environment has no llama.cpp

    with _loaded(EngineEndpoint, slots=1) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def slots_model() -> Iterator[EngineEndpoint]:
    """The same with as many slots as usual."""
    from disco.endpoints.llamacpp import EngineEndpoint  # as above

    with _loaded(EngineEndpoint, slots=4) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def _engine_host() -> Iterator[HostEndpoint]:
    from disco.endpoints.host import HostEndpoint

    with _loaded(HostEndpoint, runtime="engine", slots=1) as endpoint:
        yield endpoint


@pytest.fixture
def engine_host(_engine_host: HostEndpoint) -> HostEndpoint:
    """The same in a host, started once per worker. Its process may be killed: it comes back."""

    async def come_back() -> None:
        with anyio.fail_after(60):
            while not _engine_host.capabilities().ready:  # noqa: ASYNC110 - another thread brings it back
                await anyio.sleep(0.01)

    anyio.run(come_back)
    return _engine_host


@pytest.fixture(scope="session")
def server_host() -> Iterator[HostEndpoint]:
    """SmolLM2-135M in a host that is llama-server, started once per worker. No test closes it; it may be killed.

    Each test may use another event loop: the endpoint makes its connections anew for each request.
    """
    from disco.endpoints.host import HostEndpoint

    with _loaded(HostEndpoint, runtime="llama-server", slots=1) as endpoint:
        yield endpoint
