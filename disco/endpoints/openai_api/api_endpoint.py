"""A server model: makes attempts, knows how the server continues an answer, warms up."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any, Literal

import anyio
import httpx2
import openai
from openai.types.chat import ChatCompletionChunk

from disco.endpoints.continuation.methods import (
    Call,
    Continuation,
    chat_call,
    completions_call,
    continue_call,
)
from disco.endpoints.continuation.prefix_token_ids import ids_call, proved_vocabulary
from disco.endpoints.continuation.probe import ProbeVerdict, probe, rendered_head
from disco.endpoints.contract import Capabilities, Endpoint
from disco.endpoints.openai_api.api_attempt import ServerAttempt
from disco.endpoints.openai_api.connectivity import connects_directly, has_route
from disco.request import Prefix, Request

__all__ = ["OpenAIEndpoint"]

_WARM_UP_S = 10.0
# A server with a single model either answers with it under any name in the request, or refuses the request.
ANY_MODEL = "*"
# Building a validator takes tens of milliseconds; it is built before the first chunk comes.
_FIRST_CHUNK = (
    b'{"id":"","created":0,"model":"","object":"chat.completion.chunk",'
    b'"choices":[{"index":0,"delta":{"content":""},"finish_reason":null}]}'
)


class _KnownURL:
    """A base_url, its text, and its host and port. Do not print it: a URL may hold a password."""

    __slots__ = ("address", "text", "url")

    def __init__(self, url: httpx2.URL) -> None:
        self.url, self.text = url, str(url)
        self.address = url.host, url.port or (80 if url.scheme == "http" else 443)


class OpenAIEndpoint(Endpoint):
    """A model behind an OpenAI-compatible API.

    Every request parameter is passed on; the server decides what it supports.

    Args:
        client: an `openai.AsyncOpenAI` (or Azure's). Its authentication, base_url, default headers and
            connections are used; its retries and time-outs are not. The caller that made the client closes it.
        name: unique within one disco client.
        continuation: how this server continues an answer; see `Continuation`.
        context_tokens: the model's context, prompt and answer together, if known.
        logp: the server is known to give log probabilities of what it writes (`logprobs` without alternatives), to
            every model and request; some servers refuse requests that ask for them.
        verdicts: what probes have found, by (base_url, model), "*" for a server's only model; may be
            shared, stored and given again.
    """

    place: Literal["server"] = "server"

    # Mutable: verdicts; _attempts, those open; _known_url, derived from the client's base_url.
    def __init__(
        self,
        *,
        client: openai.AsyncOpenAI,
        name: str = "server",
        continuation: Continuation = Continuation(),  # noqa: B008 - frozen
        context_tokens: int | None = None,
        logp: bool = False,
        verdicts: MutableMapping[tuple[str, str], ProbeVerdict] | None = None,
    ) -> None:
        self.name = name
        self.verdicts: MutableMapping[tuple[str, str], ProbeVerdict] = {} if verdicts is None else verdicts
        self._client = client
        self._continuation = continuation
        self._context_tokens = context_tokens
        self._logp = logp
        self._attempts: set[ServerAttempt] = set()
        self._known_url = _KnownURL(client.base_url)

    def capabilities(self, model: str | None = None) -> Capabilities:
        continues = self.continuation(model).method != "none"
        return Capabilities(
            continues=continues,
            context_tokens=self._context_tokens,
            features=None,
            vocabulary=self.vocabulary(model),
            logp=self._logp,
        )

    @property
    def address(self) -> tuple[str, int]:
        """Return the host and port of the API."""
        return self._url.address

    @property
    def has_route(self) -> bool:
        host, port = self.address
        return not connects_directly(self._client) or has_route(host, port)

    @property
    def probes(self) -> bool:
        """Whether the endpoint detects how the server continues ("auto"), rather than being configured."""
        return self._continuation.method == "auto"

    def continuation(self, model: str | None = None) -> Continuation:
        """Return how `model` continues an answer, as configured or detected; method "none" when unknown."""
        if self._continuation.method != "auto":
            return self._continuation
        verdict = self._verdict(model)
        return verdict.applied_to(self._continuation) if verdict is not None else Continuation()

    def vocabulary(self, model: str | None = None) -> str | None:
        """Return the fingerprint of the vocabulary that the server has proved to have, or None.

        Answers are then sent to the server as ids of that vocabulary.
        """
        verdict = self._verdict(model)
        return None if verdict is None else verdict.vocabulary

    def _verdict(self, model: str | None) -> ProbeVerdict | None:
        if not self.verdicts:
            return None
        known, base_url = self.verdicts, self._url.text
        return known.get((base_url, model or ANY_MODEL)) or known.get((base_url, ANY_MODEL))

    @property
    def _url(self) -> _KnownURL:
        # Needed several times in every request; formatting a URL takes ten times as long as looking it up.
        url = self._client.base_url
        if url is not self._known_url.url:
            self._known_url = _KnownURL(url)
        return self._known_url

    def open(
        self,
        request: Request,
        prefix: Prefix = Prefix(),  # noqa: B008 - frozen
        *,
        wants: frozenset[str] = frozenset(),
    ) -> ServerAttempt:
        given = request.params
        asked = given.get("logprobs") or given.get("top_logprobs")  # the application receives them
        hides_logprobs = self._logp and "logp" in wants and not asked and given.get("n") in (None, 1)

        async def prepare() -> Call:
            call = await self._call(request, prefix)
            if hides_logprobs:
                # The older API takes a number of alternatives, and some servers take 0 to mean no log probabilities.
                call.body["logprobs"] = 1 if call.path == "/completions" else True
            return call

        attempt = ServerAttempt(
            client=self._client,
            name=self.name,
            request=request,
            prefix=prefix,
            prepare=prepare,
            hides_logprobs=hides_logprobs,
            on_close=self._attempts.discard,
        )
        self._attempts.add(attempt)
        return attempt

    async def _call(self, request: Request, prefix: Prefix) -> Call:
        if not prefix:
            return chat_call(request)
        if prefix.ids and not prefix.withheld and prefix.vocabulary == self.vocabulary(request.model):
            return ids_call(request, prefix, await rendered_head(self._client, request))
        continuation = self.continuation(request.model)
        if continuation.method != "completions" or not prefix.sent:
            return continue_call(request, prefix, continuation)
        head = await rendered_head(self._client, request) if continuation.server_renders else None
        return completions_call(request, prefix, continuation, head=head)

    async def warm_up(self) -> None:
        """Open a connection, and probe how a server with a single model continues ("auto").

        Never raises for a fault of the server. An unreachable server or a wrong key fails when a request is made;
        until then no verdict is kept.
        """
        ChatCompletionChunk.model_validate_json(_FIRST_CHUNK)
        models: list[str] = []
        with anyio.move_on_after(_WARM_UP_S):
            models = await self._models()
        if len(models) == 1 and self.probes:
            verdict = await self.probe(models[0])
            if verdict.conclusive:
                self.verdicts[self._url.text, ANY_MODEL] = verdict

    async def probe(self, model: str) -> ProbeVerdict:
        """Find out how `model` continues, unless that is known; remember a conclusive verdict."""
        base_url = self._url.text
        key = (base_url, model)
        known = self.verdicts.get(key) or self.verdicts.get((base_url, ANY_MODEL))
        if known is not None:
            return known
        verdict = await probe(self._client, model, continuation=self._continuation)
        file = self._continuation.template_file
        if file is not None and verdict.method != "none":
            verdict = replace(verdict, vocabulary=await proved_vocabulary(self._client, file))
        if verdict.conclusive:
            self.verdicts[key] = verdict
        return verdict

    async def aclose(self) -> None:
        """Close every open attempt. The client stays open: the caller that made it closes it."""
        for attempt in list(self._attempts):
            await attempt.aclose()

    async def _models(self) -> list[str]:
        options: Any = {"max_retries": 0, "timeout": _WARM_UP_S}
        try:
            answer = await self._client.get("/models", cast_to=object, options=options)
        except (openai.OpenAIError, httpx2.HTTPError, ValueError):
            return []
        data = answer.get("data") if isinstance(answer, dict) else None
        listed = data if isinstance(data, list) else []
        return [str(item["id"]) for item in listed if isinstance(item, dict) and "id" in item]
