"""The API of llama-cpp-python's server, as its version 0.3.36 answered when it ran here.

It takes any model's name, tells neither its context nor what it is, starts a new answer behind a trailing assistant
message, and counts no tokens in a stream. Plain completions continue their prompt, which is a text:
it takes no token ids.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from quirks.server import DONE, QuirkServer, chatml, chunk, event, options

TAKEN = ("max_tokens", "temperature", "top_p", "stop", "seed")
"""`max_completion_tokens` is not among them."""


class LlamaCppPython(QuirkServer):
    """The server of one model."""

    def __init__(self, writer: Any, models: tuple[str, ...] = ("smollm2-135m",), **more: Any) -> None:
        super().__init__(writer, models, **more)

    async def answer(self, path: str, body: dict[str, Any]) -> Any:
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": m, "object": "model"} for m in self.models]}
        is_chat = path == "/v1/chat/completions"
        if not is_chat and path != "/v1/completions":
            return 404, {"detail": "Not Found"}
        prompt = chatml(body["messages"], continues=False) if is_chat else body["prompt"]
        if not isinstance(prompt, str):
            return 422, {"detail": [{"loc": ["body", "prompt"], "msg": "Input should be a valid string"}]}
        asked = await self.writer.count(prompt) + (body.get("max_tokens") or 16)
        if asked > self.context_tokens:
            message = f"Requested tokens ({asked}) exceed context window of {self.context_tokens}"
            return 400, {"error": {"message": message}}
        return self._stream(body, prompt, is_chat=is_chat)

    async def _stream(
        self, body: dict[str, Any], prompt: str, *, is_chat: bool
    ) -> AsyncGenerator[bytes, None]:
        made = {"id": "chatcmpl-1" if is_chat else "cmpl-1", "model": body["model"]}
        if is_chat:
            yield chunk(made, {"role": "assistant"})
        async with contextlib.aclosing(self.writer.write(prompt, options(body, *TAKEN))) as pieces:
            async for written in pieces:
                if is_chat:
                    if written.text:
                        yield chunk(made, {"content": written.text})
                    if written.finish:
                        yield chunk(made, {}, written.finish)
                    continue
                choice = {"text": written.text, "index": 0, "logprobs": None, "finish_reason": written.finish}
                yield event({**made, "object": "text_completion", "created": 1, "choices": [choice]})
        yield DONE
