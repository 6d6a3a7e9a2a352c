"""`AsyncDisco`: an `openai.AsyncOpenAI` with a second model on this machine; and the same for Azure."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

import anyio
import httpx2
import openai
from openai import AsyncAzureOpenAI, AsyncOpenAI
from openai.pagination import AsyncPage

from disco.client.chat.routed_request import hide, is_model_list
from disco.client.direct.direct_answer import DirectAnswer
from disco.client.http_gateway import may_ask_server, model_list, way_of
from disco.client.request_options import DEFAULT_PRESET
from disco.client.routed_client import RoutedClient, has_signature_of, takes_arguments_of
from disco.client.server_calls import ServerCalls
from disco.client.settings import ClientSettings, SharedParts
from disco.endpoints.openai_api.sdk_client import send_counted
from disco.errors import lay_evidence
from disco.request import Timeouts

if TYPE_CHECKING:
    from openai._models import FinalRequestOptions

    from disco.client.chat.completions import DiscoChat
    from disco.client.endpoint_catalog.backups import Backup
    from disco.client.endpoint_catalog.local_servers import LocalServer
    from disco.client.endpoint_catalog.plugged import Plugin
    from disco.client.endpoint_catalog.splits import Split
    from disco.client.endpoint_catalog.tiers import Tier
    from disco.client.power_watch import PowerSource
    from disco.client.responses.responses_resource import DiscoResponses
    from disco.client.settings import AsyncAzureArguments, Budget, Options, PresetChoice
    from disco.endpoints.continuation import Continuation
    from disco.endpoints.contract import Endpoint
    from disco.endpoints.redaction import Redact
    from disco.endpoints.runtimes import LoraChoice, Runtime
    from disco.endpoints.saved_prompts import PromptCache
    from disco.judging import HistoryStore
    from disco.profiles import DeviceProfile, ServerProfile
    from disco.rates import PriceChoice
    from disco.telemetry import OnRoute

__all__ = ["AsyncAzureDisco", "AsyncDisco"]

_UNSET: Any = openai.not_given
CLOSE_S = 10.0  # longest time that closing takes; a model may be loading


class AsyncRouting(RoutedClient):
    """What makes one of the SDK's asynchronous clients route its requests. A mixin in front of that client."""

    @cached_property
    def chat(self) -> DiscoChat:
        """`client.chat`, with routed completions."""
        from disco.client.chat.completions import DiscoChat  # noqa: PLC0415 - numpy loads with it

        return DiscoChat(self)  # type: ignore[arg-type] # the mixin is in front of an `AsyncOpenAI`

    @cached_property
    def responses(self) -> DiscoResponses:
        """`client.responses`, routed."""
        from disco.client.responses.responses_resource import DiscoResponses  # noqa: PLC0415 - rarely needed

        return DiscoResponses(self)  # type: ignore[arg-type] # as above

    async def warm_up(self, model: str | None = None) -> None:
        """Load the local model, open the connection and find out how the server continues, all at once.

        Does not raise when the server or a tier is unreachable, refuses its key or does not list the model: a warning
        says the latter two, and the first request will raise it, or use another endpoint. No endpoint is contacted that
        the preset or `default_options` put out of reach.

        Args:
            model: the server's model to probe under `continuation="auto"` (one short request). None: the probe is
                made only if the server has a single model.

        Raises:
            DiscoError: the local model cannot be loaded; the message says why.
        """
        await self.router.warm_up(self.server, model, self.default_options)

    @has_signature_of(AsyncOpenAI.copy, "default_options", "redact")
    def copy(self, **changes: Any) -> Self:
        """As the SDK's `copy`. The copy shares the local model and the statistics; `redact=None` ends the redaction."""
        return super().copy(**self._changes_of_copy(changes))  # type: ignore[misc, no-any-return]

    with_options = copy

    async def request(
        self, cast_to: Any, options: FinalRequestOptions, *, stream: bool = False, stream_cls: Any = None
    ) -> Any:
        """Send a request the SDK's own way, or let a session answer it.

        A session answers chat completions and responses that more than one endpoint could serve, or for which
        there is something else to decide. Every other request takes the SDK's own way to the server, unless the
        request must stay on this machine.

        Raises:
            NoEndpointError: no server is configured, or the preset or the request keeps everything on this machine.
        """
        try:
            return await self._request(cast_to, options, stream=stream, stream_cls=stream_cls)
        except Exception as error:
            lay_evidence(error)
            raise

    async def _request(
        self, cast_to: Any, options: FinalRequestOptions, *, stream: bool, stream_cls: Any
    ) -> Any:
        if is_model_list(options) and not may_ask_server(self, options):
            return await self._process(cast_to, options, model_list(self), stream=stream, parser=stream_cls)
        way = way_of(self, options, stream=stream)
        if way is None or isinstance(way, DirectAnswer):
            try:
                if way is not None:
                    return await way.asked(self._ask_server, cast_to, options, stream, stream_cls)
                answer = await self._ask_server(cast_to, options, stream=stream, stream_cls=stream_cls)
            except openai.APIError as error:
                hide(error, self, options)
                raise
            if is_model_list(options) and isinstance(answer, AsyncPage):
                answer.data[:0] = self.local_models()
            return answer
        from disco.client.chat.completions import answer_of, is_typed  # noqa: PLC0415 - numpy loads with it
        from disco.client.chat.object_stream import quick_stream_class  # noqa: PLC0415 - as above
        from disco.client.chat.routed_results import read_by_the_sdk, routed  # noqa: PLC0415 - as above
        from disco.client.http_gateway import respond  # noqa: PLC0415

        if is_typed(cast_to, options, stream_cls):
            return await answer_of(self, way, options, stream=stream)
        response, source = await respond(self, way, options, stream=stream)
        parser = quick_stream_class(stream_cls)
        with read_by_the_sdk(source):
            made = await self._process(cast_to, options, response, stream=stream, parser=parser)
        return routed(made, source)

    async def _ask_server(
        self, cast_to: Any, options: FinalRequestOptions, *, stream: bool = False, stream_cls: Any = None
    ) -> Any:
        """Send a request to the server the SDK's own way, past the routing."""
        return await super().request(cast_to, options, stream=stream, stream_cls=stream_cls)  # type: ignore[misc]

    async def _process(
        self,
        cast_to: Any,
        options: FinalRequestOptions,
        response: httpx2.Response,
        *,
        stream: bool,
        parser: Any,
    ) -> Any:
        """Return what the SDK makes of a response that no server sent."""
        sdk: Any = self
        return await sdk._process_response(  # noqa: SLF001 - the SDK's own part of this client
            cast_to=sdk._maybe_override_cast_to(cast_to, options),  # noqa: SLF001
            options=options,
            response=response,
            stream=stream,
            stream_cls=parser,
        )

    async def _send_request(self, request: httpx2.Request, *, stream: bool, **more: Any) -> httpx2.Response:
        return await send_counted(super()._send_request, request, stream=stream, **more)  # type: ignore[misc]

    def _server_calls(self) -> AsyncOpenAI:
        return ServerCalls(self)  # type: ignore[return-value] # all of the SDK's client that an endpoint uses

    async def close(self) -> None:
        """Stop every answer in progress, free the model, close the connections. Idempotent."""
        # Shielded: nothing may stay running or open, even if the application is being cancelled.
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_S):
            if self._owns_router:
                await self.router.aclose()
            if self.server is not None:
                await self.server.aclose()
            await super().close()  # type: ignore[misc]


