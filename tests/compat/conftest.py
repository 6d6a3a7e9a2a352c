"""The sides that every test here runs against, and the room's own event loop."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from compat_cases import KEY, LACKS, Side
from servers import LlamaServer, llama_cpp_server

from disco.dispatch import Preset
from disco.endpoints.continuation import Continuation
from disco.endpoints.llamacpp import LlamaCppEndpoint


@pytest.fixture
def anyio_backend() -> str:
    """Applications of the openai package run on asyncio; both loops are tried in `tests/client`."""
    return "asyncio"


@pytest.fixture(scope="module")
def device() -> Iterator[LlamaCppEndpoint]:
    """The real model on this machine."""
    made = LlamaCppEndpoint(model="smollm2-135m", name="device", context_tokens=2048, threads=1)
    yield made
    anyio.run(made.aclose)


@pytest.fixture
def make_side(llama_server, device) -> Callable[[str], Side]:
    """By name: who answers."""

    def make(name: str) -> Side:
        settings = {"base_url": llama_server.base_url, "api_key": KEY}
        if name != "plain":
            settings |= {
                "local": device,
                "policy": Preset(dispatch={"policy": f"{name}_only"}, playback={"pace_tps": 5.0}),
                "continuation": Continuation(method="completions", template=str(llama_server.gguf)),
            }
        return Side(name, llama_server.model, settings, LACKS[name])

    return make


@pytest.fixture(params=["plain", "server", "device"])
def side(request, make_side) -> Side:
    return make_side(request.param)


@pytest.fixture(scope="session")
def locked_server() -> Iterator[LlamaServer]:
    """The real server with a key."""
    with llama_cpp_server(api_key="right-key") as server:
        yield server
