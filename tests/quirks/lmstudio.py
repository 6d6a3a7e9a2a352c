"""LM Studio's API as its documentation (lmstudio-ai/docs, 2026) and its users' reports have it.

Its server is closed source. What a report says is marked with the number of the issue: "bug-tracker" is
lmstudio-ai/lmstudio-bug-tracker, "lms" lmstudio-ai/lms. Only what disco asks of it is here.
"""

from __future__ import annotations

import contextlib
import random
import string
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from quirks.server import DONE, Document, Events, QuirkServer, chunk, event, usage
from quirks.writers import Writer, Written

__all__ = ["LMStudio"]

EMBEDDER = "text-embedding-nomic-embed-text-v1.5"
_ALPHABET = string.ascii_lowercase + string.digits


class LMStudio(QuirkServer):
    """The server.

    Args:
        writer: the model.
        models: those that are downloaded. An embedding model is always listed beside them (lms issue 416).
        loaded: of these, those that are in memory; the others are loaded at their first request ("Just in Time Model
            Loading", on by default: docs, ttl-and-auto-evict).
        prefix: what becomes of a trailing assistant message: "continues"; "echoes" (it comes first in the answer,
            bug-tracker 2041); "restarts" (templates that close every turn).
        context_tokens: of a loaded model; a prompt that is longer ends in an error event of a stream with status 200
            (bug-tracker 2322).
    """

    def __init__(
        self,
        writer: Writer,
        *,
        models: Sequence[str] = ("smollm2-135m-instruct",),
        loaded: Sequence[str] | None = None,
        prefix: Literal["continues", "echoes", "restarts"] = "continues",
        context_tokens: int = 2048,
    ) -> None:
        super().__init__()
        self.writer = writer
        self.models = tuple(models)
        self.loaded = list(self.models if loaded is None else loaded)
        self.prefix = prefix
        self.context_tokens = context_tokens

    async def answer(self, method: str, path: str, body: dict[str, Any]) -> Document | Events:
        if path == "/v1/models":  # docs, openai-compat/models: all that are downloaded
            listed = [
                {"id": m, "object": "model", "owned_by": "organization_owner"}
                for m in (*self.models, EMBEDDER)
            ]
            return 200, {"data": listed, "object": "list"}
        if path == "/api/v0/models":  # docs, rest/endpoints
            return 200, {"object": "list", "data": [self._state(model) for model in (*self.models, EMBEDDER)]}
        if path != "/v1/chat/completions":
            # bug-tracker 618 and 1323: any path there is not gives status 200.
            return 200, {"error": f"Unexpected endpoint or method. ({method} {path})"}
        model = str(body.get("model"))
        if model not in self.models:  # gpt-researcher issue 1556 quotes it
            known = ", ".join(self.models)
            message = f'Invalid model identifier "{model}". Please specify a valid downloaded model (e.g., {known}).'
            error = {"type": "invalid_request_error", "param": "model", "code": "model_not_found"}
            return 400, {"error": {"message": message, **error}}
        if model not in self.loaded:
            self.loaded.append(model)
        return self._stream(model, body)

    def _state(self, model: str) -> dict[str, Any]:
        known: dict[str, Any] = {
            "id": model,
            "object": "model",
            "type": "embeddings" if model == EMBEDDER else "llm",
            "arch": "llama",
            "state": "loaded" if model in self.loaded else "not-loaded",
            "max_context_length": 8192,
        }
        if model in self.loaded:
            known["loaded_context_length"] = self.context_tokens
        return known

    def _rendered(self, messages: list[dict[str, Any]]) -> str:
        text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
        if self.prefix != "restarts" and messages[-1]["role"] == "assistant":
            return text.removesuffix("<|im_end|>\n")
        return f"{text}<|im_start|>assistant\n"

    async def _stream(self, model: str, body: dict[str, Any]) -> Events:
        made = {
            "id": f"chatcmpl-{''.join(random.choices(_ALPHABET, k=21))}",
            "model": model,
            "system_fingerprint": model,
        }

        def text(content: str) -> bytes:  # every delta has a role (bug-tracker 378 shows some)
            return chunk(made, {"role": "assistant", "content": content}, logprobs=None)

        prompt = self._rendered(body["messages"])
        if await self.writer.count(prompt) > self.context_tokens:
            yield _error(
                "Trying to keep the first tokens when context the overflows. However, the model is loaded with "
                f"context length of only {self.context_tokens} tokens, which is not enough."
            )
            return
        begun = body["messages"][-1]
        if self.prefix == "echoes" and begun["role"] == "assistant":
            yield text(begun["content"])
        written = Written("", 0, "stop")
        try:
            async with contextlib.aclosing(self.writer.write(prompt, _options(body))) as pieces:
                async for written in pieces:
                    if written.text:
                        yield text(written.text)
        except RuntimeError:
            yield _error("The model has crashed without additional information. (Exit code: null)")
            return
        yield chunk(made, {}, written.finish, logprobs=None)
        yield usage(made, body, written)  # since 0.3.18
        yield DONE


def _error(message: str) -> bytes:
    """Streams say it in an event of their own kind, under status 200 (thane-ai-agent issue 1395)."""
    return b"event: error\n" + event({"error": {"message": message}})


def _options(body: Mapping[str, Any]) -> dict[str, Any]:
    """docs, openai-compat/chat-completions: "Supported payload parameters". `max_completion_tokens` is not there."""
    names = {"max_tokens": "n_predict"}
    taken = (
        *("max_tokens", "temperature", "top_p", "top_k", "stop", "presence_penalty", "frequency_penalty"),
        *("logit_bias", "repeat_penalty", "seed"),
    )
    return {names.get(name, name): body[name] for name in taken if body.get(name) is not None}
