"""The servers that people have on their desk, each as it is run here: two real ones, two of quirks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from local_servers.desks import KINDS
from quirks.lmstudio import LMStudio
from quirks.ollama import Ollama
from quirks.server import QuirkServer, running
from quirks.writers import RealModel
from servers import LlamaServer


@dataclass(frozen=True)
class Desk:
    """One of them.

    Attributes:
        kind: which.
        base_url, model: where it is, and what it calls its model.
        quirks: the server of quirks behind it; None for a real one.
        gguf: the file of its model.
    """

    kind: str
    base_url: str
    model: str
    gguf: str
    quirks: QuirkServer | None = None

    @property
    def address(self) -> str:
        """For `local=`."""
        return f"{self.base_url}#{self.model}"


@pytest.fixture(params=KINDS)
def desk(request: pytest.FixtureRequest, native_server: LlamaServer) -> Iterator[Desk]:
    """Each of them in turn; all with real SmolLM2."""
    gguf = str(native_server.gguf)
    with contextlib.ExitStack() as stack:
        if request.param == "llama-server":
            yield Desk(request.param, native_server.base_url, native_server.model, gguf)
            return
        if request.param == "llama-cpp-python":
            server = request.getfixturevalue("llama_server")
            yield Desk(request.param, server.base_url, server.model, gguf)
            return
        writer = RealModel(native_server.base_url)
        made = Ollama(writer) if request.param == "ollama" else LMStudio(writer)
        quirks = stack.enter_context(running(made))
        yield Desk(request.param, quirks.base_url, made.models[0], gguf, quirks)
