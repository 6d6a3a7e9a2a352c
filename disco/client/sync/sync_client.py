"""`Disco`: an `openai.OpenAI` with a second model on this machine; and the same for Azure."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

import anyio
import httpx2
import openai
from openai import AsyncOpenAI, AzureOpenAI, Omit, OpenAI
from openai.pagination import SyncPage
from openai.resources.chat import Chat
from openai.resources.chat.completions import Completions

from disco.client.chat.routed_request import hide, is_model_list
from disco.client.direct.direct_answer import DirectAnswer
from disco.client.http_gateway import may_ask_server, model_list, respond, way_of
from disco.client.request_options import DEFAULT_PRESET
from disco.client.routed_client import RoutedClient, has_signature_of, takes_arguments_of
from disco.client.settings import ClientSettings, SharedParts
from disco.client.sync.portal import Portal
from disco.client.sync.sync_calls import Connections, SyncServerCalls
from disco.endpoints.openai_api.http_transport import TrafficCounter
from disco.errors import lay_evidence
from disco.request import Timeouts

if TYPE_CHECKING:
    from openai._models import FinalRequestOptions
    from openai.lib._parsing import ResponseFormatT

    from disco.client.chat.chat_chunks import RoutedChatCompletion
    from disco.client.chat.helper_events import SyncStreamManager
    from disco.client.chat.routed_results import RoutedParsedChatCompletion
    from disco.client.chat.stream_types import DiscoSyncStream
    from disco.client.endpoint_catalog.backups import Backup
    from disco.client.endpoint_catalog.local_servers import LocalServer
    from disco.client.endpoint_catalog.plugged import Plugin
    from disco.client.endpoint_catalog.splits import Split
    from disco.client.endpoint_catalog.tiers import Tier
    from disco.client.power_watch import PowerSource
    from disco.client.responses.responses_resource import DiscoSyncResponses
    from disco.client.settings import AzureArguments, Budget, Options, PresetChoice
    from disco.endpoints.continuation import Continuation
    from disco.endpoints.contract import Endpoint
    from disco.endpoints.redaction import Redact
    from disco.endpoints.runtimes import LoraChoice, Runtime
    from disco.endpoints.saved_prompts import PromptCache
    from disco.judging import HistoryStore
    from disco.profiles import DeviceProfile, ServerProfile
    from disco.rates import PriceChoice
    from disco.telemetry import OnRoute

__all__ = ["AzureDisco", "Disco"]

_UNSET: Any = openai.not_given
CLOSE_S = 10.0  # longest time that closing takes; a model may be loading


class SyncRouting(RoutedClient):
    """What makes one of the SDK's synchronous clients route its requests. A mixin in front of that client."""

    def _begin(self, settings: ClientSettings, shared: SharedParts | None, sdk: dict[str, Any]) -> None:
        portal: Portal | None = sdk.pop("_portal", None)
        self._owns_portal = portal is None
        self._portal = portal or Portal()
        # A copy has the connections of its original, unless it was given an HTTP client of its own.
        connections: Connections | None = sdk.pop("_connections", None)
        self._has_own_http = connections is None and sdk.get("http_client") is not None
        self._connections = connections or Connections()
        super()._begin(settings, shared, sdk)

    @cached_property
    def chat(self) -> DiscoSyncChat:
        """`client.chat`, with routed completions."""
        return DiscoSyncChat(self)  # type: ignore[arg-type] # the mixin is in front of an `OpenAI`

    @cached_property
    def responses(self) -> DiscoSyncResponses:
        """`client.responses`, routed."""
        from disco.client.responses.responses_resource import DiscoSyncResponses  # noqa: PLC0415 - rarely needed

        return DiscoSyncResponses(self)  # type: ignore[arg-type] # as above

    def warm_up(self, model: str | None = None) -> None:
        """As `AsyncDisco.warm_up`."""
        self._portal.run(self.router.warm_up, self.server, model, self.default_options)

    @has_signature_of(OpenAI.copy, "default_options", "redact")
    def copy(self, **changes: Any) -> Self:
        """As the SDK's `copy`. The copy shares the local model and the statistics."""
        added: dict[str, Any] = {"_portal": self._portal}
        if changes.get("http_client") is None and not self._has_own_http:
            added["_connections"] = self._connections
        extra = {**added, **changes.pop("_extra_kwargs", {})}
        return super().copy(**self._changes_of_copy({**changes, "_extra_kwargs": extra}))  # type: ignore[misc, no-any-return]

    with_options = copy

    def request(
        self, cast_to: Any, options: FinalRequestOptions, *, stream: bool = False, stream_cls: Any = None
    ) -> Any:
        """As `AsyncDisco.request`."""
        try:
            return self._request(cast_to, options, stream=stream, stream_cls=stream_cls)
        except Exception as error:
            lay_evidence(error)
            raise

    def _request(self, cast_to: Any, options: FinalRequestOptions, *, stream: bool, stream_cls: Any) -> Any:
        if is_model_list(options) and not may_ask_server(self, options):
            return self._process(cast_to, options, model_list(self), stream=stream, parser=stream_cls)
        way = way_of(self, options, stream=stream)
        if way is None or isinstance(way, DirectAnswer):
            try:
                if way is not None:
                    return way.asked_sync(self._ask_server, cast_to, options, stream, stream_cls)
                answer = self._ask_server(cast_to, options, stream=stream, stream_cls=stream_cls)
            except openai.APIError as error:
                hide(error, self, options)
                raise
            if is_model_list(options) and isinstance(answer, SyncPage):
                answer.data[:0] = self.local_models()
            return answer
        from disco.client.chat.answer_stream import SessionStream  # noqa: PLC0415 - numpy loads with it
        from disco.client.chat.completions import answer_of, is_typed  # noqa: PLC0415 - as above
        from disco.client.chat.object_stream import quick_stream_class  # noqa: PLC0415 - as above
        from disco.client.chat.routed_results import read_by_the_sdk, routed  # noqa: PLC0415 - as above
        from disco.client.sync.sync_stream import SyncSessionStream, sync_response  # noqa: PLC0415 - as above

        if is_typed(cast_to, options, stream_cls):
            made = self._portal.run(partial(answer_of, self, way, options, stream=stream))
            return SyncSessionStream(made, self._portal) if isinstance(made, SessionStream) else made
        response, source = self._portal.run(partial(respond, self, way, options, stream=stream))
        same = sync_response(response, self._portal)
        parser = quick_stream_class(stream_cls)
        with read_by_the_sdk(source):
            made = self._process(cast_to, options, same, stream=stream, parser=parser)
        return routed(made, source)

    def _ask_server(
        self, cast_to: Any, options: FinalRequestOptions, *, stream: bool = False, stream_cls: Any = None
    ) -> Any:
        """Send a request to the server the SDK's own way, past the routing."""
        return super().request(cast_to, options, stream=stream, stream_cls=stream_cls)  # type: ignore[misc]

    def _process(
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
        return sdk._process_response(  # noqa: SLF001 - the SDK's own part of this client
            cast_to=sdk._maybe_override_cast_to(cast_to, options),  # noqa: SLF001
            options=options,
            response=response,
            stream=stream,
            stream_cls=parser,
        )

    def _send_uncounted(self, request: httpx2.Request, *, stream: bool, **more: Any) -> httpx2.Response:
        """Send a request as the SDK does."""
        return super()._send_request(request, stream=stream, **more)  # type: ignore[misc, no-any-return]

    def _send_request(self, request: httpx2.Request, *, stream: bool, **more: Any) -> httpx2.Response:
        counter = TrafficCounter.current()
        if counter is None:
            return self._send_uncounted(request, stream=stream, **more)
        counter.sending(request)
        try:
            response = self._send_uncounted(request, stream=stream, **more)
        except Exception as error:
            counter.failed(error)
            raise
        counter.answered(response)
        return response

    def _server_calls(self) -> AsyncOpenAI:
        return SyncServerCalls(self, self._connections, has_own_http=self._has_own_http)

    def close(self) -> None:
        """Stop every answer in progress, free the model, close the connections, end the thread. Idempotent."""
        if self._owns_portal and self._portal.is_open:
            self._portal.run(self._close_routing)
            self._portal.close()
        super().close()  # type: ignore[misc]

    async def _close_routing(self) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_S):
            if self._owns_router:
                await self.router.aclose()
            if self.server is not None:
                await self.server.aclose()
                await self._connections.aclose()


