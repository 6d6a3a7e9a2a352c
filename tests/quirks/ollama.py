"""A fake of Ollama: its API as its documentation and its source have it (ollama/ollama, `main` of August 2026).

Each quirk names the file that it is from; only what disco asks of it is here.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from typing import Any

from quirks.server import (
    DONE,
    QuirkServer,
    RealModel,
    Written,
    chatml,
    chunk,
    event,
    options,
    shown_tools,
    usage,
)


class Ollama(QuirkServer):
    """`remote` models run on ollama.com; `template/chatml.gotmpl` closes every turn: it does not `continues`.

    `parameters`: the settings of the model (its Modelfile's), as `/api/show` gives them. `able`: what it can do.
    `refuses`: why it cannot be loaded. A load is dropped when its client goes (llm/server.go WaitUntilRunning).
    """

    def __init__(
        self,
        writer: Any,
        models: tuple[str, ...] = ("smollm2:135m",),
        *,
        remote: tuple[str, ...] = (),
        continues: bool = True,
        parameters: str = "",
        able: tuple[str, ...] = ("completion", "tools"),
        refuses: str | None = None,
        **more: Any,
    ) -> None:
        super().__init__(writer, models, **more)
        self.remote, self.continues = remote, continues
        self.parameters, self.able, self.refuses = parameters, able, refuses
        self.uploaded: list[dict[str, Any]] = []  # requests that went to ollama.com

    async def answer(self, path: str, body: dict[str, Any]) -> Any:
        """server/routes.go, docs/api.md."""
        if path == "/api/version":
            return 200, {"version": "0.15.2"}
        if path == "/v1/models":
            return 200, {"data": [{"id": m, "created": 1, "owned_by": "library"} for m in self.models]}
        if path == "/api/ps":  # only what is loaded; api/types.go ProcessModelResponse.context_length
            known = [{"name": m, "model": m, "context_length": self.context_tokens} for m in self.models]
            return 200, {"models": known if self.loaded else []}
        if path == "/v1/embeddings":  # docs, embeddings: of any model
            vector = {"object": "embedding", "index": 0, "embedding": [0.6, 0.8]}
            counts = {"prompt_tokens": 1, "total_tokens": 1}
            return 200, {"object": "list", "data": [vector], "model": body["model"], "usage": counts}
        if path not in ("/api/show", "/api/generate", "/v1/chat/completions"):
            return _error(404, "404 page not found")
        named = str(body["model"])
        named = (named if ":" in named else f"{named}:latest").lower()
        if named not in map(str.lower, self.models):  # server/routes.go ChatHandler
            return _error(404, f"model '{named}' not found")
        if path == "/api/show":
            # api/types.go ShowResponse. The context is what the model was trained for, not what it is run with.
            about = {"general.parameter_count": 134515008, "llama.context_length": 8192}
            remote = {"remote_host": "https://ollama.com:443"} if named in self.remote else {}
            more = {"parameters": self.parameters, "capabilities": list(self.able)}
            return 200, {"model_info": about, **more, **remote}
        if named in self.remote:  # server/cloud_proxy.go: the request is passed on as it is
            self.uploaded.append(body)
        if body.get("tools") and "tools" not in self.able:  # server/routes.go ChatHandler
            return _error(400, f"registry.ollama.ai/library/{named} does not support tools")
        if self.refuses is not None:  # server/sched.go
            return _error(500, self.refuses)
        await self.load()
        if path == "/api/generate":  # without a prompt it only loads (docs/api.md, "Load a model")
            assert not body.get("prompt")
            return 200, {"model": named, "response": "", "done": True, "done_reason": "load"}
        if isinstance(self.writer, RealModel) and not body.keys().isdisjoint(_OF_ENGINE):
            return self._from_engine(body)
        prompt = await self._fitted(shown_tools({**body, "tool_choice": None}))
        pieces = self.writer.write(prompt, _options(body))
        try:
            first = await anext(pieces)  # an error before it has a status of its own
        except RuntimeError as error:
            return _error(500, str(error))
        return self._stream(body, first, pieces)

    async def _fitted(self, messages: list[dict[str, Any]]) -> str:
        """server/prompt.go chatPrompt: the oldest messages go, and then the runner leaves out half of its context."""
        kept, count = list(messages), self.writer.count
        while await count(prompt := self._rendered(kept)) >= self.context_tokens:
            oldest = next((m for m in kept[:-1] if m["role"] != "system"), None)
            if oldest is None:
                words = prompt.split(" ")
                while await count(prompt := " ".join(words)) > self.context_tokens // 2:
                    del words[len(words) // 4 : len(words) // 2]
                return prompt
            kept.remove(oldest)
        return prompt

    async def _from_engine(self, body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        made = {"id": f"chatcmpl-{random.randrange(999)}", "model": body["model"]}
        taken = {name: body[name] for name in ("messages", "stop", *_OF_ENGINE) if name in body}
        async for part in self.writer.chat({**taken, **_options(body, limit="max_tokens")}):
            if part.get("usage") and not (body.get("stream_options") or {}).get("include_usage"):
                continue
            yield event({**part, **made})
        yield DONE

    def _rendered(self, messages: list[dict[str, Any]]) -> str:
        merged: list[dict[str, Any]] = []
        for message in messages:  # template/template.go collate: neighbours of one role become one message
            if merged and merged[-1]["role"] == message["role"]:
                message = {**message, "content": f"{merged.pop()['content']}\n\n{message['content']}"}  # noqa: PLW2901
            merged.append(message)
        return chatml(merged, continues=self.continues)

    async def _stream(
        self, body: dict[str, Any], piece: Written, pieces: AsyncGenerator[Written, None]
    ) -> AsyncGenerator[bytes, None]:
        # middleware/openai.go: ids are one of 999 numbers, so that two answers may share one.
        made = {"id": f"chatcmpl-{random.randrange(999)}", "model": body["model"]}
        role = {"role": "assistant"}
        try:
            while True:
                if piece.text or role:  # the role comes with the first text, not before it
                    yield chunk(made, {**role, "content": piece.text})
                if piece.finish is not None:
                    break
                role, piece = {}, await anext(pieces)
            yield chunk(made, {}, piece.finish)
            yield usage(made, body, piece)
            yield DONE
        except RuntimeError:
            # server/routes.go: one more empty piece, and an end without finish reason and [DONE].
            yield chunk(made, {"content": ""})
        finally:
            await pieces.aclose()


_OF_ENGINE = ("response_format", "logprobs", "top_logprobs")


def _options(body: dict[str, Any], *, limit: str = "n_predict") -> dict[str, Any]:
    """openai/openai.go FromChatRequest: what this list has not, `max_completion_tokens` too, is dropped."""
    taken = options(body, "max_tokens", "temperature", "top_p", "seed", "stop", limit=limit)
    return {"temperature": 1.0, "top_p": 1.0, **taken}


def _error(status: int, message: str) -> tuple[int, Any]:
    """openai/openai.go NewError."""
    kind = "not_found_error" if status == 404 else "api_error"
    return status, {"error": {"message": message, "type": kind, "param": None, "code": None}}
