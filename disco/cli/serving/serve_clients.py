"""The clients of `disco serve`: one, or one for each model that its file names."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from disco.cli.serving.config_values import ModelSettings
from disco.client import AsyncDisco, Backup, Tier
from disco.client.endpoint_catalog.local_servers import is_address
from disco.client.endpoint_catalog.plugged import as_plugin
from disco.dispatch import load_preset
from disco.endpoints.contract import Endpoint
from disco.endpoints.openai_api.sdk_client import ReusesRequests, forget_environment
from disco.endpoints.saved_prompts import PromptCache
from disco.errors import ConfigurationError, DiscoError
from disco.server.named_models import NamedModel, NamedModels
from disco.session.records.route_record import RouteRecord

if TYPE_CHECKING:
    from disco.endpoints.redaction import Redact

__all__ = ["Client", "ClientMaker"]

OnRoute = Callable[[RouteRecord], None]


class Client(ReusesRequests, AsyncDisco):
    """This command's own client: no application changes its headers."""


class ClientMaker:
    """Makes the clients of one `disco serve`.

    A local model is loaded once, however many names use it. All names share budgets, and what is known of endpoints
    that fail. Mutable: `_first`, which all others stand beside; `_local`, by name: the models on this machine.

    Args:
        arguments: the settled options.
        engine: the model of a verify server, which is every client's local model then; None: there is none.
        prompt_cache: how prompts are saved; None: none is.
        redact: the hook of `--redact`.
        on_route: gets every route record.
    """

    def __init__(
        self,
        arguments: argparse.Namespace,
        *,
        engine: Endpoint | None,
        prompt_cache: PromptCache | None,
        redact: Redact | None,
        on_route: OnRoute,
    ) -> None:
        self._arguments = arguments
        self._engine = engine
        self._prompt_cache = prompt_cache
        self._on_route = on_route
        self._common: dict[str, Any] = {
            "shadow": arguments.shadow,
            "histories": arguments.histories,
            "power": False if arguments.power == "off" else None,
            "state": False if arguments.state == "off" else arguments.state,
            "attach": False,
            "redact": redact,
        }
        self._first: Client | None = None
        self._local: dict[str, Endpoint] = {}

    def one(self, tiers: Sequence[Tier], backups: Sequence[Backup]) -> Client:
        """Return the only client; its server is the one in the environment.

        Raises:
            DiscoError: settings that contradict each other, a model that is not there.
            openai.OpenAIError: there is neither a key nor a local model.
        """
        arguments = self._arguments
        local = None if arguments.local == "none" else arguments.local
        return Client(
            local=local if self._engine is None else self._engine,
            isolation=arguments.isolation or "thread",
            runtime=arguments.runtime or "auto",
            prompt_cache=self._prompt_cache or False,
            preset=arguments.preset,
            budget=arguments.budget,
            on_route=self._on_route,
            tiers=tiers,
            backups=backups,
            **self._common,
        )

    async def named(self, stack: AsyncExitStack) -> NamedModels:
        """Return the models of the file, with their clients, which `stack` closes.

        Raises:
            ConfigurationError: the message names the table.
        """
        models = []
        for name, settings in self._arguments.models.items():
            try:
                client = self._client(name, settings)
            except DiscoError as error:
                raise ConfigurationError(f"{self._arguments.config}: {settings.where}: {error}") from error
            await stack.enter_async_context(client)
            models.append(NamedModel(name, client, settings.model))
        try:
            return NamedModels(models, default=self._arguments.default)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self._arguments.config}: {error}") from None

    def _client(self, name: str, settings: ModelSettings) -> Client:
        local, more = self._local_of(settings.local)
        if local is None and settings.base_url is None and not settings.tiers:
            raise ConfigurationError(
                'no model could answer. Add local = "smollm2-135m" (or a GGUF file), or the base_url of a server.'
            )
        client = Client(
            local=local,
            preset=settings.preset or self._arguments.preset,
            budget=self._budget(settings),
            price=settings.price,
            continuation=settings.continuation,
            tiers=settings.tiers,
            backups=settings.backups,
            default_options=settings.options,
            on_route=partial(_as_served, self._on_route, name),
            base_url=settings.base_url,
            # "": none, and none from the environment either, which is not this server's.
            api_key=settings.api_key or "",
            _beside=self._first,
            **more,
            **self._common,
        )
        forget_environment(client)
        self._first = self._first or client
        if isinstance(local, str) and client.router.local is not None:
            self._local[local] = client.router.local
        return client

    def _budget(self, settings: ModelSettings) -> Mapping[str, Any] | None:
        if settings.budget is not None or self._arguments.budget is None:
            return settings.budget
        preset = load_preset(settings.preset or self._arguments.preset)
        budget: Mapping[str, Any] = self._arguments.budget
        if not preset.limits.local_only:
            return budget
        # This model reaches no server, and a limit on servers would be refused. What the device may do, it shares.
        here = {key: value for key, value in budget.items() if key not in ("usd", "server_tokens")}
        return here if "device_tokens" in here else None

    def _local_of(self, given: str | None) -> tuple[str | Endpoint | None, dict[str, Any]]:
        """Return the local model of this name, which may be there already, and how it runs if it is not."""
        if self._engine is not None:
            if given not in (None, "none"):
                raise ConfigurationError(
                    f'local = "{given}" cannot be used with verify, whose model is also the local one. Leave local '
                    'out, or write local = "none".'
                )
            return (None if given == "none" else self._engine), {}
        name = given or self._arguments.local
        if name == "none":
            return None, {}
        if name in self._local:
            return self._local[name], {}
        if is_address(name) or as_plugin(name) is not None:
            return name, {}
        return name, {
            "isolation": self._arguments.isolation or "thread",
            "runtime": self._arguments.runtime or "auto",
            "prompt_cache": self._prompt_cache or False,
        }


def _as_served(on_route: OnRoute, name: str, route: RouteRecord) -> None:
    on_route(replace(route, served_as=name))