class AsyncDisco(AsyncRouting, AsyncOpenAI):
    """One client, two models: llama.cpp on this machine and the server behind `base_url`.

    An `openai.AsyncOpenAI` in every respect. `chat.completions.create` is routed; every other call passes
    through to the server. Nothing is loaded or connected before the first request or `warm_up()`.

    Args:
        local: the device's model: a name (`"smollm2-135m"`), the path of a GGUF file, `"hf:owner/repo/file"`,
            the address of a server on this machine (`"http://localhost:11434/v1#qwen3:4b"`), a `disco.LocalServer`,
            an endpoint that an installed package adds (`"command:llm -m qwen"`, or a `disco.Plugin`), or an endpoint
            object (which the caller closes). None: no model on this machine.
        runtime: what runs a local model given by name, always in a process of its own: `"engine"` (disco's own over
            llama.cpp), `"llama-server"` (llama.cpp's own server), or `"auto"`: the engine where it can be loaded and no
            `mmproj` is given, else llama-server. If the process crashes, its answers fail over, and it is started
            again.
        context_tokens: the longest prompt and answer together of such a model. Default: what it was trained with, as
            far as half of the free memory holds its cache. More than it was trained with is refused.
        lora: LoRA adapters that are added to such a model's weights for all answers: GGUF files, or pairs of a file and
            how much of it is added (1: all, which is the default). With other adapters it is another model: nothing
            that was learnt or saved of one counts for the other.
        mmproj: the GGUF file of the projector with which such a model sees images, published beside many models. Only
            llama-server uses one.
        preset: the name of a preset (`"server-first"`, `"balanced"`, `"cheap"`, `"fast"`, `"cascade"`, `"assist"`,
            `"speech"`, `"private"`), the path of a preset file as a `Path` (a text that ends in ".toml" works, too, but
            type checkers take it for a mistyped name), or a `Preset`. Without one, the server answers, and the other
            endpoints take over when it fails, refuses or is late.
        policy: the former name of `preset`.
        continuation: how the server is made to continue a half-written answer: `"auto"` (found out by a probe, at the
            latest when an answer needs it), `"none"`, or a `Continuation`.
        device_profile: the device's profile, or its name or path. Default: the profile that `disco profile` saved
            for this model; without one, cautious figures that measurements correct.
        server_profile: the server's profile, or its name or path. Its TTFT distribution is used until the client
            has measured its own.
        price: USD per million (input, output) tokens of the server's model, with a third number for cached input and a
            fourth for input that is written into a cache; or a name in the price table, such as `"azure/gpt-4o-mini"`
            for a deployment. Default: the price table's for the model and the server's host (docs/how-to/prices.md).
        tiers: models between the local one and the server, from the smallest to the best: `disco.Tier`, `disco.Split`,
            endpoints of installed packages (as for `local`), or endpoint objects (which the caller closes). With them,
            no `api_key` is needed. Where no preset is named, they take over behind the backups, the best first. Under
            `preset="cascade"` an answer may rise through them; under other presets they are further servers.
        backups: further servers, each with its own URL, key, model and price (`disco.Backup`), or endpoints of
            installed packages (as for `local`). When the first server fails, refuses or is late, they take over, the
            cheapest first; while it cools down, the cheapest takes its place in the preset's policy. Backups get
            neither requests that must stay on this machine nor calls that pass through.
        histories: where a cascade keeps the scores of its tiers between runs, numbers only: a file, or a
            `disco.judging.HistoryStore`. None: in the state file; without one, they last as long as the client.
        state: the state file, in which all programs of this user on this machine keep what they learnt and spent:
            numbers, never a text. None: the platform's folder for state, or what the environment variable `DISCO_STATE`
            names. False: no file. A path: that file.
        prompt_cache: save what the local model has read of system prompts and long conversations on disk, so that it
            does not read them again after a restart. False: nothing is saved. True: in the platform's folder for
            caches. A path: in that folder. Or a `disco.PromptCache`. The files hold texts, as tokens: see
            docs/how-to/warm-start.md. Private prompts are not saved unless `PromptCache(private=True)` says so.
        budget: the most that may be spent, by all programs of the user together: `{"usd": 5, "per": "month"}` is for
            each calendar month in UTC. The keys are those of the preset's `[limits]`, which this replaces: `usd`,
            `server_tokens`, `device_tokens`, `per` ("hour", "day", "week" or "month"), or in its place `window_s`
            (every span of so many seconds), `unreported`, and `account` (only clients with the same one share what is
            counted: name one to keep tests and production apart). Its type is `disco.Budget`; see
            docs/how-to/budgets.md.
        timeouts: the four clocks of each attempt, in seconds. The SDK's `timeout` sets the clocks for silence.
        default_options: options for every request, as in `extra_body={"disco": {...}}`; their type is `disco.Options`.
            The options of a request take precedence. `with_options(default_options=...)` adds to them.
        redact: a function that is given each text of a request and returns the parts to hide, with their kinds:
            `{"ann@example.org": "EMAIL"}`. No endpoint but those on this machine gets these parts; it gets
            `[EMAIL_1]`, and the answer has the original in its place. Requests that disco does not route are refused.
            See docs/how-to/redaction.md for the limits.
        speculate: whether the local model drafts for a server that verifies drafts (`disco serve --verify`). The text
            is the server's own either way. `"auto"`: where that is predicted to save time; `"always"`; `"off"`: the
            server is not even asked whether it verifies. The preset's `[speculate]` says how.
        power: where the state of this machine (battery, clock, load, network) is known from, which changes plans as the
            preset's `[power]` says. None: psutil, where it is installed, unless the environment variable `DISCO_POWER`
            is "off". `False`: nothing is read. An object with a method `read()` that returns `disco.PowerReadings` is
            asked every few seconds, in a thread; a function that returns them is called in the event loop for each
            request, and must not block. See docs/how-to/power.md.
        shadow: another preset, as `preset`, that plans every routed answer, too, without being carried out;
            `route.shadow` says what it would have done. None: no other preset plans. See docs/how-to/shadow.md.
        attach: whether a running `disco serve` of this user, which is another program, gets the requests and lends its
            model in place of a copy here. `False`: never. `"auto"`: if it is the same file; `True`: also if only the
            name is the same. See docs/how-to/attach.md.
        on_route: called in the event loop with the route record of every finished answer. Must not block. May be
            a list of callables. An exception from one of them is logged and does not affect the answer. A
            `disco.RouteLog` writes the records to a file.
        api_key, base_url, organization, project, timeout, default_headers, default_query, http_client: as for
            `AsyncOpenAI`.
        max_retries: how often each endpoint is tried again, once none is left that has not failed. The session does
            that.

    Raises:
        disco.errors.ConfigurationError: unknown preset or profile, or settings that contradict each other.
        disco.errors.ModelFileError: `local` is a path, and there is no GGUF file.
        openai.OpenAIError: neither a key nor a local model was given.
    """

    @takes_arguments_of(AsyncOpenAI.__init__)
    def __init__(
        self,
        *,
        local: str | os.PathLike[str] | Endpoint | LocalServer | Plugin | None = None,
        runtime: Runtime = "auto",
        context_tokens: int | None = None,
        lora: LoraChoice | Sequence[LoraChoice] = (),
        mmproj: str | os.PathLike[str] | None = None,
        preset: PresetChoice = DEFAULT_PRESET,
        policy: PresetChoice | None = None,
        continuation: str | Continuation = "auto",
        device_profile: str | os.PathLike[str] | DeviceProfile | None = None,
        server_profile: str | os.PathLike[str] | ServerProfile | None = None,
        price: PriceChoice | None = None,
        tiers: Sequence[Tier | Split | Endpoint | Plugin | str] = (),
        backups: Sequence[Backup | Plugin | str] = (),
        budget: Budget | None = None,
        histories: str | os.PathLike[str] | HistoryStore | None = None,
        state: str | os.PathLike[str] | bool | None = None,
        prompt_cache: bool | str | os.PathLike[str] | PromptCache = False,
        timeouts: Timeouts | None = None,
        default_options: Options | None = None,
        redact: Redact | None = None,
        speculate: Literal["auto", "always", "off"] = "off",
        power: PowerSource = None,
        shadow: PresetChoice | None = None,
        attach: Literal["auto"] | bool = False,
        on_route: OnRoute | None = None,
        api_key: str | Callable[[], Awaitable[str]] | None = None,
        base_url: str | httpx2.URL | None = _UNSET,
        organization: str | None = None,
        project: str | None = None,
        timeout: float | httpx2.Timeout | None = _UNSET,
        max_retries: int = openai.DEFAULT_MAX_RETRIES,
        default_headers: Mapping[str, str] | None = None,
        default_query: Mapping[str, object] | None = None,
        http_client: httpx2.AsyncClient | None = None,
        _shared: SharedParts | None = None,
        **more: Any,  # the SDK's other arguments: other kinds of credentials, addresses by region
    ) -> None:
        own = ClientSettings(
            local=local,
            runtime=runtime,
            context_tokens=context_tokens,
            lora=lora,
            mmproj=mmproj,
            preset=preset,
            policy=policy,
            continuation=continuation,
            device_profile=device_profile,
            server_profile=server_profile,
            price=price,
            tiers=tiers,
            backups=backups,
            budget=budget,
            histories=histories,
            state=state,
            prompt_cache=prompt_cache,
            timeouts=timeouts,
            default_options=default_options,
            redact=redact,
            speculate=speculate,
            power=power,
            shadow=shadow,
            attach=attach,
            on_route=on_route,
        )
        sdk = {
            "api_key": api_key,
            "base_url": base_url,
            "organization": organization,
            "project": project,
            "timeout": timeout,
            "max_retries": max_retries,
            "default_headers": default_headers,
            "default_query": default_query,
            "http_client": http_client,
            **more,
        }
        self._begin(own, _shared, sdk)


class AsyncAzureDisco(AsyncRouting, AsyncAzureOpenAI):
    """`AsyncDisco` for Azure: an `openai.AsyncAzureOpenAI` in every respect.

    Args:
        given: the arguments of `AsyncDisco` from `local` to `on_route`, and those of `AsyncAzureOpenAI`.

    Raises:
        disco.errors.ConfigurationError, disco.errors.ModelFileError: as for `AsyncDisco`.
        openai.OpenAIError: as for `AsyncAzureOpenAI`.
    """

    @takes_arguments_of(AsyncAzureOpenAI.__init__)
    def __init__(self, *, _shared: SharedParts | None = None, **given: Unpack[AsyncAzureArguments]) -> None:
        arguments: dict[str, Any] = dict(given)
        self._begin(ClientSettings.taken_from(arguments), _shared, arguments)
