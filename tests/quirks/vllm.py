"""A fake of vLLM: its API as its documentation and its source have it (vllm-project/vllm 0.33).

Each quirk names the file that it is from. What it computes, a real llama-server computes.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from typing import Any

from quirks.server import (
    DONE,
    KnownText,
    QuirkServer,
    RealModel,
    RefusedError,
    Written,
    chatml,
    chunk,
    demanded_call,
    event,
    shown_tools,
    usage,
)


class VLLM(QuirkServer):
    """`calls`: it was started with `--enable-auto-tool-choice` and a parser. The model is always loaded."""

    def __init__(
        self,
        writer: Any,
        models: tuple[str, ...] = ("HuggingFaceTB/SmolLM2-135M-Instruct",),
        *,
        calls: bool = True,
        **more: Any,
    ) -> None:
        super().__init__(writer, models, **more)
        self.calls = calls

    async def answer(self, path: str, body: dict[str, Any]) -> Any:
        """entrypoints/openai/api_server.py."""
        if path == "/v1/models":  # entrypoints/openai/serving_models.py
            more = {"created": 1, "owned_by": "vllm", "parent": None, "max_model_len": self.context_tokens}
            listed = [{"id": m, "object": "model", "root": m, **more} for m in self.models]
            return 200, {"object": "list", "data": listed}
        if path == "/version":
            return 200, {"version": "0.33.0"}
        if path != "/v1/chat/completions":
            return 404, {"detail": "Not Found"}  # FastAPI's
        if body["model"] not in self.models:
            return _error(404, "NotFoundError", f"The model `{body['model']}` does not exist.", "model")
        if body.get("tools") and body.get("tool_choice", "auto") == "auto" and not self.calls:
            said = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
            return _error(400, "BadRequestError", said)
        if bool(body.get("continue_final_message")) and body.get("add_generation_prompt", True):
            said = (
                "Cannot set both `continue_final_message` and `add_generation_prompt` to True."  # protocol.py
            )
            return _error(400, "BadRequestError", said)
        length = await self.writer.count(chatml(body["messages"], continues=False))
        if length >= self.context_tokens:  # entrypoints/openai/serving_engine.py
            said = (
                f"This model's maximum context length is {self.context_tokens} tokens. However, your request has "
                f"{length} input tokens. Please reduce the length of the input messages."
            )
            return _error(400, "BadRequestError", said, "input_tokens")
        return self._told(body) if isinstance(self.writer, KnownText) else await self._from_engine(body)

    async def _from_engine(self, body: dict[str, Any]) -> Any:
        assert isinstance(self.writer, RealModel)
        made = {"id": f"chatcmpl-{random.randbytes(16).hex()}", "model": body["model"]}
        # protocol.py: its own limit counts for both names. The engine has n answers one after the other.
        mine = ("n", "stream_options", "tools", "tool_choice")
        asked = {name: value for name, value in body.items() if name not in mine}
        asked["messages"] = shown_tools(body)
        if called := demanded_call(body, made):  # by structured outputs (docs, tool_calling)
            return self._called(body, made, called)
        if "max_completion_tokens" in asked:
            asked["max_tokens"] = asked.pop("max_completion_tokens")
        first = self.writer.chat(asked)
        try:
            head = await anext(first)
        except RefusedError as error:
            return _error(error.args[0], "BadRequestError", str(error.args[1]))

        async def stream() -> AsyncGenerator[bytes, None]:
            read = wrote = 0
            for index in range(body.get("n") or 1):
                parts = first if index == 0 else self.writer.chat(asked)
                if index == 0:
                    yield _of(head, made, index)
                async for part in parts:
                    if counts := part.get("usage"):
                        read, wrote = counts["prompt_tokens"], wrote + counts["completion_tokens"]
                    else:
                        yield _of(part, made, index)
            if (body.get("stream_options") or {}).get("include_usage"):
                counts = {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}
                yield event(
                    {**made, "object": "chat.completion.chunk", "created": 1, "choices": [], "usage": counts}
                )
            yield DONE

        return stream()

    async def _called(
        self, body: dict[str, Any], made: dict[str, Any], called: list[bytes]
    ) -> AsyncGenerator[bytes, None]:
        for data in (*called, usage(made, body, Written("", prompt_tokens=100, completion_tokens=10)), DONE):
            yield data

    async def _told(self, body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        made = {"id": f"chatcmpl-{random.randbytes(16).hex()}", "model": body["model"]}
        yield chunk(made, {"role": "assistant", "content": ""})
        prompt = chatml(body["messages"], continues=bool(body.get("continue_final_message")))
        async for written in self.writer.write(prompt, {"n_predict": body.get("max_tokens")}):
            if written.text:
                yield chunk(made, {"content": written.text})
        yield chunk(made, {"content": ""}, written.finish, stop_reason=None)
        yield usage(made, body, written)
        yield DONE


def _of(part: dict[str, Any], made: dict[str, Any], index: int) -> bytes:
    choices = [{**choice, "index": index} for choice in part["choices"]]
    known = {name: part[name] for name in ("object", "created") if name in part}
    return event({**known, **made, "choices": choices})


def _error(status: int, kind: str, message: str, param: str | None = None) -> tuple[int, Any]:
    """entrypoints/openai/protocol.py ErrorResponse."""
    return status, {"error": {"message": message, "type": kind, "param": param, "code": status}}
