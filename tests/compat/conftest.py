"""The sides that every test here runs against, and the room's own event loop."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from compat_cases import KEY, LACKS, Side, entered, got
from servers import LlamaServer, llama_cpp_server

from disco.dispatch import Preset
from disco.endpoints.continuation import Continuation
from disco.endpoints.llamacpp import LlamaCppEndpoint


@pytest.fixture
def anyio_backend() -> str:
    """Applications of the openai package run on asyncio; both loops are tried in `tests/client`."""
    return "asyncio"


@pytest.fixture(scope="session")
def device() -> Iterator[LlamaCppEndpoint]:
    """The real model on this machine."""
    made = LlamaCppEndpoint(model="smollm2-135m", name="device", context_tokens=2048, threads=1)
    yield made
    anyio.run(made.aclose)


# Every case on all sides with the asynchronous client; the synchronous one takes the same way there.
SIDES = [("async", "plain"), ("async", "server"), ("async", "device"), ("sync", "server")]
SLOW_SIDES = [("sync", "plain"), ("sync", "device")]


@pytest.fixture(
    params=[*SIDES, *(pytest.param(side, marks=pytest.mark.slow) for side in SLOW_SIDES)], ids="-".join
)
def side(request, llama_server, device) -> Side:
    kind, name = request.param
    settings = {"base_url": llama_server.base_url, "api_key": KEY}
    if name != "plain":
        settings |= {
            "local": device,
            "policy": Preset(dispatch={"policy": f"{name}_only"}, playback={"pace_tps": 5.0}),
            "continuation": Continuation(method="completions", template=str(llama_server.gguf)),
        }
    return Side(name, kind == "async", llama_server.model, settings, LACKS[name])


@pytest.fixture
async def client(side):
    async with entered(side.connect()) as made:
        yield made


@pytest.fixture
def ask(client, side) -> Callable[..., Awaitable[Any]]:
    """`create` with the usual question, and more."""

    def create(**more: Any) -> Awaitable[Any]:
        return got(client.chat.completions.create(**{**side.asked, **more}))

    return create


@pytest.fixture(scope="session")
def locked_server() -> Iterator[LlamaServer]:
    """The real server with a key."""
    with llama_cpp_server(api_key="right-key") as server:
        yield server
