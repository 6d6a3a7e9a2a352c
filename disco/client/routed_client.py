"""What the clients have in common, synchronous or not, for OpenAI's API or Azure's: no I/O here."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache, update_wrapper
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx2
import openai
from openai import AsyncOpenAI
from openai.lib.azure import API_KEY_SENTINEL
from openai.types import Model

from disco.client.chat.routed_request import clocks_of
from disco.client.request_options import RequestOptions, chosen_preset, merge_options
from disco.client.settings import ClientSettings, SharedParts
from disco.errors import ConfigurationError
from disco.request import Timeouts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from disco.client.endpoint_catalog.backups import Backup
    from disco.client.endpoint_catalog.catalog import CatalogEntry
    from disco.client.endpoint_catalog.plugged import Plugin
    from disco.client.router import Router
    from disco.endpoints.openai_api import OpenAIEndpoint
    from disco.endpoints.redaction import Redact

__all__ = ["RoutedClient", "has_signature_of", "takes_arguments_of"]

Method = TypeVar("Method", bound="Callable[..., Any]")

NOWHERE = "wss://local-only.invalid"  # RFC 6761: names in .invalid never resolve
_MAKE_CREDENTIALS = ("_api_key_provider", "_azure_ad_token", "_azure_ad_token_provider")
_CREDENTIALS = ("api_key", "admin_api_key", "workload_identity", "provider")


class RoutedClient:
    """A mixin in front of one of the SDK's four client classes.

    Attributes:
        router: plans the requests and starts their sessions; copies of the client share it.
        server: the server endpoint; None if the client has no server.
        default_options: the options of every request, which those of the request replace.
        redact: names what is replaced by placeholders before a text leaves this machine; None: nothing.
    """

    router: Router
    server: OpenAIEndpoint | None
    default_options: RequestOptions
    redact: Redact | None

    # The SDK's attributes that are used here.
    api_key: str
    max_retries: int
    timeout: float | httpx2.Timeout | None
    websocket_base_url: str | httpx2.URL | None
    _version: str

    def _begin(self, settings: ClientSettings, shared: SharedParts | None, sdk: dict[str, Any]) -> None:
        """Run the SDK's constructor with `sdk`, then set up the routing. Called once, by the constructor.

        `sdk["_beside"]`: another client of this program; both count the same budgets and know which endpoints fail.

        Raises:
            ConfigurationError: see `AsyncDisco`.
        """
        beside: RoutedClient | None = sdk.pop("_beside", None)
        has_server = self._begin_sdk(settings, shared, sdk)
        if shared is None:
            shared = SharedParts(
                _router(settings, beside, has_server=has_server), settings.continuation, None
            )
            self._owns_router = True
        else:
            self._owns_router = False
        self.router = shared.router
        self._continuation, self._verdicts = shared.continuation, shared.verdicts
        self._timeouts = settings.timeouts or shared.timeouts
        self.redact = settings.redact or shared.redact
        if self.redact is not None and not callable(self.redact):
            raise ConfigurationError(
                f"redact is a {type(self.redact).__name__}. Give a function from a text to a dict of its parts and "
                'their kinds: redact=lambda text: dict.fromkeys(EMAIL.findall(text), "EMAIL").'
            )
        self.default_options = shared.options
        if settings.default_options is not None:
            self.default_options = merge_options(
                shared.options, settings.default_options, where="default_options"
            )
        self.server = self._endpoint(shared) if has_server else None
        if self.server is not None:
            self._verdicts = self.server.verdicts  # copies share them
        self.router.check(self.server, self.default_options)
        # WebSockets do not go through `request`. This address, which never resolves, keeps them on this machine.
        # Nor does a hook read what they send.
        server = None if self.redact is not None else self.server
        if server is None or not self.router.may_ask(server, self.default_options):
            self.websocket_base_url = NOWHERE
        elif self.websocket_base_url == NOWHERE:
            self.websocket_base_url = None

    def _begin_sdk(self, settings: ClientSettings, shared: SharedParts | None, sdk: dict[str, Any]) -> bool:
        """Run the SDK's constructor; return whether the client has a server."""
        start: Any = super().__init__
        is_given = any(sdk.get(name) for name in _CREDENTIALS) or sdk.get("_enforce_credentials") is False
        if shared is not None:
            start(**sdk)
            return shared.has_server or (is_given and _credentials(self))
        if is_given or (settings.local is None and not settings.tiers):
            start(**sdk)
            return True
        # With a local model or tiers no server is needed, and so no key. The SDK's constructor requires one.
        start(**{**sdk, "_enforce_credentials": False})
        if _credentials(self):  # from the environment
            return True
        if sdk.get("base_url") not in (None, openai.not_given):
            raise ConfigurationError(
                "base_url was given without api_key. Pass api_key=... (any text if the server checks none), "
                "or leave base_url out to use the local model and the tiers only."
            )
        return False

    def _endpoint(self, shared: SharedParts) -> OpenAIEndpoint:
        from disco.endpoints.continuation import Continuation  # noqa: PLC0415 - only with a server
        from disco.endpoints.openai_api import OpenAIEndpoint  # noqa: PLC0415 - as above

        continuation = shared.continuation
        if isinstance(continuation, str):
            continuation = Continuation(method=continuation)  # type: ignore[arg-type] # checked by Continuation
        return OpenAIEndpoint(
            client=self._server_calls(), name="server", continuation=continuation, verdicts=shared.verdicts
        )

    def _server_calls(self) -> AsyncOpenAI:
        """Return what the server endpoint sends its requests with."""
        raise NotImplementedError

    def _shared(self) -> SharedParts:
        """Return what a copy of this client shares with it."""
        return SharedParts(
            self.router,
            self._continuation,
            self._verdicts,
            self._timeouts,
            self.default_options,
            self.redact,
            self.server is not None,
        )

    def _changes_of_copy(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments for the SDK's `copy`."""
        shared = self._shared()
        if "redact" in changes:  # None: the copy redacts nothing
            shared = replace(shared, redact=changes.pop("redact"))
        added = {"_shared": shared, "default_options": changes.pop("default_options", None)}
        if self.server is None:
            changes["_enforce_credentials"] = False
        if "timeout" in changes:  # a new limit on silence replaces the clocks for silence
            base = self._timeouts
            added["timeouts"] = None if base is None else clocks_of(changes["timeout"], base)
        return {**changes, "_extra_kwargs": {**added, **changes.pop("_extra_kwargs", {})}}

    @property
    def timeouts(self) -> Timeouts:
        """The clocks of an attempt: the client's own, else those of the SDK's `timeout`."""
        return clocks_of(self.timeout, Timeouts()) if self._timeouts is None else self._timeouts

    @property
    def user_agent(self) -> str:
        """The user agent of the plain SDK. The SDK would use this class's name."""
        kind: Any = type(self)
        return f"{_name_of_sdk(kind)}/Python {self._version}"

    def local_models(self) -> list[Model]:
        """Return the model on this machine, as the API lists models; empty if there is none."""
        name = self.router.local_model
        return [] if name is None else [Model(id=name, created=0, object="model", owned_by="this-machine")]


@cache
def _name_of_sdk(kind: type) -> str:
    """Return the name of the SDK's class that this one stands in for."""
    return next(c.__name__ for c in kind.__mro__ if c.__module__.partition(".")[0] == "openai")


def _credentials(client: Any) -> bool:
    """Return whether the client has anything to show to a server; an admin key is only for administration."""
    made = (getattr(client, name, None) for name in _MAKE_CREDENTIALS)
    return any(made) or client.api_key not in ("", API_KEY_SENTINEL)


def has_signature_of(original: Callable[..., Any], *added: str) -> Callable[[Method], Method]:
    """Return a decorator that gives a method the signature of the SDK's, with further keyword arguments."""

    def decorate(method: Method) -> Method:
        function: Any = method
        given = signature(original)
        more = [Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in added]
        update_wrapper(method, original, assigned=("__annotations__",), updated=())
        function.__signature__ = given.replace(parameters=[*given.parameters.values(), *more])
        return method

    return decorate


def takes_arguments_of(sdk: Callable[..., Any]) -> Callable[[Method], Method]:
    """Return a decorator that gives a constructor the signature that it has in fact: its own, and the SDK's."""

    def decorate(method: Method) -> Method:
        function: Any = method
        own = [p for p in signature(method).parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        shown = {p.name: p for p in own if p.name != "_shared"}
        names = [f.name for f in fields(ClientSettings)]
        more = {name: Parameter(name, Parameter.KEYWORD_ONLY) for name in names}
        more |= {p.name: p for p in signature(sdk).parameters.values()}
        added = [p for name, p in more.items() if name not in shown]
        function.__signature__ = Signature(
            [
                *shown.values(),
                *added,
            ]
        )
        return method

    return decorate


def _router(settings: ClientSettings, beside: RoutedClient | None, *, has_server: bool) -> Router:
    from disco.client.endpoint_catalog.client_endpoints import Hosting  # noqa: PLC0415 - as below
    from disco.client.router import Router  # noqa: PLC0415 - numpy and pydantic models load with it
    from disco.endpoints.saved_prompts import PromptCache  # noqa: PLC0415 - as above

    if settings.backups and not has_server:
        raise ConfigurationError(
            "backups need a first server, but none is configured: pass api_key=... (and base_url=...) for it."
        )
    local = settings.local
    return Router(
        local=Path(local) if _is_path(local) else local,  # type: ignore[arg-type]
        here=Hosting(
            PromptCache.of(settings.prompt_cache),
            settings.attach,
            settings.runtime,
            settings.context_tokens,
            settings.lora,
            settings.mmproj,
        ),
        preset=chosen_preset(settings.preset, settings.policy),
        device_profile=settings.device_profile,
        server_profile=settings.server_profile,
        price=settings.price,
        on_route=settings.on_route,
        tiers=settings.tiers,
        backups=_servers(settings.backups, local),
        budget=settings.budget,
        histories=settings.histories,
        state=settings.state,
        speculate=settings.speculate,
        power=settings.power,
        shadow=settings.shadow,
        beside=None if beside is None else beside.router,
    )


def _is_path(local: object) -> bool:
    return hasattr(local, "__fspath__")


def _servers(backups: Sequence[Backup | Plugin | str], local: object) -> Sequence[CatalogEntry]:
    if not backups:
        return ()
    from disco.client.endpoint_catalog.backup_server import backup_entries  # noqa: PLC0415 - the HTTP endpoint loads with it

    return backup_entries(backups, taken=("server", getattr(local, "name", None) or "device"))
