"""Who writes behind a server of quirks: real SmolLM2 in a llama-server, or a text that is known beforehand.

Both are given a prompt that was rendered already, so that what a server does with a half-written answer is decided
where it really is decided: in the rendering.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import httpx2

from disco.endpoints.simulation.simulated_text import tokenise

__all__ = ["KnownText", "RealModel", "Writer", "Written"]


@dataclass(frozen=True, slots=True)
class Written:
    """A piece of the answer; the last one says why it ended."""

    text: str
    tokens: int = 1
    finish: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Writer(Protocol):
    """Continues a rendered prompt."""

    async def count(self, text: str) -> int:
        """How many tokens it is."""
        ...

    def write(self, prompt: str, options: Mapping[str, Any]) -> AsyncGenerator[Written, None]:
        """Continue `prompt`; `options` as in llama-server's `/completion`."""
        ...


@dataclass
class RealModel:
    """The model of a running llama-server.

    Attributes:
        base_url: of its OpenAI API.
    """

    base_url: str

    @property
    def _root(self) -> str:
        return self.base_url.removesuffix("/v1")

    async def count(self, text: str) -> int:
        async with httpx2.AsyncClient(trust_env=False) as http:
            asked = {"content": text, "parse_special": True}
            return len((await http.post(f"{self._root}/tokenize", json=asked)).json()["tokens"])

    async def write(self, prompt: str, options: Mapping[str, Any]) -> AsyncGenerator[Written, None]:
        body = {"prompt": prompt, "stream": True, "return_tokens": True, **options}
        async with (
            httpx2.AsyncClient(trust_env=False, timeout=60) as http,
            http.stream("POST", f"{self._root}/completion", json=body) as response,
        ):
            if response.status_code != 200:
                raise RuntimeError("the runner has refused the prompt")
            written = 0
            async for line in response.aiter_lines():
                if not line.startswith("data: "):
                    continue
                event = json.loads(line[6:])
                written += len(event["tokens"])
                if event["stop"]:
                    finish = "length" if event["stop_type"] == "limit" else "stop"
                    yield Written(event["content"], 0, finish, event["tokens_evaluated"], written)
                elif event["content"]:
                    yield Written(event["content"], len(event["tokens"]))


@dataclass
class KnownText:
    """Writes `answer`, and continues any beginning of it; a count goes on, so that a probe finds out what it wants.

    Attributes:
        answer: to everything.
        fail_at: after so many tokens it stops with an exception.
        token_s: seconds before each token.
    """

    answer: str
    fail_at: int | None = None
    token_s: float = 0.0

    async def count(self, text: str) -> int:
        return len(tokenise(text))

    async def write(self, prompt: str, options: Mapping[str, Any]) -> AsyncGenerator[Written, None]:
        begun = prompt.rpartition("<|im_start|>assistant\n")[2]
        known = self.answer if self.answer.startswith(begun) else f"{begun}, 12, 13, 14, 15, 16, 17, 18"
        pieces: Sequence[str] = tokenise(known[len(begun) :])
        limit = options.get("n_predict")
        count = len(pieces) if limit is None or limit < 0 else min(limit, len(pieces))
        for number, piece in enumerate(pieces[:count]):
            if self.token_s:
                await asyncio.sleep(self.token_s)
            if number == self.fail_at:
                raise RuntimeError("the runner has stopped")
            yield Written(piece)
        finish = "stop" if count == len(pieces) else "length"
        yield Written("", 0, finish, await self.count(prompt), count)
