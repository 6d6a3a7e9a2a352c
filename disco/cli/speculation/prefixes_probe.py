"""Whether a server of another make could verify drafts by prefixes, and what that would cost.

The rung: one request with a prompt for each drafted token, each one token longer, and one token of an answer for each.
The target's own sampler chooses, so the answer is the target's own; but each prompt is a request to the server's
scheduler, with a cache of its own. llama.cpp's llama-server takes and returns token ids at `/completion`. Its
`/v1/completions` takes ids and returns text, from which ids cannot be told.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import openai

__all__ = ["Prefixes", "llama_server_root", "probe_prefixes"]

_WINDOW = 4


@dataclass(frozen=True, slots=True)
class Prefixes:
    """What the probe has found.

    Attributes:
        tokens: that were verified.
        differing: of these, tokens that differ from those of a plain request.
        plain_s: per token of a plain request, s.
        token_s: per token where every drafted token was right, which is the best case, s.
        rows: prompt tokens that the server computed for a round.
        window: drafted tokens of a round.
    """

    tokens: int
    differing: int
    plain_s: float
    token_s: float
    rows: float
    window: int = _WINDOW

    @property
    def pays(self) -> bool:
        """Whether the best case is exact and faster than a plain request."""
        return self.differing == 0 and self.token_s < self.plain_s

    def in_words(self) -> str:
        """Return it as a sentence."""
        exact = "equal those" if not self.differing else f"differ in {self.differing} tokens from those"
        return (
            f"prefixes: {self.tokens} tokens {exact} of a plain request. With every drafted token right, a token takes "
            f"{1000 * self.token_s:.1f} ms (window {self.window}, {self.rows:.1f} rows a round), and "
            f"{1000 * self.plain_s:.1f} ms without drafts."
        )


def llama_server_root(base_url: str) -> str:
    """Return the address below which llama-server has its own routes: that of the API without `/v1`."""
    return base_url.rstrip("/").removesuffix("/v1")


async def probe_prefixes(client: openai.AsyncOpenAI, prompt: str, tokens: int) -> Prefixes | None:
    """Verify an answer of the server by prefixes; None where it does not take or return token ids.

    Args:
        client: of the server.
        prompt: a text.
        tokens: of the answer.

    Raises:
        openai.OpenAIError: the server cannot be reached, or refuses the key.
    """
    root = llama_server_root(str(client.base_url))

    async def post(path: str, body: dict[str, Any]) -> Any:
        return await client.post(f"{root}{path}", body=body, cast_to=object, options={"max_retries": 0})

    # Without a chat template a model may end at once, so it is kept from that.
    asked = {"temperature": 0, "return_tokens": True, "cache_prompt": True, "ignore_eos": True}
    try:
        content = await post("/tokenize", {"content": prompt, "add_special": True})
        ids: list[int] = content["tokens"]
        await post("/completion", {**asked, "prompt": ids, "n_predict": 1})  # reads the prompt
        began_at = time.perf_counter()
        plain = await post("/completion", {**asked, "prompt": ids, "n_predict": tokens})
        plain_s = time.perf_counter() - began_at
        known: list[int] = plain["tokens"]
        at, rounds, rows, differing = 0, 0, 0, 0
        began_at = time.perf_counter()
        while at + _WINDOW < len(known):
            prompts = [ids + known[: at + more] for more in range(_WINDOW + 1)]
            replies = await post("/completion", {**asked, "prompt": prompts, "n_predict": 1})
            chosen = [reply["tokens"][0] for reply in sorted(replies, key=_index)]
            differing += _differing(chosen, known[at : at + _WINDOW + 1])
            rows += sum(reply["timings"]["prompt_n"] for reply in replies)
            rounds += 1
            at += _WINDOW + 1
        took_s = time.perf_counter() - began_at
    except (openai.NotFoundError, openai.BadRequestError, openai.InternalServerError):
        return None
    except (LookupError, TypeError, AttributeError):  # some servers answer every path with something
        return None
    if not at:
        return None
    return Prefixes(at, differing, plain_s / len(known), took_s / at, rows / rounds)


def _index(reply: dict[str, Any]) -> int:
    return int(reply["index"])


def _differing(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(mine != yours for mine, yours in zip(one, other, strict=True))
