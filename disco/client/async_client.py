"""`AsyncDisco`: an `openai.AsyncOpenAI` with a second model on this machine."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import httpx2
import openai
from openai import AsyncOpenAI

from disco.client.options import RequestOptions, take_options
from disco.errors import ConfigurationError, NoEndpointError
from disco.request import Timeouts

if TYPE_CHECKING:
    from openai._models import FinalRequestOptions

    from disco.client.completions import DiscoChat
    from disco.client.router import Router
    from disco.dispatch import Preset
    from disco.endpoints.base import Endpoint
    from disco.endpoints.continuation import Continuation, Verdict
    from disco.endpoints.openai_api import OpenAIEndpoint
    from disco.profiles import DeviceProfile, ServerProfile
    from disco.session.record import RouteRecord

__all__ = ["AsyncDisco"]

_UNSET: Any = openai.not_given
NOWHERE = "wss://local-only.invalid"  # RFC 6761: names in .invalid never resolve


class AsyncDisco(AsyncOpenAI):
    """One client, two models: llama.cpp on this machine and the server behind `base_url`.

    An `openai.AsyncOpenAI` in every respect: `chat.completions.create` is routed, everything else passes
    through. Nothing is loaded or connected before the first request or `warm_up()`.

    Args:
        local: the device's model: a name (`"smollm2-135m"`), the path of a GGUF file, `"hf:owner/repo/file"`,
            an endpoint object (which stays yours to close), or None for no model here.
        policy: a preset's name (`"balanced"`, `"cheap"`, `"battery-saver"`, `"fast"`, `"private"`), the path
            of a preset file, or a `Preset`.
        continuation: how the server is made to continue a half-written answer: `"auto"` (probed by
            `warm_up()`; until proved it counts as unable), `"none"`, or a `Continuation`.
        device_profile: the device's profile, or its name or path; by default what `disco profile` saved for this
            model, else cautious figures that are corrected by what is seen.
        server_profile: the server's profile, or its name or path: its TTFT distribution before any was seen.
        price: USD per million (input, output) tokens of the server's model; by default the price table's.
        timeouts: the four clocks of each attempt, in seconds. `timeout` (the SDK's) sets those for silence.
        on_route: called with the route record of every finished answer, in the event loop; must not block.
        api_key, base_url, organization, project, timeout, max_retries, default_headers, default_query,
            http_client: as for `AsyncOpenAI`. Retries are the session's: it goes to another endpoint first, and tries
            the only one there is again up to `max_retries` times.

    Raises:
        disco.errors.ConfigurationError: unknown preset or profile, or settings that contradict each other.
        disco.errors.ModelFileError: `local` is a path where no GGUF is.
        openai.OpenAIError: neither a key nor a local model was given.
    """

    def __init__(
        self,
        *,
        local: str | os.PathLike[str] | Endpoint | None = None,
        policy: str | os.PathLike[str] | Preset = "balanced",
        continuation: str | Continuation = "auto",
        device_profile: str | os.PathLike[str] | DeviceProfile | None = None,
        server_profile: str | os.PathLike[str] | ServerProfile | None = None,
        price: tuple[float, float] | None = None,
        timeouts: Timeouts | None = None,
        on_route: Callable[[RouteRecord], None] | None = None,
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
        _verdicts: dict[tuple[str, str], Verdict] | None = None,
        _has_server: bool | None = None,
        **more: Any,  # what the SDK's own `copy` hands over: credentials of other kinds
    ) -> None:
        from disco.client.router import Router  # noqa: PLC0415 - numpy and pydantic models load with it

        keyless = api_key is None and not os.environ.get("OPENAI_API_KEY")
        has_server = not keyless or any(more.get(k) for k in ("workload_identity", "provider"))
        if _has_server is not None:  # a copy holds the placeholder below as its key
            has_server = _has_server
        if keyless and not has_server and local is not None:
            # On this machine no key is needed, but the SDK's constructor insists on one.
            api_key = "no-server-configured"
            if base_url is not _UNSET and base_url is not None:
                raise ConfigurationError(
                    "base_url was given without api_key. Pass api_key=... (any text where the server "
                    "checks none), or leave base_url out to use the local model only."
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
        self.timeouts = timeouts if timeouts is not None else self._timeouts_from_sdk()
        self.router = _router or Router(
            local=Path(local) if isinstance(local, os.PathLike) else local,
            policy=policy,
            device_profile=device_profile,
            server_profile=server_profile,
            price=price,
            on_route=on_route,
        )
        self._continuation = continuation
        self._verdicts = {} if _verdicts is None else _verdicts
        self.server: OpenAIEndpoint | None = None
        if has_server:
            from disco.endpoints.continuation import Continuation  # noqa: PLC0415 - as above
            from disco.endpoints.openai_api import OpenAIEndpoint  # noqa: PLC0415 - as above

            if isinstance(continuation, str):
                continuation = Continuation(method=continuation)  # type: ignore[arg-type] # checked by it
            self.server = OpenAIEndpoint(
                client=self._plain(more), name="server", continuation=continuation, verdicts=self._verdicts
            )
        self.router.check(self.server)
        # WebSockets do not come through `request`; under this name they find nobody.
        if self.server is None or self.router.preset.limits.local_only:
            self.websocket_base_url = NOWHERE
        elif self.websocket_base_url == NOWHERE:
            self.websocket_base_url = None

    def _plain(self, more: Mapping[str, Any]) -> AsyncOpenAI:
        """The same client without disco: what the server endpoint talks through."""
        return AsyncOpenAI(
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

    def _timeouts_from_sdk(self) -> Timeouts:
        given = self.timeout
        if isinstance(given, (int, float)):
            return Timeouts(first_content_s=given, gap_s=given)
        return Timeouts()

    @cached_property
    def chat(self) -> DiscoChat:
        """`client.chat`, with routed completions."""
        from disco.client.completions import DiscoChat  # noqa: PLC0415 - as above

        return DiscoChat(self)

    async def warm_up(self, model: str | None = None) -> None:
        """Load the local model, open the connection and find out how the server continues, all at once.

        Does not raise when the server is unreachable: the first request will say so, or do without it.

        Args:
            model: the server's model to probe under `continuation="auto"` (one short request); None probes
                only a server that has a single model.

        Raises:
            DiscoError: the local model cannot be loaded; the message says why.
        """
        await self.router.warm_up(self.server, model)

    def copy(self, **changes: Any) -> Self:
        """As the SDK's `copy`; the copy shares the local model and everything learnt so far."""
        extra = {
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
        """Every call that is not routed comes through here, and fails closed: what must stay, stays.

        Raises:
            NoEndpointError: no server is configured, or the policy or the request keeps everything here.
        """
        own, rest = take_options(options.extra_json)
        if own != RequestOptions():
            options.extra_json = rest
        if self.server is None:
            raise NoEndpointError(
                f"{options.method.upper()} {options.url} needs a server, but none is configured: pass api_key=... "
                "(and base_url=...). Only chat.completions.create is answered on this machine."
            )
        if self.router.is_local_only(own):
            raise NoEndpointError(
                f"{options.method.upper()} {options.url} would leave this machine, which the policy "
                f"{self.router.preset.name!r} or the request forbids. Use chat.completions.create, which the local "
                "model answers, or another policy."
            )
        return await super().request(cast_to, options, stream=stream, stream_cls=stream_cls)

    async def close(self) -> None:
        """Stop every answer in progress, free the model, close the connections. Idempotent."""
        if self._owns_router:
            await self.router.aclose()
        if self.server is not None:
            await self.server.aclose()
        await super().close()
