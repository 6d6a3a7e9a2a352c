"""An OpenAI-compatible server as the local side."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import anyio
import httpx2
import openai

from disco.candidate import Place, Reach, place_of
from disco.endpoints.continuation.methods import Continuation
from disco.endpoints.continuation.prefix_token_ids import proved_vocabulary
from disco.endpoints.contract import Attempt, Capabilities
from disco.endpoints.local_server.cache_estimate import PromptCache
from disco.endpoints.local_server.local_attempt import LocalServerAttempt
from disco.endpoints.local_server.model_load import ModelLoad
from disco.endpoints.local_server.server_info import (
    TELL_WHAT_IS_LOADED,
    About,
    Kind,
    StillLoadingError,
    ask,
    ask_what_is_loaded,
    the_model,
    unfit_model,
)
from disco.endpoints.local_server.turn_queue import Turns
from disco.endpoints.local_server.unserved import (
    features_of_server,
    lacks_of_server,
    sees_none,
    without_what_is_dropped,
)
from disco.endpoints.openai_api.api_endpoint import OpenAIEndpoint
from disco.endpoints.openai_api.error_mapping import failure_from
from disco.endpoints.openai_api.http_transport import estimated_tokens
from disco.endpoints.openai_api.sdk_client import PlainClient
from disco.errors import (
    ConfigurationError,
    ContextLengthError,
    EndpointFailure,
    FailureKind,
    LocalModelError,
    cut,
)
from disco.request import Prefix, Request
from disco.session.cut_prompt import least_tokens

__all__ = ["LocalServerEndpoint"]

# How long these servers keep a model that gets no requests (Ollama's `keep_alive`, LM Studio's idle TTL).
_KEPT_S: Final[dict[Kind, float]] = {"ollama": 300.0, "lmstudio": 3600.0}
# After an answer or a look, the model is taken to be loaded for so long: another program may have it unloaded.
_SURE_S: Final = 10.0
_LOOK_S: Final = 0.25  # limit for what a plan waits for
_LOOK_AGAIN_S: Final = 10.0  # after a look in vain
_CONNECT_S: Final = 10.0
_POLL_S: Final = 0.5  # between two questions to a server that still loads
# A request that was given up after so long, with nothing answered, may have waited for the model, s.
_GIVEN_UP_S: Final = 1.0
_HELLO: Final = [{"role": "user", "content": "Hello"}]
_SHORT: Final = {"max_tokens": 1, "temperature": 0}


class LocalServerEndpoint(OpenAIEndpoint):
    """A model that a server on this machine runs: Ollama, LM Studio, llama-server, vLLM, ...

    The endpoint owns its connections. They are made anew for each request, which costs a tenth of a millisecond on
    loopback. llama-server ends every connection after a streamed answer, and servers that keep connections for a few
    seconds may close one just when the next request is sent. The connections use no proxy, even if the environment
    sets one, and follow no redirect, so that no request leaves the machine.

    Loading has a clock of its own (`ModelLoad`). Where the server tells that the model is not loaded, an attempt has it
    loaded first, and waits for it as for its turn. Where the server does not tell, a request that was given up before
    anything came is taken for one that waited for the model, which is then loaded in the background; those that follow
    wait for it.

    Mutable: `about`, `_stale`, `_used_at`, `_looked_at`, `_again_at`, `_vocabulary`, `_waiting` (attempts that are
    open), and what the base class has.

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
        max_queue: int = 256,
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
        # On the clock of `time.monotonic`: the last whole answer, the last time the server told of itself, and from
        # when on `look` may ask again.
        self._used_at = self._looked_at = self._again_at = float("-inf")
        self._vocabulary: str | None = None
        self._load = ModelLoad(self._load_model, name=name)

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
        about, since = self.about or About(), self._load.since
        ready = since is None and self._ready(about)
        return replace(
            known,
            context_tokens=self._room,
            features=features_of_server(about),
            lacks=lacks_of_server(about),
            ready=ready,
            loads=about.kind in TELL_WHAT_IS_LOADED or since is not None,
            loading_s=None if since is None else time.monotonic() - since,
            load_s=self._load.took_s if ready else None,
            announces=True,
            waiting=self._turns.waiting,
        )

    def own_model(self, model: str | None) -> str | None:
        del model  # the request's model is for other endpoints
        return self.served_model

    @property
    def _room(self) -> int | None:
        """The context that counts: what the user says, but no more than a loaded model has."""
        about = self.about or About()
        known = [
            self._context_tokens,
            about.context_tokens if about.loaded or not self._context_tokens else None,
        ]
        return min((tokens for tokens in known if tokens is not None), default=None)

    def _ready(self, about: About) -> bool:
        """Whether the model is in memory; assumed so where the server does not report it."""
        unseen_s = time.monotonic() - max(self._used_at, self._looked_at)
        return about.loaded is not False and unseen_s <= _KEPT_S.get(about.kind, float("inf"))

    def open(  # type: ignore[override] # the attempt's type differs: it wraps an attempt of the base class
        self,
        request: Request,
        prefix: Prefix = Prefix(),  # noqa: B008 - frozen
        *,
        wants: frozenset[str] = frozenset(),
    ) -> LocalServerAttempt:
        async def begin() -> tuple[Attempt, float]:
            await self.load()
            self._check_length(request, prefix)
            own = self._open_at_server(request, prefix, wants)
            share = self._cache.share(request.messages)
            tells = self.about is not None and self.about.kind == "llama-server"
            return own, 0.0 if tells else share

        attempt = self._attempt_type(
            turns=self._turns, begin=begin, explained=self._explained, on_close=self._closed
        )
        self._waiting.add(attempt)
        return attempt

    def _open_at_server(self, request: Request, prefix: Prefix, wants: frozenset[str]) -> Attempt:
        """Return the attempt at the server, once its turn has come."""
        return super().open(self._own_request(request), prefix, wants=wants)

    def _own_request(self, request: Request) -> Request:
        """Return the request for this server: with its own model, and without what is meant for other endpoints."""
        params = dict(request.params)
        # Ollama and LM Studio know only the older name and drop the other: the answer would have no limit.
        limit = request.max_tokens
        params.pop("max_completion_tokens", None)
        if limit is not None:
            params["max_tokens"] = limit
        stop = params.get("stop")
        if stop == "" or (isinstance(stop, list | tuple) and "" in stop):
            # llama-server finds an empty text at once, so the answer would be empty.
            params["stop"] = list(request.stops) or None
        return replace(
            request,
            model=self.served_model or "",
            params=without_what_is_dropped(params, self.about or About(), endpoint=self.name),
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
            try:
                about = await ask(self._own, self.model)
            except StillLoadingError:
                await self._load.wait()
                about = await ask(self._own, self.model)
        except StillLoadingError as still:
            raise self._failure(still.error) from still
        except (openai.OpenAIError, httpx2.HTTPError) as error:
            raise self._failure(error) from error
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
        self._stale, self._looked_at = False, time.monotonic()
        self._turns.at_once = self._given_at_once or about.at_once or self._assumed_at_once
        self._turns.call()

    def _failure(self, error: Exception) -> EndpointFailure:
        return failure_from(error, name=self.name, secrets=(self._own.api_key,))

    async def look(self) -> None:
        now, about = time.monotonic(), self.about
        is_known = about is not None and not self._stale and not self._may_have_unloaded(about)
        if is_known or self._load.since is not None or now < self._again_at:
            return
        self._again_at = now + _LOOK_AGAIN_S
        with anyio.move_on_after(_LOOK_S), suppress(EndpointFailure):
            await self.introduce()
            await self._look_whether_loaded()
            self._again_at = float("-inf")

    def _may_have_unloaded(self, about: About) -> bool:
        """Whether the server could tell that the model is not loaded any more, and was not asked for a while."""
        unseen_s = time.monotonic() - max(self._used_at, self._looked_at)
        return about.kind in TELL_WHAT_IS_LOADED and unseen_s >= _SURE_S

    async def _look_whether_loaded(self) -> bool:
        """Return whether the model is loaded, as far as the server tells."""
        if self.about is not None and self._may_have_unloaded(self.about):
            await self._ask_what_is_loaded(self.about)
        return self.about is None or self.about.loaded is not False

    async def _ask_what_is_loaded(self, about: About) -> None:
        self.about = await ask_what_is_loaded(self._own, about, self.served_model)
        self._looked_at = time.monotonic()

    async def load(self) -> None:
        """Have the server load its model unless it is loaded, and wait for that.

        Raises:
            EndpointFailure: the server cannot be reached, has no such model, cannot load it, or would pass prompts on
                to another machine.
        """
        await self._load.ready()
        if self._load.since is not None:
            await self._load.wait()
        await self.introduce()
        if not await self._look_whether_loaded():
            await self._load.wait()

    async def _load_model(self) -> None:
        """Ask the server for what makes it load the model; nothing of a request is sent."""
        about = self.about
        try:
            if about is None:
                await self._until_it_answers()
            elif about.kind == "ollama":
                # Without a prompt it only loads.
                body = {"model": self.served_model, "stream": False}
                url = str(self._own.base_url).rstrip("/").removesuffix("/v1")
                options: Any = {"max_retries": 0, "timeout": httpx2.Timeout(None, connect=_CONNECT_S)}
                await self._own.post(f"{url}/api/generate", body=body, cast_to=object, options=options)
            else:
                request = Request(_HELLO, model=self.served_model or "", params=_SHORT)
                async with super().open(request) as attempt:
                    async for _ in attempt:
                        pass
        except (openai.OpenAIError, httpx2.HTTPError) as error:
            raise self._failure(error) from error
        if about is not None and about.kind in TELL_WHAT_IS_LOADED:
            await self._ask_what_is_loaded(about)

    async def _until_it_answers(self) -> None:
        while True:
            try:
                await ask(self._own, self.model)
            except StillLoadingError:
                await anyio.sleep(_POLL_S)
            else:
                return

    def _check_length(self, request: Request, prefix: Prefix) -> None:
        """Refuse a prompt that a server would cut without a word: its context may have become known after the plan.

        Raises:
            EndpointFailure: CONTEXT_LENGTH.
        """
        room = self._room
        if room is None or self.about is None or self.about.kind not in TELL_WHAT_IS_LOADED:
            return
        tokens = max(estimated_tokens(request, prefix), least_tokens(request))
        if tokens >= room:
            message = (
                f"Endpoint {self.name!r} has room for {room:,} tokens, and the prompt has about {tokens:,}. Raise the "
                "context of its server, shorten the prompt, or configure an endpoint with a longer context."
            )
            raise EndpointFailure(FailureKind.CONTEXT_LENGTH, ContextLengthError(message))

    @property
    def where(self) -> str:
        """The server's address, for messages, without its confidential parts."""
        url = self._own.base_url
        return f"{url.scheme}://{url.host}{f':{url.port}' if url.port else ''}{url.path.rstrip('/')}"

    def _explained(self, failure: EndpointFailure) -> EndpointFailure:
        """Return the failure with a message for the person who runs the server."""
        error = failure.error
        if (
            blind := sees_none(error, self.capabilities().lacks.get("images"), endpoint=self.name)
        ) is not None:
            return blind
        if type(error) is openai.APIConnectionError and isinstance(error.__cause__, httpx2.ConnectError):
            reason = openai.APIConnectionError(
                message=f"Nothing answers at {self.where}. Start the server there, or correct its address.",
                request=error.request,
            )
            reason.__cause__ = error
            return EndpointFailure(failure.kind, reason)
        if failure.kind is FailureKind.CONTEXT_LENGTH and isinstance(error, openai.APIError):
            return EndpointFailure(failure.kind, self._too_long(error))
        if failure.kind is FailureKind.BAD_REQUEST:
            # Another endpoint may accept what this server refuses (an unknown parameter, reasoning).
            return EndpointFailure(FailureKind.UNSERVED, error)
        return failure

    def _too_long(self, error: openai.APIError) -> ContextLengthError:
        """Return the error in the words by which programs know it; these servers have words of their own."""
        said = error.body if isinstance(error.body, Mapping) else {}
        context, tokens = said.get("n_ctx") or self.capabilities().context_tokens, said.get("n_prompt_tokens")
        if isinstance(context, int) and isinstance(tokens, int):  # llama-server tells both
            found = ContextLengthError.of(context, tokens)
        else:
            limit = "" if context is None else f"This model's maximum context length is {context} tokens. "
            found = ContextLengthError(f"{limit}The server at {self.where} says: {cut(error.message, 300)}")
        found.__cause__ = error
        return found

    def _closed(self, attempt: LocalServerAttempt, finished: bool) -> None:  # noqa: FBT001 - a callback's
        self._waiting.discard(attempt)
        about = self.about
        if finished:
            self._used_at = time.monotonic()
            if about is not None and about.loaded is False:
                self.about = replace(about, loaded=True)
        elif (
            about is not None
            and about.kind == "other"
            and self._used_at == float("-inf")
            and attempt.unanswered_s >= _GIVEN_UP_S
        ):
            self._load.begin()

    async def warm_up(self) -> None:
        """Query the server about itself, let it load the model, and find out how it continues ("auto").

        Raises:
            LocalModelError: the server cannot be reached, or has no such model.
            ConfigurationError: the model is not named, or would pass prompts on to another machine.
        """
        self._stale = True
        try:
            await self.load()
            if self.about is None or self.about.loaded is not True:
                await self._load.wait()
        except EndpointFailure as failure:
            error = self._explained(failure).error
            if isinstance(error, ConfigurationError):
                raise error from None
            raise LocalModelError(f"Endpoint {self.name!r} cannot be used: {error}") from error
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
        await self._load.aclose()
        await super().aclose()
        await self._own.close()
