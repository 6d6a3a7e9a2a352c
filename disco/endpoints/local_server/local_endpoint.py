"""An OpenAI-compatible server as the local side."""

from __future__ import annotations

import time
from dataclasses import replace

import httpx2
import openai

from disco.candidate import Place, Reach, place_of
from disco.endpoints.continuation.methods import Continuation
from disco.endpoints.continuation.prefix_token_ids import proved_vocabulary
from disco.endpoints.contract import Attempt, Capabilities
from disco.endpoints.local_server.cache_estimate import PromptCache
from disco.endpoints.local_server.local_attempt import LocalServerAttempt
from disco.endpoints.local_server.server_info import About, Kind, ask, the_model, unfit_model
from disco.endpoints.local_server.turn_queue import Turns
from disco.endpoints.openai_api.api_endpoint import OpenAIEndpoint
from disco.endpoints.openai_api.error_mapping import failure_from
from disco.endpoints.openai_api.sdk_client import PlainClient
from disco.errors import ConfigurationError, EndpointFailure, FailureKind, LocalModelError
from disco.request import Prefix, Request

__all__ = ["LocalServerEndpoint"]

# How long these servers keep a model that gets no requests (Ollama's `keep_alive`, LM Studio's idle TTL).
_KEPT_S: dict[Kind, float] = {"ollama": 300.0, "lmstudio": 3600.0}
_SHORT = {"max_tokens": 1, "temperature": 0}


