"""`Disco`: an `openai.OpenAI` with a second model on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import httpx2
import openai
from openai import Omit, OpenAI
from openai.pagination import SyncPage
from openai.resources.chat import Chat
from openai.resources.chat.completions import Completions

from disco.client.async_client import NOWHERE, AsyncDisco
from disco.client.chat.routed_request import hide, is_model_list
from disco.client.http_gateway import may_ask_server, model_list, respond, route_or_pass
from disco.client.sync.portal import Portal
from disco.request import Timeouts

if TYPE_CHECKING:
    from openai._models import FinalRequestOptions

    from disco.client.chat.chat_chunks import RoutedChatCompletion
    from disco.client.endpoint_catalog.backups import Backup
    from disco.client.endpoint_catalog.local_servers import LocalServer
    from disco.client.sync.sync_stream import DiscoSyncStream
    from disco.dispatch import Preset
    from disco.endpoints.continuation import Continuation
    from disco.endpoints.contract import Endpoint
    from disco.profiles import DeviceProfile, ServerProfile
    from disco.telemetry import OnRoute

__all__ = ["Disco"]

_UNSET: Any = openai.not_given


class Disco(OpenAI):
    """`AsyncDisco` for code without an event loop: an `openai.OpenAI` in every respect.

    Answers are made in a background thread that starts with the first request. Any number of threads may call
    at once, also inside notebooks. Close the client (or use `with`) to stop its answers and free the local model.

    Args:
        local, isolation, preset, policy, continuation, device_profile, server_profile, price, backups, budget,
            timeouts, default_options: as for `AsyncDisco`.
        on_route: as for `AsyncDisco`; called in the background thread.
        api_key, base_url, organization, project, timeout, max_retries, default_headers, default_query: as for
            `OpenAI`.
        http_client: as for `OpenAI`; routed requests also go through it.

    Raises:
        openai.OpenAIError: as `AsyncDisco`.
    """

    def __init__(
        self,
        *,
        local: str | os.PathLike[str] | Endpoint | LocalServer | None = None,
        isolation: Literal["thread", "process"] = "thread",
        preset: str | os.PathLike[str] | Preset = "balanced",
        policy: str | os.PathLike[str] | Preset | None = None,
        continuation: str | Continuation = "auto",
        device_profile: str | os.PathLike[str] | DeviceProfile | None = None,
        server_profile: str | os.PathLike[str] | ServerProfile | None = None,
        price: tuple[float, float] | None = None,
        backups: Sequence[Backup] = (),
        budget: Mapping[str, Any] | None = None,
        timeouts: Timeouts | None = None,
        default_options: Mapping[str, Any] | None = None,
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
        _routed: AsyncDisco | None = None,
        _portal: Portal | None = None,
        **more: Any,  # other kinds of credentials, passed by the SDK's own `copy`
    ) -> None:
        sdk: dict[str, Any] = {
            "base_url": base_url,
            "organization": organization,
            "project": project,
            "timeout": timeout,
            "max_retries": max_retries,
            "default_headers": default_headers,
            "default_query": default_query,
            **more,
        }
        self._owns_portal = _portal is None
        self._portal = _portal or Portal()
        self.routed = _routed or AsyncDisco(
            local=local,
            isolation=isolation,
            preset=preset,
            policy=policy,
            continuation=continuation,
            device_profile=device_profile,
            server_profile=server_profile,
            price=price,
            backups=backups,
            budget=budget,
            timeouts=timeouts,
            default_options=default_options,
            on_route=on_route,
            api_key=_awaitable(api_key),
            http_client=None if http_client is None else _in_threads(http_client),
            **sdk,
        )
        # Without a server there is no key, but the SDK's constructor requires one.
        key = self.routed.api_key if api_key is None else api_key
        super().__init__(api_key=key, http_client=http_client, **sdk)
        if self.routed.websocket_base_url == NOWHERE:
            self.websocket_base_url = NOWHERE

    @cached_property
    def chat(self) -> DiscoSyncChat:
        """`client.chat`, with routed completions."""
        return DiscoSyncChat(self)

    @property
    def user_agent(self) -> str:
        """See `AsyncDisco.user_agent`."""
        return f"OpenAI/Python {self._version}"

    def warm_up(self, model: str | None = None) -> None:
        """As `AsyncDisco.warm_up`."""
        self._portal.run(self.routed.warm_up, model)

    def copy(self, **changes: Any) -> Self:
        """As the SDK's `copy`. The copy shares the local model and the statistics."""
        extra = changes.pop("_extra_kwargs", {})
        translated = dict(changes)
        if callable(changes.get("api_key")):
            translated["api_key"] = _awaitable(changes["api_key"])
        if changes.get("http_client") is not None:
            translated["http_client"] = _in_threads(changes["http_client"])
        changes.pop("default_options", None)
        inner = {"_routed": self.routed.copy(**translated), "_portal": self._portal}
        return super().copy(**changes, _extra_kwargs={**inner, **extra})

    with_options = copy

    def request(
        self, cast_to: Any, options: FinalRequestOptions, *, stream: bool = False, stream_cls: Any = None
    ) -> Any:
        """As `AsyncDisco.request`."""
        if is_model_list(options) and not may_ask_server(self.routed, options):
            response = model_list(self.routed)
        else:
            routed = route_or_pass(self.routed, options)
            if routed is None:
                try:
                    answer = super().request(cast_to, options, stream=stream, stream_cls=stream_cls)
                except openai.APIError as error:
                    hide(error, self, options)
                    raise
                if is_model_list(options) and isinstance(answer, SyncPage):
                    answer.data[:0] = self.routed.local_models()
                return answer
            response = self._portal.run(partial(respond, self.routed, routed, options, stream=stream))
        from disco.client.chat.object_stream import quick_stream_class  # noqa: PLC0415 - numpy loads with it
        from disco.client.sync.sync_stream import sync_response  # noqa: PLC0415 - as above

        return self._process_response(
            cast_to=self._maybe_override_cast_to(cast_to, options),
            options=options,
            response=sync_response(response, self._portal),
            stream=stream,
            stream_cls=quick_stream_class(stream_cls),
        )

    def close(self) -> None:
        """Stop every answer in progress, free the model, close the connections, end the thread. Idempotent."""
        if self._owns_portal and self._portal.is_open:
            self._portal.run(self.routed.close)
            self._portal.close()
        super().close()


