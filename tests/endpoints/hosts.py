"""Every host of a local model, in one list: for the conformance suite, and for the table of what each can do.

A host is what runs the model: one that disco starts, or a server that the user has started. For Ollama, LM Studio and
vLLM there are fakes, written after their documentation and source, with a real llama-server behind them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from quirks.lmstudio import LMStudio
from quirks.ollama import Ollama
from quirks.server import RealModel, running
from quirks.vllm import VLLM

from disco import LocalServer
from disco.endpoints.contract import Endpoint
from tests.endpoints.conformance import Subject

__all__ = ["FAKES", "HOSTS", "Host"]


@dataclass(frozen=True)
class Host:
    """One host.

    Attributes:
        name: what the table calls it.
        fixture: the server or model of `tests/conftest.py` that it is, or that stands behind it.
        made: makes its endpoint of the fixture's value.
        is_fake: it is not the server itself.
    """

    name: str
    fixture: str
    made: Callable[[Any], AbstractAsyncContextManager[Endpoint]]
    is_fake: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def title(self) -> str:
        """The head of its column in the table."""
        return f"{self.name} (a fake)" if self.is_fake else self.name

    @property
    def subject(self) -> Subject:
        """What the suite knows of it. A llama-server notices between two batches that its client has left."""
        return Subject(prompt_s=10.0, long_tokens=300)


@asynccontextmanager
async def _itself(model: Any) -> AsyncIterator[Endpoint]:
    yield model


@asynccontextmanager
async def _user_server(server: Any) -> AsyncIterator[Endpoint]:
    endpoint = LocalServer(base_url=server.base_url, continuation="flags").endpoint()
    try:
        yield endpoint
    finally:
        await endpoint.aclose()


def _fake(kind: Callable[[RealModel], Any]) -> Callable[[Any], AbstractAsyncContextManager[Endpoint]]:
    @asynccontextmanager
    async def made(engine: Any) -> AsyncIterator[Endpoint]:
        with running(kind(RealModel(engine.base_url))) as server:
            async with _user_server(server) as endpoint:
                yield endpoint

    return made


FAKES = tuple(
    Host(name, "native_server", _fake(kind), is_fake=True)
    for name, kind in {"Ollama": Ollama, "LM Studio": LMStudio, "vLLM": VLLM}.items()
)
HOSTS = (
    Host("engine", "engine_host", _itself),
    Host("llama-server, started by disco", "server_host", _itself),
    Host("llama-server of yours", "native_server", _user_server),
    *FAKES,
)