class LocalServerEndpoint(OpenAIEndpoint):
    """A model that a server on this machine runs: Ollama, LM Studio, llama-server, vLLM, ...

    The endpoint owns its connections. They are made anew for each request, which costs a tenth of a millisecond on
    loopback. llama-server ends every connection after a streamed answer, and servers that keep connections for a few
    seconds may close one just when the next request is sent. The connections use no proxy, even if the environment
    sets one, and follow no redirect, so that no request leaves the machine.

    Mutable: `about`, `_stale`, `_used_at`, `_vocabulary`, `_waiting` (attempts that are open), and what the base class
    has.

    Args:
        base_url: where the server's API begins; checked by the caller.
        model: the model to request from the server, which replaces the request's model; None: the server's only one.
        api_key: the server's key, if it checks one.
        name: unique within one disco client.
        reach: "device": the server runs on this machine; "own": on another one of the user's.
        continuation: how the server continues an answer.
        context_tokens: prompt and answer together; by default what the server reports.
        parameters: how many weights the model has; by default what the server reports.
        at_once: answers that the server writes at the same time; by default what the server reports.
        assumed_at_once: as many as that where the server reports nothing.
        max_queue: requests that may wait here for their turn; further ones are refused.
        logp: see `OpenAIEndpoint`.
        http_client: for its connections; None: one of its own. Closed with the endpoint.

    Attributes:
        about: what the server has reported about itself; None before the first query.
    """

    _attempt_type: type[LocalServerAttempt] = LocalServerAttempt

    def __init__(
        self,
        *,
        base_url: str,
        model: str | None = None,
        api_key: str | None = None,
        name: str = "local",
        reach: Reach = "device",
        continuation: Continuation = Continuation("auto"),  # noqa: B008 - frozen
        context_tokens: int | None = None,
        parameters: int | None = None,
        at_once: int | None = None,
        assumed_at_once: int = 1,
        max_queue: int = 16,
        logp: bool | None = None,
        http_client: httpx2.AsyncClient | None = None,
    ) -> None:
        self._http = http_client or httpx2.AsyncClient(
            trust_env=False, follow_redirects=False, limits=httpx2.Limits(max_keepalive_connections=0)
        )
        self._own = PlainClient(
            api_key=api_key or "none", base_url=base_url, max_retries=0, http_client=self._http
        )
        super().__init__(
            client=self._own, name=name, continuation=continuation, context_tokens=context_tokens, logp=logp
        )
        self.model = model
        self.about: About | None = None
        self._reach: Reach = reach
        self._parameters = parameters
        self._given_at_once = at_once
        self._assumed_at_once = assumed_at_once
        self._turns = Turns(name, at_once=at_once or assumed_at_once, max_waiting=max_queue)
        self._cache = PromptCache(max(1, at_once or 1))
        self._waiting: set[LocalServerAttempt] = set()
        self._stale = False
        self._used_at: float | None = None
        self._vocabulary: str | None = None

    @property
    def reach(self) -> Reach:
        return self._reach

    @property
    def place(self) -> Place:  # type: ignore[override] # follows from the reach
        return place_of(self._reach)

    @property
    def served_model(self) -> str | None:
        """The server's name for the model; None while that is not known."""
        models = None if self.about is None else self.about.models
        return self.model if not models else the_model(self.model, models)

    @property
    def profile_name(self) -> str:
        """The name under which a device profile of this model is looked for."""
        return (self.served_model or self.name).replace("/", "-").replace(":", "-").lower()

    @property
    def parameters(self) -> int | None:
        """The number of the model's weights; None where it is neither given nor reported."""
        return self._parameters or (None if self.about is None else self.about.parameters)

    @property
    def flops_per_token(self) -> float | None:
        """Two for each weight; None where their number is not known."""
        return None if self.parameters is None else 2.0 * self.parameters

    @property
    def assumes_energy(self) -> bool:
        """Whether the server was queried, and does not report how many weights its model has."""
        return self.about is not None and self.parameters is None

    def capabilities(self, model: str | None = None) -> Capabilities:
        known = super().capabilities(model)
        about = self.about or About()
        context = self._context_tokens or about.context_tokens
        return replace(
            known,
            context_tokens=context,
            ready=self._ready(about),
            announces=True,
            waiting=self._turns.waiting,
        )

    def own_model(self, model: str | None) -> str | None:
        del model  # the request's model is for other endpoints
        return self.served_model

    def _ready(self, about: About) -> bool:
        """Whether the model is in memory; assumed so where the server does not report it."""
        if self._used_at is not None:
            return time.monotonic() - self._used_at < _KEPT_S.get(about.kind, float("inf"))
        return about.loaded is not False

    def open(  # type: ignore[override] # the attempt's type differs: it wraps an attempt of the base class
        self,
        request: Request,
        prefix: Prefix = Prefix(),  # noqa: B008 - frozen
        *,
        wants: frozenset[str] = frozenset(),
    ) -> LocalServerAttempt:
        async def begin() -> tuple[Attempt, float]:
            await self.introduce()
            own = super(LocalServerEndpoint, self).open(self._own_request(request), prefix, wants=wants)
            share = self._cache.share(request.messages)
            tells = self.about is not None and self.about.kind == "llama-server"
            return own, 0.0 if tells else share

        attempt = self._attempt_type(
            turns=self._turns, begin=begin, explained=self._explained, on_close=self._closed
        )
        self._waiting.add(attempt)
        return attempt

    def _own_request(self, request: Request) -> Request:
        """Return the request for this server: with its own model, and without what is meant for other endpoints."""
        params = dict(request.params)
        # Ollama and LM Studio know only the older name and drop the other: the answer would have no limit.
        limit = request.max_tokens
        params.pop("max_completion_tokens", None)
        if limit is not None:
            params["max_tokens"] = limit
        return replace(
            request,
            model=self.served_model or "",
            params=params,
            extra_headers=None,
            extra_query=None,
            responses=None,
        )

    async def introduce(self) -> None:
        """Query the server about itself and its model, unless that is known; nothing of a request is sent before.

        Raises:
            EndpointFailure: the server cannot be reached, has no such model, or would pass prompts on to another
                machine.
        """
        if self.about is not None and not self._stale:
            return
        try:
            about = await ask(self._own, self.model)
        except (openai.OpenAIError, httpx2.HTTPError) as error:
            raise failure_from(error, name=self.name, secrets=(self._own.api_key,)) from error
        unfit = None if about.models is None else unfit_model(self.model, about.models, self.where)
        if about.models is None and self.model is None:
            unfit = f'The server at {self.where} does not list its models. Name one behind "#": "{self.where}#...".'
        if unfit is None and about.runs_at is not None and self._reach != "any":
            leaves = "this machine" if self._reach == "device" else "your machines"
            unfit = (
                f"The model {self.model or the_model(None, about.models or ())!r} of the server at {self.where} "
                f"runs at {about.runs_at}: prompts would leave {leaves}. Use a model that is here, or "
                'say reach="any" to allow it.'
            )
        if unfit is not None:
            raise EndpointFailure(FailureKind.UNSERVED, ConfigurationError(unfit))
        self.about = about
        self._stale = False
        self._turns.at_once = self._given_at_once or about.at_once or self._assumed_at_once
        self._turns.call()

    @property
    def where(self) -> str:
        """The server's address, for messages, without its confidential parts."""
        url = self._own.base_url
        return f"{url.scheme}://{url.host}{f':{url.port}' if url.port else ''}{url.path.rstrip('/')}"

    def _explained(self, failure: EndpointFailure) -> EndpointFailure:
        """Return the failure with a message for the person who runs the server."""
        error = failure.error
        if type(error) is openai.APIConnectionError and isinstance(error.__cause__, httpx2.ConnectError):
            reason = openai.APIConnectionError(
                message=f"Nothing answers at {self.where}. Start the server there, or correct its address.",
                request=error.request,
            )
            reason.__cause__ = error
            return EndpointFailure(failure.kind, reason)
        if failure.kind is FailureKind.BAD_REQUEST:
            # Another endpoint may accept what this server refuses (an unknown parameter, reasoning).
            return EndpointFailure(FailureKind.UNSERVED, error)
        return failure

    def _closed(self, attempt: LocalServerAttempt, finished: bool) -> None:  # noqa: FBT001 - a callback's
        self._waiting.discard(attempt)
        if finished:
            # Only a loaded model's context is reported: so query the server again after its first answer.
            about = self.about
            self._stale = self._used_at is None and about is not None and about.context_tokens is None
            self._used_at = time.monotonic()

    async def warm_up(self) -> None:
        """Query the server about itself, let it load the model, and find out how it continues ("auto").

        Raises:
            LocalModelError: the server cannot be reached, or has no such model.
            ConfigurationError: the model is not named, or would pass prompts on to another machine.
        """
        self._stale = True
        try:
            await self.introduce()
            request = Request([{"role": "user", "content": "Hello"}], model="", params=_SHORT)
            async with self.open(request) as attempt:
                async for _ in attempt:
                    pass
        except EndpointFailure as failure:
            error = self._explained(failure).error
            if isinstance(error, ConfigurationError):
                raise error from None
            raise LocalModelError(f"Endpoint {self.name!r} cannot be used: {error}") from error
        await self.introduce()
        model = self.served_model
        if self.probes and model is not None:
            await self.probe(model)
        if self.about is not None and self.about.file is not None and self._reach == "device":
            self._vocabulary = await proved_vocabulary(self._own, self.about.file)

    def vocabulary(self, model: str | None = None) -> str | None:
        return self._vocabulary or super().vocabulary(model)

    async def aclose(self) -> None:
        """Close every open attempt and the connections. Idempotent."""
        for attempt in list(self._waiting):
            await attempt.aclose()
        await super().aclose()
        await self._own.close()
