"""`AsyncDisco`: an `openai.AsyncOpenAI` with a second model on this machine."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import anyio
import httpx2
import openai
from openai import AsyncOpenAI
from openai.pagination import AsyncPage
from openai.types import Model

from disco.client.chat.routed_request import clocks_of, hide, is_model_list
from disco.client.http_gateway import may_ask_server, model_list, respond, route_or_pass
from disco.client.request_options import NO_OPTIONS, RequestOptions, chosen_preset, merge_options
from disco.errors import ConfigurationError
from disco.request import Timeouts

if TYPE_CHECKING:
    from openai._models import FinalRequestOptions

    from disco.client.chat.completions import DiscoChat
    from disco.client.endpoint_catalog.backup_server import BackupServer
    from disco.client.endpoint_catalog.backups import Backup
    from disco.client.endpoint_catalog.local_servers import LocalServer
    from disco.client.router import Router
    from disco.dispatch import Preset
    from disco.endpoints.continuation import Continuation
    from disco.endpoints.continuation.verdicts import Verdicts
    from disco.endpoints.contract import Endpoint
    from disco.endpoints.openai_api import OpenAIEndpoint
    from disco.profiles import DeviceProfile, ServerProfile
    from disco.telemetry import OnRoute

__all__ = ["AsyncDisco"]

_UNSET: Any = openai.not_given
CLOSE_S = 10.0  # longest time that closing takes; a model may be loading
NOWHERE = "wss://local-only.invalid"  # RFC 6761: names in .invalid never resolve


class AsyncDisco(AsyncOpenAI):
    """One client, two models: llama.cpp on this machine and the server behind `base_url`.

    An `openai.AsyncOpenAI` in every respect. `chat.completions.create` is routed; every other call passes
    through to the server. Nothing is loaded or connected before the first request or `warm_up()`.

    Args:
        local: the device's model: a name (`"smollm2-135m"`), the path of a GGUF file, `"hf:owner/repo/file"`,
            the address of a server on this machine (`"http://localhost:11434/v1#qwen3:4b"`), a `disco.LocalServer`,
            or an endpoint object (which the caller closes). None: no model on this machine.
        isolation: where a local model given by name runs: in a `"thread"` of this process, or in a `"process"` of its
            own. If that process crashes, its answers fail over, and the process is started again.
        preset: the name of a preset (`"balanced"`, `"cheap"`, `"battery-saver"`, `"fast"`, `"private"`), the path
            of a preset file, or a `Preset`.
        policy: the former name of `preset`.
        continuation: how the server is made to continue a half-written answer: `"auto"` (found out by a probe, at the
            latest when an answer needs it), `"none"`, or a `Continuation`.
        device_profile: the device's profile, or its name or path. Default: the profile that `disco profile` saved
            for this model; without one, cautious figures that measurements correct.
        server_profile: the server's profile, or its name or path. Its TTFT distribution is used until the client
            has measured its own.
        price: USD per million (input, output) tokens of the server's model. Default: the price table's.
        backups: further servers, each with its own URL, key, model and price (`disco.Backup`). When the first server
            fails, cools down or refuses, the cheapest backup takes its place in the preset's policy. Backups get
            neither requests that must stay on this machine nor calls that pass through.
        budget: the most that may be spent within a sliding window: `{"server_usd": 0.50, "window_s": 86_400}`.
            The keys are those of the preset's `[limits]`, which this replaces: `server_usd`, `server_tokens`,
            `device_tokens`, `window_s`, `unreported`.
        timeouts: the four clocks of each attempt, in seconds. The SDK's `timeout` sets the clocks for silence.
        default_options: options for every request, as in `extra_body={"disco": {...}}`. The options of a request
            take precedence. `with_options(default_options=...)` adds to them.
        on_route: called in the event loop with the route record of every finished answer. Must not block. May be
            a list of callables. An exception from one of them is logged and does not affect the answer. A
            `disco.RouteLog` writes the records to a file.
        api_key, base_url, organization, project, timeout, max_retries, default_headers, default_query,
            http_client: as for `AsyncOpenAI`. The session does the retries: it tries another endpoint first. If
            only one endpoint is left, the session tries it again up to `max_retries` times.

    Raises:
        disco.errors.ConfigurationError: unknown preset or profile, or settings that contradict each other.
        disco.errors.ModelFileError: `local` is a path, and there is no GGUF file.
        openai.OpenAIError: neither a key nor a local model was given.
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
        api_key: str | Callable[[], Awaitable[str]] | None = None,
        base_url: str | httpx2.URL | None = _UNSET,
        organization: str | None = None,
        project: str | None = None,
        timeout: float | httpx2.Timeout | None = _UNSET,
        max_retries: int = openai.DEFAULT_MAX_RETRIES,
        default_headers: Mapping[str, str] | None = None,
        default_query: Mapping[str, object] | None = None,
        http_client: httpx2.AsyncClient | None = None,
        _router: Router | None = None,
        _verdicts: Verdicts | None = None,
        _has_server: bool | None = None,
        _inherited: RequestOptions = NO_OPTIONS,
        **more: Any,  # other kinds of credentials, passed by the SDK's own `copy`
    ) -> None:
        from disco.client.router import Router  # noqa: PLC0415 - numpy and pydantic models load with it

        keyless = api_key is None and not os.environ.get("OPENAI_API_KEY")
        has_server = not keyless or any(more.get(k) for k in ("workload_identity", "provider"))
        if _has_server is not None:  # a copy has the placeholder below as its key
            has_server = _has_server
        if keyless and not has_server and local is not None:
            # Without a server no key is needed, but the SDK's constructor requires one.
            api_key = "no-server-configured"
            if base_url is not _UNSET and base_url is not None:
                raise ConfigurationError(
                    "base_url was given without api_key. Pass api_key=... (any text if the server checks none), "
                    "or leave base_url out to use the local model only."
                )
        super().__init__(
            api_key=api_key,
            base_url=base_url,
            organization=organization,
            project=project,
            timeout=timeout,
            max_retries=max_retries,
            default_headers=default_headers,
            default_query=default_query,
            http_client=http_client,
            **more,
        )
        self._owns_router = _router is None
        self.timeouts = clocks_of(timeout, Timeouts()) if timeouts is None else timeouts
        if backups and not has_server:
            raise ConfigurationError(
                "backups need a first server, but none is configured: pass api_key=... (and base_url=...) for it."
            )
        self.router = _router or Router(
            local=Path(local) if isinstance(local, os.PathLike) else local,
            isolation=isolation,
            preset=chosen_preset(preset, policy),
            device_profile=device_profile,
            server_profile=server_profile,
            price=price,
            on_route=on_route,
            backups=_servers(backups, local),
            budget=budget,
        )
        self.default_options = _inherited
        if default_options is not None:
            self.default_options = merge_options(_inherited, default_options, where="default_options")
        self._continuation = continuation
        self._verdicts = _verdicts
        self.server: OpenAIEndpoint | None = None
        if has_server:
            from disco.endpoints.continuation import Continuation  # noqa: PLC0415 - as above
            from disco.endpoints.openai_api import OpenAIEndpoint  # noqa: PLC0415 - as above

            if isinstance(continuation, str):
                continuation = Continuation(method=continuation)  # type: ignore[arg-type] # checked by Continuation
            self.server = OpenAIEndpoint(
                client=self._plain(more), name="server", continuation=continuation, verdicts=_verdicts
            )
            self._verdicts = self.server.verdicts
        self.router.check(self.server, self.default_options)
        # WebSockets do not go through `request`. This address, which never resolves, keeps them on this machine.
        if self.server is None or self.router.is_local_only(self.default_options):
            self.websocket_base_url = NOWHERE
        elif self.websocket_base_url == NOWHERE:
            self.websocket_base_url = None

    def _plain(self, more: Mapping[str, Any]) -> AsyncOpenAI:
        """Return the same client without disco; the server endpoint sends its requests through it."""
        from disco.endpoints.openai_api.sdk_client import PlainClient  # noqa: PLC0415 - with the endpoint

        return PlainClient(
            api_key=self._api_key_provider or self.api_key,
            base_url=self.base_url,
            organization=self.organization,
            project=self.project,
            timeout=self.timeout,
            max_retries=0,
            default_headers=self._custom_headers,
            default_query=self._custom_query,
            http_client=self._client,
            **more,
        )

    @cached_property
    def chat(self) -> DiscoChat:
        """`client.chat`, with routed completions."""
        from disco.client.chat.completions import DiscoChat  # noqa: PLC0415 - as above

        return DiscoChat(self)

    @property
    def user_agent(self) -> str:
        """The user agent of the plain SDK, for calls that pass through. The SDK would use this class's name."""
        return f"AsyncOpenAI/Python {self._version}"

    async def warm_up(self, model: str | None = None) -> None:
        """Load the local model, open the connection and find out how the server continues, all at once.

        Does not raise when the server is unreachable: the first request will report it, or use another endpoint.
        The server is not contacted if the preset or `default_options` keep everything on this machine.

        Args:
            model: the server's model to probe under `continuation="auto"` (one short request). None: the probe is
                made only if the server has a single model.

        Raises:
            DiscoError: the local model cannot be loaded; the message says why.
        """
        # If everything stays on this machine, the server must not even see a connection.
        stays = self.router.is_local_only(self.default_options)
        await self.router.warm_up(None if stays else self.server, model)

    def copy(self, **changes: Any) -> Self:
        """As the SDK's `copy`. The copy shares the local model and the statistics."""
        extra = {
            "_inherited": self.default_options,
            "default_options": changes.pop("default_options", None),
            "_router": self.router,
            "_verdicts": self._verdicts,
            "local": self.router.local,
            "timeouts": self.timeouts,
            "continuation": self._continuation,
            **changes.pop("_extra_kwargs", {}),
        }
        if self.server is None and not any(
            changes.get(k) for k in ("api_key", "workload_identity", "provider")
        ):
            extra["_has_server"] = False
        if "timeout" in changes:
            extra.pop("timeouts")
        return super().copy(**changes, _extra_kwargs=extra)

    with_options = copy

    async def request(
        self, cast_to: Any, options: FinalRequestOptions, *, stream: bool = False, stream_cls: Any = None
    ) -> Any:
        """Answer or pass on every call except the ordinary `chat.completions.create`.

        A session also answers chat completions that are requested parsed, raw or streamed as bytes. A request that
        only the server can answer is passed on to it, unless the request must stay on this machine.

        Raises:
            NoEndpointError: no server is configured, or the preset or the request keeps everything on this machine.
        """
        if is_model_list(options) and not may_ask_server(self, options):
            response, parser = model_list(self), stream_cls
        else:
            routed = route_or_pass(self, options)
            if routed is None:
                try:
                    answer = await super().request(cast_to, options, stream=stream, stream_cls=stream_cls)
                except openai.APIError as error:
                    hide(error, self, options)
                    raise
                if is_model_list(options) and isinstance(answer, AsyncPage):
                    answer.data[:0] = self.local_models()
                return answer
            from disco.client.chat.object_stream import quick_stream_class  # noqa: PLC0415 - numpy loads with it

            response = await respond(self, routed, options, stream=stream)
            parser = quick_stream_class(stream_cls)
        return await self._process_response(
            cast_to=self._maybe_override_cast_to(cast_to, options),
            options=options,
            response=response,
            stream=stream,
            stream_cls=parser,
        )

    def local_models(self) -> list[Model]:
        """Return the model on this machine, as the API lists models; empty if there is none."""
        name = self.router.local_model
        return [] if name is None else [Model(id=name, created=0, object="model", owned_by="this-machine")]

    async def close(self) -> None:
        """Stop every answer in progress, free the model, close the connections. Idempotent."""
        # Shielded: nothing may stay running or open, even if the application is being cancelled.
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_S):
            if self._owns_router:
                await self.router.aclose()
            if self.server is not None:
                await self.server.aclose()
            await super().close()


def _servers(backups: Sequence[Backup], local: object) -> Sequence[BackupServer]:
    if not backups:
        return ()
    from disco.client.endpoint_catalog.backup_server import backup_servers  # noqa: PLC0415 - the HTTP endpoint loads with it

    return backup_servers(backups, taken=("server", getattr(local, "name", "device")))
