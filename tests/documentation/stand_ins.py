"""Servers in the place of those that pages name: the addresses of the pages, answered here by a real model.

Ollama and LM Studio are the servers of quirks. For vLLM and OpenRouter llama-server stands in, which takes all that the
pages send. For Azure its paths are here.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from quirks.lmstudio import LMStudio
from quirks.ollama import Ollama
from quirks.server import DONE, QuirkServer, RealModel, chatml, chunk, options, running, usage

__all__ = ["STAND_INS", "stand_in"]


class Azure(QuirkServer):
    """Knows one deployment, and takes its key in a header of its own."""

    async def answer(self, path: str, body: dict[str, Any]) -> Any:
        if not re.fullmatch(r"/openai/deployments/my-deployment/chat/completions\?api-version=[\w-]+", path):
            return 404, {"error": {"code": "DeploymentNotFound", "message": "The deployment does not exist."}}
        return self._stream(body)

    async def _stream(self, body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        made = {"id": "chatcmpl-1", "model": "gpt-4o-mini"}
        async with contextlib.aclosing(
            self.writer.write(
                chatml(body["messages"], continues=False), options(body, "max_tokens", "temperature")
            )
        ) as pieces:
            async for piece in pieces:
                yield chunk(made, {"content": piece.text}, piece.finish)
        yield usage(made, body, piece)
        yield DONE


# By its name in `<!-- test: needs the server NAME -->`: the address on the page, and what answers there.
STAND_INS: dict[str, tuple[str, Any]] = {
    "ollama": ("http://localhost:11434/v1", lambda writer: Ollama(writer, ("qwen3:4b",))),
    "lm-studio": ("http://localhost:1234/v1", lambda writer: LMStudio(writer, ("qwen3-4b",))),
    "azure": ("https://my-resource.openai.azure.com", lambda writer: Azure(writer, ("gpt-4o-mini",))),
    "llama-server": ("http://localhost:8080/v1", None),
    "vllm": ("http://localhost:8000/v1", None),
    "openrouter": ("https://openrouter.ai/api/v1", None),
}


@contextlib.contextmanager
def stand_in(name: str, native_url: str) -> Iterator[tuple[str, str]]:
    """The address on the page and the one to use in its place; `native_url` is a running llama-server's."""
    documented, made = STAND_INS[name]
    if made is None:
        yield documented, native_url
        return
    with running(made(RealModel(native_url))) as server:
        yield (
            documented,
            server.base_url if documented.endswith("/v1") else server.base_url.removesuffix("/v1"),
        )