class DiscoSyncCompletions(Completions):
    """The SDK's resource with a routed `create`; the rest is inherited."""

    _client: Disco

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

    def create(self, **given: Any) -> Any:
        """As `OpenAI.chat.completions.create`, with the additions and errors of `AsyncDisco`'s."""
        from disco.client.chat.completions import is_ordinary  # noqa: PLC0415 - numpy loads with it

        if not is_ordinary(given):
            return super().create(**given)  # calls `Disco.request`
        completions = self._client.routed.chat.completions
        portal = self._client._portal  # noqa: SLF001 - our own client
        answer = portal.run(partial(completions.create, **given))
        if not given.get("stream"):
            return answer
        from disco.client.sync.sync_stream import DiscoSyncStream  # noqa: PLC0415 - numpy loads with it

        return DiscoSyncStream(answer, portal)

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


def _awaitable(key: str | Callable[[], str] | None) -> Any:
    if not callable(key):
        return key

    async def provide() -> str:
        return key()

    return provide


def _in_threads(client: httpx2.Client) -> httpx2.AsyncClient:
    """Return the application's HTTP client (its proxies, certificates and transports) for asynchronous use."""
    from disco.client.sync.sync_http import ThreadedTransport  # noqa: PLC0415 - rarely needed

    return httpx2.AsyncClient(transport=ThreadedTransport(client), timeout=client.timeout)
