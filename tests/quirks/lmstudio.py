"""LM Studio's API as its documentation (lmstudio-ai/docs, 2026) and its users' reports have it.

Its server is closed source. What a report says is marked with the number of the issue: "bug-tracker" is
lmstudio-ai/lmstudio-bug-tracker, "lms" lmstudio-ai/lms.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import string
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Literal

from quirks.server import Document, Events, QuirkServer
from quirks.writers import Writer, Written

__all__ = ["LMStudio"]

EMBEDDER = "text-embedding-nomic-embed-text-v1.5"


class LMStudio(QuirkServer):
    """The server.

    Args:
        writer: the model.
        models: those that are downloaded. An embedding model is always listed beside them (lms issue 416).
        loaded: of these, those that are in memory; the others are loaded at their first request where `jit`
            ("Just in Time Model Loading", on by default: docs, ttl-and-auto-evict).
        prefix: what becomes of a trailing assistant message: "continues"; "echoes" (it comes first in the answer,
            bug-tracker 2041); "restarts" (templates that close every turn).
        context_tokens: of a loaded model.
        overflow: a prompt that is longer ends in an "error" event of a stream with status 200 (bug-tracker 2322), or
            in an "empty" answer (2339).
        load_s: what loading takes.
    """

    flavour = "lmstudio"

    def __init__(
        self,
        writer: Writer,
        *,
        models: Sequence[str] = ("smollm2-135m-instruct",),
        loaded: Sequence[str] | None = None,
        jit: bool = True,
        prefix: Literal["continues", "echoes", "restarts"] = "continues",
        context_tokens: int = 2048,
        overflow: Literal["error", "empty"] = "error",
        load_s: float = 0.0,
    ) -> None:
        super().__init__()
        self.writer = writer
        self.models = tuple(models)
        self.loaded = list(self.models if loaded is None else loaded)
        self.jit = jit
        self.prefix = prefix
        self.context_tokens = context_tokens
        self.overflow = overflow
        self.load_s = load_s

    async def answer(self, method: str, path: str, body: dict[str, Any]) -> Document | Events:
        if method == "GET":
            return self._about(path)
        if path not in ("/v1/chat/completions", "/v1/completions"):
            # bug-tracker 618 and 1323: any path there is not gives status 200.
            return 200, {"error": f"Unexpected endpoint or method. ({method} {path})"}
        chat = path == "/v1/chat/completions"
        model = str(body.get("model"))
        if model not in self.models and len(self.loaded) == 1:
            model = self.loaded[0]  # whatever the request calls it (bug-tracker 619)
        if model not in self.models:
            known = ", ".join(self.models)
            return _refused(
                f'Invalid model identifier "{model}". Please specify a valid downloaded model (e.g., {known}).',
                code="model_not_found",  # gpt-researcher issue 1556 quotes it
            )
        if model not in self.loaded:
            if not self.jit:  # lms issue 107, bug-tracker 1730
                return _refused(
                    "No models loaded. Please load a model in the developer page or use the 'lms load' command."
                )
            await asyncio.sleep(self.load_s)
            self.loaded.append(model)
        prompt = self._rendered(body["messages"]) if chat else str(body["prompt"])
        begun = body["messages"][-1] if chat else {}
        echo = begun["content"] if self.prefix == "echoes" and begun.get("role") == "assistant" else ""
        too_long = await self.writer.count(prompt) > self.context_tokens
        pieces = self.writer.write(prompt, _options(body))
        return self._stream(model, body, pieces, chat=chat, echo=echo, too_long=too_long)

    def _about(self, path: str) -> Document:
        if path == "/v1/models":  # docs, openai-compat/models: all that are downloaded where JIT is on
            shown = [*(self.models if self.jit else self.loaded), EMBEDDER]
            listed = [{"id": m, "object": "model", "owned_by": "organization_owner"} for m in shown]
            return 200, {"data": listed, "object": "list"}
        if path == "/api/v0/models":  # docs, rest/endpoints
            return 200, {"object": "list", "data": [self._state(model) for model in (*self.models, EMBEDDER)]}
        return 200, {"error": f"Unexpected endpoint or method. (GET {path})"}

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

    async def _stream(
        self,
        model: str,
        body: dict[str, Any],
        pieces: AsyncGenerator[Written, None],
        *,
        chat: bool,
        echo: str,
        too_long: bool,
    ) -> Events:
        made = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{''.join(random.choices(_ALPHABET, k=21))}",
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": 1,
            "model": model,
            "system_fingerprint": model,
        }

        def chunk(text: str | None, finish: str | None = None) -> bytes:
            if not chat:
                choice: dict[str, Any] = {"index": 0, "text": text or ""}
            else:  # every delta has a role (bug-tracker 378 shows some)
                choice = {"index": 0, "delta": {} if text is None else {"role": "assistant", "content": text}}
            return _event({**made, "choices": [{**choice, "logprobs": None, "finish_reason": finish}]})

        written = Written("", 0, "stop")
        if too_long and self.overflow == "error":
            message = (
                "Trying to keep the first tokens when context the overflows. However, the model is loaded with "
                f"context length of only {self.context_tokens} tokens, which is not enough."
            )
            # Streams say it in an event of their own kind, under status 200 (thane-ai-agent issue 1395).
            yield b"event: error\n" + _event({"error": {"message": message}})
            return
        if not too_long:
            if echo:
                yield chunk(echo)
            try:
                async with contextlib.aclosing(pieces):
                    async for written in pieces:
                        if written.text:
                            yield chunk(written.text)
            except RuntimeError:
                message = "The model has crashed without additional information. (Exit code: null)"
                yield b"event: error\n" + _event({"error": {"message": message}})
                return
        yield chunk(None, written.finish)
        if (body.get("stream_options") or {}).get("include_usage"):  # since 0.3.18
            read, wrote = written.prompt_tokens, written.completion_tokens
            usage = {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}
            yield _event({**made, "choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"


_ALPHABET = string.ascii_lowercase + string.digits


def _options(body: Mapping[str, Any]) -> dict[str, Any]:
    """docs, openai-compat/chat-completions: "Supported payload parameters". `max_completion_tokens` is not there."""
    names = {"max_tokens": "n_predict"}
    taken = (
        *("max_tokens", "temperature", "top_p", "top_k", "stop", "presence_penalty", "frequency_penalty"),
        *("logit_bias", "repeat_penalty", "seed"),
    )
    return {names.get(name, name): body[name] for name in taken if body.get(name) is not None}


def _event(body: Any) -> bytes:
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def _refused(message: str, *, code: str | None = None) -> Document:
    error = {"message": message, "type": "invalid_request_error", "param": "model", "code": code}
    return 400 if code else 404, {"error": error}
