"""The servers that people have on their desk, each as it is run here: two real ones, two of quirks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from local_servers.desks import KINDS, Desk
from quirks.lmstudio import LMStudio
from quirks.ollama import Ollama
from quirks.server import RealModel, running
from servers import LlamaServer


@pytest.fixture(params=KINDS)
def desk(request: pytest.FixtureRequest, native_server: LlamaServer) -> Iterator[Desk]:
    """Each of them in turn; all with real SmolLM2."""
    kind, gguf = request.param, str(native_server.gguf)
    if kind.startswith("llama-"):
        server = native_server if kind == "llama-server" else request.getfixturevalue("llama_server")
        yield Desk(kind, server.base_url, server.model, gguf)
        return
    writer = RealModel(native_server.base_url)
    with running(Ollama(writer) if kind == "ollama" else LMStudio(writer)) as quirks:
        yield Desk(kind, quirks.base_url, quirks.models[0], gguf)