class Disco(SyncRouting, OpenAI):
    """`AsyncDisco` for code without an event loop: an `openai.OpenAI` in every respect.

    An answer that only the server can give is asked for in the calling thread, as the SDK does. Other answers are
    made in a background thread that starts with the first of them. Any number of threads may call at once, also
    inside notebooks. Close the client (or use `with`) to stop its answers and free the local model.

    Args:
        local, runtime, context_tokens, lora, mmproj, preset, policy, continuation, device_profile, server_profile,
            price, tiers, backups, budget, histories, state, prompt_cache, timeouts, default_options, redact,
            speculate, power, shadow, attach: as for `AsyncDisco`.
        on_route: as for `AsyncDisco`; called in the thread that made the answer.
        api_key, base_url, organization, project, timeout, default_headers, default_query: as for `OpenAI`.
        max_retries: as for `AsyncDisco`.
        http_client: as for `OpenAI`; routed requests also go through it.

    Raises:
        openai.OpenAIError: as `AsyncDisco`.
    """

    @takes_arguments_of(OpenAI.__init__)
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
        api_key: str | Callable[[], str] | None = None,
        base_url: str | httpx2.URL | None = _UNSET,
        organization: str | None = None,
        project: str | None = None,
        timeout: float | httpx2.Timeout | None = _UNSET,
        max_retries: int = openai.DEFAULT_MAX_RETRIES,
        default_headers: Mapping[str, str] | None = None,
        default_query: Mapping[str, object] | None = None,
        http_client: httpx2.Client | None = None,
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


