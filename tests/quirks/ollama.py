"""Ollama's API as its documentation and its source have it (ollama/ollama, `main` of August 2026).

Each quirk names the file that it is from; only what disco asks of it is here. Cloud models are "answered" here, too:
what matters to the tests is that their prompts count as having left the machine.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from quirks.server import DONE, Document, Events, QuirkServer, chunk, usage
from quirks.writers import Writer, Written

__all__ = ["Ollama"]


class Ollama(QuirkServer):
    """The server.

    Args:
        writer: the model.
        models: those it has. A name that ends in ":cloud" or "-cloud" runs on ollama.com.
        remote: of these, those that run on ollama.com whatever their name is.
        continues: the model's template leaves a trailing assistant message open. Most do; `template/chatml.gotmpl`,
            which Ollama uses for models that bring none, closes every turn.
        context_tokens: `num_ctx`: 4,096 by default with less than 24 GiB of VRAM (docs/context-length.mdx).
        parallel: `OLLAMA_NUM_PARALLEL`, 1 by default (docs/faq.mdx).
        load_s: what loading the model takes at the first request.
    """

    def __init__(
        self,
        writer: Writer,
        *,
        models: Sequence[str] = ("smollm2:135m",),
        remote: Sequence[str] = (),
        continues: bool = True,
        context_tokens: int = 2048,
        parallel: int = 1,
        load_s: float = 0.0,
    ) -> None:
        super().__init__()
        self.writer = writer
        self.models = tuple(models)
        self.remote = frozenset(remote)
        self.continues = continues
        self.context_tokens = context_tokens
        self.load_s = load_s
        self.loaded = load_s == 0.0
        self.uploaded: list[dict[str, Any]] = []  # requests that went to ollama.com
        self.dropped: list[list[dict[str, Any]]] = []  # messages that were cut off without a word
        self._turn = asyncio.Semaphore(parallel)

    async def answer(self, method: str, path: str, body: dict[str, Any]) -> Document | Events:
        """server/routes.go, docs/api.md."""
        if path == "/v1/chat/completions":
            return await self._answer(body)
        if path == "/api/show":
            return self._show(str(body.get("model")))
        if path == "/api/version":
            return 200, {"version": "0.15.2"}
        if path == "/v1/models":
            listed = [{"id": m, "object": "model", "created": 1, "owned_by": "library"} for m in self.models]
            return 200, {"object": "list", "data": listed}
        if path == "/api/ps":  # only what is loaded; api/types.go ProcessModelResponse.context_length
            known = [{"name": m, "model": m, "context_length": self.context_tokens} for m in self.models]
            return 200, {"models": known if self.loaded else []}
        return 404, "404 page not found"

    def _show(self, model: str) -> Document:
        if self._found(model) is None:
            return 404, {"error": f"model '{model}' not found"}
        about: dict[str, Any] = {
            "details": {"family": "llama", "parameter_size": "134.52M", "quantization_level": "Q4_1"},
            # What the model was trained for, not what it is run with.
            "model_info": {"general.parameter_count": 134515008, "llama.context_length": 8192},
            "capabilities": ["completion"],
        }
        if self._is_remote(model):  # api/types.go ShowResponse
            about |= {"remote_model": model, "remote_host": "https://ollama.com:443"}
        return 200, about

    def _found(self, model: str) -> str | None:
        named = model if ":" in model else f"{model}:latest"
        return next((known for known in self.models if known.lower() == named.lower()), None)

    def _is_remote(self, model: str) -> bool:
        """internal/modelref/modelref.go: the source is a suffix of the name; a stub names a host of its own."""
        tag = model.rpartition(":")[2].lower()
        return tag == "cloud" or tag.endswith("-cloud") or self._found(model) in self.remote

    async def _answer(self, body: dict[str, Any]) -> Document | Events:
        model = str(body.get("model"))
        if self._found(model) is None:
            return _error(404, f"model '{model}' not found")  # server/routes.go ChatHandler
        if self._is_remote(model):  # server/cloud_proxy.go: the request is passed on as it is
            self.uploaded.append(body)
        await self._turn.acquire()
        pieces = None
        try:
            if not self.loaded:
                await asyncio.sleep(self.load_s)
                self.loaded = True
            pieces = self.writer.write(await self._fitting(body["messages"]), _options(body))
            first = await anext(pieces)  # an error before it has a status of its own
        except BaseException as error:
            self._turn.release()
            if pieces is not None:
                await pieces.aclose()
            if isinstance(error, RuntimeError):
                return _error(500, str(error))
            raise
        return self._stream(body, first, pieces)

    async def _fitting(self, messages: list[dict[str, Any]]) -> str:
        """server/prompt.go chatPrompt: what does not fit is left out from the front, without a word.

        System messages and the *last* message stay; where that is the half-written answer, the question may go.
        """
        last = len(messages) - 1
        for cut in range(last + 1):
            system = [m for m in messages[:cut] if m["role"] == "system"]
            prompt = self._rendered([*system, *messages[cut:]])
            tokens = await self.writer.count(prompt)
            if tokens <= self.context_tokens or cut == last:
                if cut:
                    self.dropped.append([m for m in messages[:cut] if m["role"] != "system"])
                break
        return prompt

    def _rendered(self, messages: list[dict[str, Any]]) -> str:
        merged: list[dict[str, Any]] = []
        for message in messages:  # template/template.go collate: neighbours of one role become one message
            if merged and merged[-1]["role"] == message["role"]:
                merged[-1] = {
                    **merged[-1],
                    "content": f"{merged[-1]['content']}\n\n{message['content']}",
                }
            else:
                merged.append(message)
        text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in merged)
        if self.continues and merged and merged[-1]["role"] == "assistant":
            return text.removesuffix("<|im_end|>\n")
        return f"{text}<|im_start|>assistant\n"

    async def _stream(
        self, body: dict[str, Any], first: Written, pieces: AsyncGenerator[Written, None]
    ) -> Events:
        # middleware/openai.go: ids are one of 999 numbers, so that two answers may share one.
        made = {
            "id": f"chatcmpl-{random.randrange(999)}",
            "model": body["model"],
            "system_fingerprint": "fp_ollama",
        }
        try:
            piece, role = first, {"role": "assistant"}
            while True:
                if piece.text or role:  # the role comes with the first text, not before it
                    yield chunk(made, {**role, "content": piece.text})
                    role = {}
                if piece.finish is not None:
                    break
                piece = await anext(pieces)
            yield chunk(made, {}, piece.finish)
            yield usage(made, body, piece)
            yield DONE
        except RuntimeError:
            # server/routes.go streamResponse writes {"error": ...}; ChatWriter reads that as a response without
            # a message: the stream gets one more empty piece, and ends without finish reason and [DONE].
            yield chunk(made, {"content": ""})
        finally:
            self._turn.release()
            await pieces.aclose()


def _options(body: Mapping[str, Any]) -> dict[str, Any]:
    """openai/openai.go FromChatRequest: what the API has and this list has not is dropped without a word.

    `max_completion_tokens` is not in it, nor `n`, `logit_bias`, `tool_choice`, `top_k` or `repeat_penalty`.
    """
    options: dict[str, Any] = {
        "temperature": body.get("temperature", 1.0),
        "top_p": body.get("top_p", 1.0),
    }
    if body.get("max_tokens") is not None:
        options["n_predict"] = body["max_tokens"]
    if body.get("seed") is not None:
        options["seed"] = body["seed"]
    stop = body.get("stop")
    if stop:
        options["stop"] = [stop] if isinstance(stop, str) else stop
    return options


def _error(status: int, message: str) -> Document:
    """openai/openai.go NewError."""
    kind = {400: "invalid_request_error", 404: "not_found_error"}.get(status, "api_error")
    return status, {"error": {"message": message, "type": kind, "param": None, "code": None}}
