"""A fake of LM Studio: its API as its documentation (lmstudio-ai/docs, 2026) and its users' reports have it.

Reports by number: "bug-tracker" is lmstudio-ai/lmstudio-bug-tracker, "lms" lmstudio-ai/lms.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncGenerator
from typing import Any, Literal

from quirks.server import (
    DONE,
    QuirkServer,
    RealModel,
    RefusedError,
    Written,
    chatml,
    chunk,
    demanded_call,
    event,
    options,
    shown_tools,
    usage,
)

EMBEDDER = "text-embedding-nomic-embed-text-v1.5"  # always listed beside the others (lms issue 416)


class LMStudio(QuirkServer):
    """It loads a model at the first request (docs, ttl-and-auto-evict).

    `prefix`: a trailing assistant message "continues", "echoes" (bug-tracker 2041) or "restarts".
    """

    def __init__(
        self,
        writer: Any,
        models: tuple[str, ...] = ("smollm2-135m-instruct",),
        *,
        prefix: Literal["continues", "echoes", "restarts"] = "continues",
        **more: Any,
    ) -> None:
        super().__init__(writer, models, **more)
        self.prefix = prefix

    async def answer(self, path: str, body: dict[str, Any]) -> Any:
        listed = (*self.models, EMBEDDER)
        if path == "/v1/models":  # docs, openai-compat/models: all that are downloaded
            return 200, {"data": [{"id": m, "owned_by": "organization_owner"} for m in listed]}
        if path == "/api/v0/models":  # docs, rest/endpoints
            return 200, {"data": [self._state(model) for model in listed]}
        if path != "/v1/chat/completions":  # bug-tracker 618 and 1323: status 200 for any other path
            return 200, {"error": f"Unexpected endpoint or method. ({path})"}
        if body["model"] not in self.models:  # gpt-researcher issue 1556 quotes it
            error = {"type": "invalid_request_error", "param": "model", "code": "model_not_found"}
            return 400, {"error": {"message": f'Invalid model identifier "{body["model"]}".', **error}}
        await self.load()
        if isinstance(self.writer, RealModel) and not body.keys().isdisjoint(_OF_ENGINE):
            return self._from_engine(body)
        return self._stream(body)

    async def _from_engine(self, body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        made = {"id": f"chatcmpl-{random.randrange(10**9)}", "model": body["model"]}
        taken = {name: body[name] for name in ("messages", *_OF_ENGINE) if name in body}
        try:
            async for part in self.writer.chat({**taken, **_options(body, limit="max_tokens")}):
                if part.get("usage") and not (body.get("stream_options") or {}).get("include_usage"):
                    continue
                for choice in part["choices"]:
                    choice["delta"]["role"] = "assistant"
                yield event({**part, **made})
        except RefusedError as error:
            yield _error(str(error.args[1]))
            return
        yield DONE

    def _state(self, model: str) -> dict[str, Any]:
        kind = "embeddings" if model == EMBEDDER else "llm"
        known = {"id": model, "type": kind, "max_context_length": 8192}
        if not self.loaded or model == EMBEDDER:
            return {**known, "state": "not-loaded"}
        return {**known, "state": "loaded", "loaded_context_length": self.context_tokens}

    async def _stream(self, body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        made = {"id": f"chatcmpl-{random.randrange(10**9)}", "model": body["model"]}

        def text(content: str) -> bytes:  # every delta has a role (bug-tracker 378 shows some)
            return chunk(made, {"role": "assistant", "content": content}, logprobs=None)

        if called := demanded_call(body, made):  # docs, tools: `tool_choice` is "none", "auto" or "required"
            for data in (
                *called,
                usage(made, body, Written("", prompt_tokens=100, completion_tokens=10)),
                DONE,
            ):
                yield data
            return
        begun = body["messages"][-1]
        prompt = chatml(shown_tools(body), continues=self.prefix != "restarts")
        if await self.writer.count(prompt) > self.context_tokens:  # under status 200 (bug-tracker 2322)
            yield _error(
                "Trying to keep the first tokens when context the overflows. However, the model is loaded with "
                f"context length of only {self.context_tokens} tokens, which is not enough."
            )
            return
        if self.prefix == "echoes" and begun["role"] == "assistant":
            yield text(begun["content"])
        written = Written("", "stop")
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


_OF_ENGINE = ("response_format",)  # docs, structured-output


def _options(body: dict[str, Any], *, limit: str = "n_predict") -> dict[str, Any]:
    """docs, openai-compat/chat-completions: "Supported payload parameters". `max_completion_tokens` is not there."""
    return options(body, "max_tokens", "temperature", "top_p", "stop", "logit_bias", "seed", limit=limit)