class AzureDisco(SyncRouting, AzureOpenAI):
    """`Disco` for Azure: an `openai.AzureOpenAI` in every respect.

    Args:
        given: the arguments of `Disco` from `local` to `on_route`, and those of `AzureOpenAI`.

    Raises:
        openai.OpenAIError: as for `Disco` and `AzureOpenAI`.
    """

    @takes_arguments_of(AzureOpenAI.__init__)
    def __init__(self, *, _shared: SharedParts | None = None, **given: Unpack[AzureArguments]) -> None:
        arguments: dict[str, Any] = dict(given)
        self._begin(ClientSettings.taken_from(arguments), _shared, arguments)


class DiscoSyncCompletions(Completions):
    """The SDK's resource; see `DiscoCompletions`."""

    _client: Disco

    if TYPE_CHECKING:  # see `DiscoCompletions`

        @overload  # type: ignore[override]
        def create(
            self,
            *,
            messages: Iterable[Mapping[str, object]],
            model: str,
            stream: Literal[True],
            **given: Any,
        ) -> DiscoSyncStream: ...

        @overload
        def create(
            self,
            *,
            messages: Iterable[Mapping[str, object]],
            model: str,
            stream: Literal[False] | Omit | None = ...,
            **given: Any,
        ) -> RoutedChatCompletion: ...

        @overload
        def create(
            self, *, messages: Iterable[Mapping[str, object]], model: str, stream: bool, **given: Any
        ) -> DiscoSyncStream | RoutedChatCompletion: ...

        def create(self, **given: Any) -> Any: ...

        def parse(
            self,
            *,
            messages: Iterable[Mapping[str, object]],
            model: str,
            response_format: type[ResponseFormatT] | Omit = ...,
            **given: Any,
        ) -> RoutedParsedChatCompletion[ResponseFormatT]: ...

        def stream(
            self,
            *,
            messages: Iterable[Mapping[str, object]],
            model: str,
            response_format: type[ResponseFormatT] | Mapping[str, object] | Omit = ...,
            **given: Any,
        ) -> SyncStreamManager[ResponseFormatT]: ...

    if not TYPE_CHECKING:  # type checkers see the SDK's own, with all its parameters

        @wraps(Completions.stream)
        def stream(self, **given: Any) -> Any:
            """See `AsyncDisco`'s `stream`."""
            from disco.client.chat.helper_events import SyncStreamManager  # noqa: PLC0415 - numpy loads with it

            return SyncStreamManager(super().stream(**given))


class DiscoSyncChat(Chat):
    """The SDK's `client.chat` with routed completions."""

    _client: Disco

    @cached_property
    def completions(self) -> DiscoSyncCompletions:
        """`client.chat.completions`."""
        return DiscoSyncCompletions(self._client)
