"""A server model: makes attempts, knows how the server continues an answer, warms up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import anyio
import httpx2
import openai
from openai.types.chat import ChatCompletionChunk

from disco.endpoints.continuation.instruction import instructed_call
from disco.endpoints.continuation.methods import (
    Call,
    Continuation,
    chat_call,
    continue_call,
    rendered_call,
    responses_call,
)
from disco.endpoints.continuation.prefix_token_ids import ids_call, proved_vocabulary
from disco.endpoints.continuation.probe import ProbeMeter, ProbeVerdict, probe, rendered_head
from disco.endpoints.continuation.verdicts import Key, Verdicts
from disco.endpoints.contract import Capabilities, Endpoint
from disco.endpoints.openai_api.additions import AnswerLimits, LogprobsSupport, StreamAdditions
from disco.endpoints.openai_api.api_answer import read_whole
from disco.endpoints.openai_api.api_attempt import ServerAttempt
from disco.endpoints.openai_api.api_request import ServerRequest
from disco.endpoints.openai_api.connectivity import connects_directly, has_route
from disco.endpoints.openai_api.refused.account import Account, account_of, names_deployments, present_account
from disco.endpoints.published_ttft import PublishedTtft, Told, ask_ttft
from disco.request import Prefix, Request

__all__ = ["OpenAIEndpoint"]

_WARM_UP_S = 10.0
# How long an attempt waits for the proof that its server continues; the reader waits meanwhile.
_PROOF_S = 8.0
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
        logp: whether the server gives log probabilities of what it writes. None: the first request that wants them
            finds out, for its model and for as many alternatives to a token. Some servers refuse such requests; then
            the same request is sent again without, and later ones do not ask. A status of 500 may have had another
            cause, so it has to come twice.
        verdicts: what probes have found, by (base_url, model), "*" for a server's only model; may be
            stored and given again. A `Verdicts` may be shared: then only one endpoint probes a model at a time.
    """

    place: Literal["server"] = "server"

    # Mutable: verdicts; listed and refuses_key, what its list of models has last said of its models and its key;
    # _attempts, those open; _known_url, derived from the client's base_url; _without_responses, (base_url, model) of
    # those that have no `/responses`; _limits; _logprobs; _stream_additions; _publisher, the base_url of a server that
    # publishes its TTFT.
    def __init__(
        self,
        *,
        client: openai.AsyncOpenAI,
        name: str = "server",
        continuation: Continuation = Continuation(),  # noqa: B008 - frozen
        context_tokens: int | None = None,
        logp: bool | None = None,
        verdicts: Mapping[Key, ProbeVerdict] | None = None,
    ) -> None:
        self.name = name
        self.verdicts = verdicts if isinstance(verdicts, Verdicts) else Verdicts(verdicts)
        self._client = client
        self._continuation = continuation
        self._context_tokens = context_tokens
        self._logprobs = LogprobsSupport(given=logp)
        self._limits = AnswerLimits()
        self._stream_additions = StreamAdditions()
        self._attempts: set[ServerAttempt] = set()
        self._without_responses: set[Key] = set()
        self._known_url = _KnownURL(client.base_url)
        self._publisher: str | None = None
        self.listed: tuple[str, ...] = ()
        self.refuses_key = False

    def capabilities(self, model: str | None = None) -> Capabilities:
        model = self.own_model(model)
        method = self.continuation(model).method
        continues = method not in ("none", "instructed")
        return Capabilities(
            continues=continues,
            continues_if_proved=not continues and (method == "instructed" or self.is_unproved(model)),
            context_tokens=self._context_tokens,
            features=None,
            vocabulary=self.vocabulary(model),
            logp=self._logprobs.given is True,
            label_scores=self._logprobs.given is True,
            limits=self._limits.works((self._url.text, model or "")),
        )

    @property
    def client(self) -> openai.AsyncOpenAI:
        """What the requests are sent with."""
        return self._client

    @property
    def base_url(self) -> str:
        """The address of the API as text. Do not print it: it may hold a password."""
        return self._url.text

    @property
    def address(self) -> tuple[str, int]:
        """Return the host and port of the API."""
        return self._url.address

    def account(self, extra_headers: Mapping[str, Any] | None = None) -> Account:
        """Return whose account requests are sent for now; `extra_headers` are a request's own."""
        return account_of(self._client, extra_headers)

    async def present_account(self) -> Account | None:
        """Ask the application's function for the present key, to compare with a refused one; None: it has none."""
        return await present_account(self._client)

    @property
    def has_route(self) -> bool:
        host, port = self.address
        return not connects_directly(self._client) or has_route(host, port)

    def is_known_to_continue(self, model: str | None) -> bool:
        """Return `Capabilities.continues` without the rest: this is asked before every direct answer.

        Args:
            model: the model that a request names; None: it names none.
        """
        if self._continuation.method == "auto" and not self.verdicts:
            return False
        return self.capabilities(model).continues

    @property
    def probes(self) -> bool:
        """Whether the endpoint detects how the server continues ("auto"), rather than being configured."""
        return self._continuation.method == "auto"

    def own_model(self, model: str | None) -> str | None:
        """Return the model to request from this server for a request that names `model`."""
        return model

    def needs_probe(self, model: str | None) -> bool:
        """Whether it is time to find out in the background how the server continues answers to such requests.

        Args:
            model: the model that a request names; None: it names none.
        """
        own = self.own_model(model)
        key = self._url.text, own or ""
        waits = self.verdicts.running(key) is not None or self.verdicts.is_left_alone(key)
        return bool(own) and self.is_unproved(own) and not waits

    def is_unproved(self, model: str | None = None) -> bool:
        """Whether the endpoint has still to detect how `model` continues an answer."""
        return self.probes and self._verdict(model) is None

    def continuation(self, model: str | None = None) -> Continuation:
        """Return how `model` continues an answer, as configured or detected; method "none" when unknown."""
        if self._continuation.method != "auto":
            return self._continuation
        verdict = self._verdict(model)
        return verdict.applied_to(self._continuation) if verdict is not None else Continuation()

    def vocabulary(self, model: str | None = None) -> str | None:
        """Return the fingerprint of the vocabulary that the server has proved to have, or None.

        Answers are then sent to the server as ids of that vocabulary.

        Args:
            model: the model that a request names; None: it names none.
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
        request, limit = self._limits.of(request, (self._url.text, request.model))
        given = request.params
        asked = given.get("logprobs") or given.get("top_logprobs")  # the application receives them
        key = self._url.text, request.model
        classes = request.classes if "label_scores" in wants and not prefix else ()
        logprobs = None
        if (classes or "logp" in wants) and not asked and given.get("n") in (None, 1):
            logprobs = self._logprobs.request(key, classes)
        if logprobs is not None or key in self._without_responses:
            request = replace(request, responses=None)

        meter = ProbeMeter()
        of_stream = self._stream_additions.of(request, key, continues=bool(prefix))

        async def prepare() -> Call:
            call = await self._call(request, prefix, meter)
            if logprobs is not None:
                call = logprobs.added_to(call)
            for addition in of_stream:
                call = addition.left_out_of(call)
            return call

        asked = ServerRequest(
            client=self._client,
            name=self.name,
            request=request,
            prefix=prefix,
            prepare=prepare,
            meter=meter,
            additions=[each for each in (limit, logprobs, *of_stream) if each is not None],
            limit=limit,
            logprobs=logprobs,
            on_missing=lambda: self._without_responses.add(key),
        )
        attempt = ServerAttempt(asked, self._closed_one)
        self._attempts.add(attempt)
        return attempt

    def _closed_one(self, attempt: ServerAttempt, response: httpx2.Response | None) -> None:
        self._attempts.discard(attempt)
        if response is not None and PublishedTtft.is_in(response.headers):
            self._publisher = self._url.text

    @property
    def publishes_ttft(self) -> bool:
        """Whether the server has said that it publishes its TTFT, by which `ask_ttft` may be called."""
        return self._publisher == self._url.text

    async def ask_ttft(self, model: str) -> Told | None:
        """Ask the server for its TTFT for requests that name `model`; None where it gives no proper answer in time."""
        return await ask_ttft(self._client, self.own_model(model) or model)

    async def _call(self, request: Request, prefix: Prefix, meter: ProbeMeter) -> Call:
        if not prefix:
            asked = request.responses
            return chat_call(request) if asked is None else responses_call(request, asked)
        if prefix.ids and not prefix.withheld and prefix.vocabulary == self.vocabulary(request.model):
            return ids_call(request, prefix, await rendered_head(self._client, request))
        model = request.model
        if prefix.sent and self.is_unproved(model):
            limit = request.timeouts.first_content_s
            await self.prove(model, meter, limit_s=_PROOF_S if limit is None else min(_PROOF_S, limit / 2))
        continuation = self.continuation(model)
        told = continuation.method == "instructed" or (
            self.is_unproved(model) and self._continuation.instructed
        )
        if told and prefix.sent:
            return instructed_call(request, prefix)
        if continuation.method != "completions" or not prefix.sent:
            return continue_call(request, prefix, continuation)
        head = await rendered_head(self._client, request) if continuation.server_renders else None
        return await rendered_call(request, prefix, continuation, head=head)

    async def warm_up(self) -> None:
        """Open a connection, and probe how a server with a single model continues ("auto").

        Never raises for a fault of the server. An unreachable server or a wrong key fails when a request is made;
        until then no verdict is kept.
        """
        ChatCompletionChunk.model_validate_json(_FIRST_CHUNK)
        models: tuple[str, ...] = ()
        with anyio.move_on_after(_WARM_UP_S):
            models = await self.list_models()
        if len(models) == 1 and self.probes:
            verdict = await self.probe(models[0])
            if verdict.conclusive:
                self.verdicts[self._url.text, ANY_MODEL] = verdict

    async def probe(self, model: str) -> ProbeVerdict:
        """Find out how `model` continues, unless that is known; remember a conclusive verdict."""
        return await self._probe(model, ProbeMeter(), math.inf, unasked=False)

    async def prove(self, model: str, meter: ProbeMeter, *, limit_s: float = math.inf) -> None:
        """Probe `model` where the application did not ask for that: not soon after the server could not be reached.

        Args:
            model: the model that a request names.
            meter: counts what the requests use.
            limit_s: time limit of the whole probe, or of the wait for one that is under way, seconds.
        """
        meter.waited = True
        own = self.own_model(model)
        if own:
            await self._probe(own, meter, limit_s, unasked=True)

    async def _probe(self, model: str, meter: ProbeMeter, limit_s: float, *, unasked: bool) -> ProbeVerdict:
        key, unknown = (self._url.text, model), ProbeVerdict("none", {"flags": "unreachable"})
        found: ProbeVerdict | None = None
        with anyio.move_on_after(limit_s):
            while (running := self.verdicts.running(key)) is not None:
                await running.wait()
        found = self._verdict(model)
        if found is not None:
            return found
        if self.verdicts.running(key) is not None or (unasked and self.verdicts.is_left_alone(key)):
            return unknown
        self.verdicts.begin(key)
        try:
            with anyio.move_on_after(limit_s) as scope:
                found = await probe(
                    self._client, model, read_whole, continuation=self._continuation, meter=meter
                )
                file = self._continuation.template_file
                if file is not None and found.method != "none":
                    found = replace(found, vocabulary=await proved_vocabulary(self._client, file))
            if scope.cancelled_caught:
                found = found or unknown
        except Exception:
            found = found or unknown  # else each answer would send one more
            raise
        finally:
            self.verdicts.end(key, found)
        return found or unknown

    async def aclose(self) -> None:
        """Close every open attempt. The client stays open: the caller that made it closes it."""
        for attempt in list(self._attempts):
            await attempt.aclose()

    async def list_models(self) -> tuple[str, ...]:
        """Ask the server for the names of its models; none where it gives no list, or not those that may be asked for.

        Never raises for a fault of the server.
        """
        options: Any = {"max_retries": 0, "timeout": _WARM_UP_S}
        try:
            response = await self._client.get("/models", cast_to=httpx2.Response, options=options)
            answer = response.json()
        except (openai.OpenAIError, httpx2.HTTPError, ValueError) as error:
            # Some keys may answer and not list: 403 says nothing.
            self.refuses_key = isinstance(error, openai.AuthenticationError)
            return ()
        self.refuses_key = False
        if PublishedTtft.is_in(response.headers):
            self._publisher = self._url.text
        data = answer.get("data") if isinstance(answer, dict) else None
        listed = data if isinstance(data, list) else []
        names = tuple(str(item["id"]) for item in listed if isinstance(item, dict) and "id" in item)
        self.listed = () if names_deployments(self._client) else names
        return self.listed
