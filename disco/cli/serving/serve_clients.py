"""The clients of `disco serve`: one, or one for each model that its file names."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from disco._settings_files import settings_text
from disco.cli.serving.settings import ModelTable, ServerTable, ServeSettings, TierTable, table_name
from disco.client import AsyncDisco, Backup, Tier
from disco.client.endpoint_catalog.local_servers import is_address, is_loopback
from disco.client.endpoint_catalog.plugged import as_plugin
from disco.dispatch import load_preset
from disco.endpoints.contract import Endpoint
from disco.endpoints.llamacpp.model.added_files import loras_named
from disco.endpoints.openai_api.sdk_client import ReusesRequests, forget_environment
from disco.endpoints.saved_prompts import PromptCache
from disco.errors import ConfigurationError, DiscoError
from disco.server.named_models import NamedModel, NamedModels
from disco.session.records.route_record import RouteRecord

if TYPE_CHECKING:
    from disco.endpoints.redaction import Redact

__all__ = ["Client", "ClientMaker", "backups_of", "tiers_of"]

_KEY: Final = re.compile("[!-~]+")  # what a header can carry
_NO_KEY: Final = "none"  # what is sent to a server on this machine that checks no key

OnRoute = Callable[[RouteRecord], None]


class Client(ReusesRequests, AsyncDisco):
    """This command's own client: no application changes its headers."""


class ClientMaker:
    """Makes the clients of one `disco serve`.

    A local model is loaded once, however many names use it. All names share budgets, and what is known of endpoints
    that fail. Mutable: `_first`, which all others stand beside; `_local`, by name: the models on this machine.

    Args:
        settings: of the command.
        engine: the model of a verify server, which is every client's local model then; None: there is none.
        prompt_cache: how prompts are saved; None: none is.
        redact: the hook of `--redact`.
        on_route: gets every route record.
    """

    def __init__(
        self,
        settings: ServeSettings,
        *,
        engine: Endpoint | None,
        prompt_cache: PromptCache | None,
        redact: Redact | None,
        on_route: OnRoute,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._prompt_cache = prompt_cache
        self._on_route = on_route
        self._common: dict[str, Any] = {
            "shadow": settings.shadow,
            "histories": settings.histories,
            "power": False if settings.power == "off" else None,
            "state": False if settings.state == "off" else settings.state,
            "attach": False,
            "redact": redact,
        }
        self._first: Client | None = None
        self._local: dict[object, Endpoint] = {}

    def one(self, tiers: Sequence[Tier | str], backups: Sequence[Backup]) -> Client:
        """Return the only client; its server is the one in the environment.

        Raises:
            DiscoError: settings that contradict each other, a model that is not there.
            openai.OpenAIError: there is neither a key nor a local model.
        """
        settings = self._settings
        local = None if settings.usual_local() == "none" else settings.usual_local()
        return Client(
            local=local if self._engine is None else self._engine,
            runtime=settings.runtime,
            context_tokens=None if self._engine is not None or local is None else settings.context_tokens,
            lora=() if self._engine is not None else loras_named(settings.lora),
            mmproj=settings.mmproj,
            prompt_cache=self._prompt_cache or False,
            preset=settings.preset,
            budget=settings.budget,
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
        for name, table in self._settings.models.items():
            servers = _server_of(name, table)
            try:
                client = self._client(name, table, servers)
            except DiscoError as error:
                raise ConfigurationError(f"{table_name(['models', name])}: {error}") from error
            await stack.enter_async_context(client)
            models.append(NamedModel(name, client, table.model or name))
        return NamedModels(models, default=self._settings.default)

    def _client(self, name: str, table: ModelTable, servers: Mapping[str, Any]) -> Client:
        local, more = self._local_of(table)
        if local is None and table.base_url is None and not table.tiers:
            raise ConfigurationError(
                'no model could answer. Add local = "smollm2-135m" (or a GGUF file), or the base_url of a server.'
            )
        client = Client(
            local=local,
            preset=table.preset or self._settings.preset,
            budget=self._budget(name, table),
            default_options=table.options,
            on_route=partial(_as_served, self._on_route, name),
            _beside=self._first,
            **servers,
            **more,
            **self._common,
        )
        forget_environment(client)
        self._first = self._first or client
        if isinstance(local, str) and client.router.local is not None:
            self._local[_loaded_as(local, more)] = client.router.local
        return client

    def _budget(self, name: str, table: ModelTable) -> Mapping[str, Any] | None:
        if table.budget is not None:
            return {"account": name, **table.budget}
        budget = self._settings.budget
        if budget is None:
            return None
        preset = load_preset(table.preset or self._settings.preset)
        if not preset.limits.local_only:
            return budget
        # This model reaches no server, and a limit on servers would be refused. What the device may do, it shares.
        here = {key: value for key, value in budget.items() if key not in ("usd", "server_tokens")}
        return here if "device_tokens" in here else None

    def _local_of(self, table: ModelTable) -> tuple[str | Endpoint | None, dict[str, Any]]:
        """Return the local model of this name, which may be there already, and how it runs if it is not."""
        given = table.local
        if self._engine is not None:
            if given not in (None, "none"):
                raise ConfigurationError(
                    f'local = "{given}" cannot be used with verify, whose model is also the local one. Leave local '
                    'out, or write local = "none".'
                )
            return (None if given == "none" else self._engine), {}
        name = given or self._settings.usual_local()
        if name == "none":
            return None, {}
        added = self._settings if given is None and not (table.lora or table.mmproj) else table
        files = {"lora": loras_named(added.lora), "mmproj": added.mmproj}
        if (loaded := self._local.get(_loaded_as(name, files))) is not None:
            return loaded, {}
        if is_address(name) or as_plugin(name) is not None:
            return name, files
        return name, {
            "runtime": self._settings.runtime,
            "context_tokens": self._settings.context_tokens,
            "prompt_cache": self._prompt_cache or False,
            **files,
        }


def _loaded_as(local: str, files: Mapping[str, Any]) -> tuple[object, ...]:
    """Return by what a model is known that is loaded for several tables."""
    return local, tuple(files.get("lora", ())), files.get("mmproj")


def _as_served(on_route: OnRoute, name: str, route: RouteRecord) -> None:
    on_route(replace(route, served_as=name))


def _server_of(name: str, table: ModelTable) -> dict[str, Any]:
    """Return what a client is made with that answers under one name, of its own server and other endpoints.

    Raises:
        ConfigurationError: a key is missing, or the server's address; the message names the table.
    """
    where = table_name(["models", name])
    server = {"model", "key_env", "key_file", "price", "continuation", "backups"}
    if table.base_url is None and server & table.model_fields_set:
        raise ConfigurationError(
            f"{where} says something of a server, but not where it is. Add base_url, such as "
            '"https://api.openai.com/v1".'
        )
    return {
        "base_url": table.base_url,
        # "": none, and none from the environment either, which is not this server's.
        "api_key": "" if table.base_url is None else _key(table.base_url, table, where),
        "price": _price(table.price),
        "continuation": table.continuation,
        "tiers": tiers_of(table.tiers, ["models", name, "tiers"]),
        "backups": backups_of(table.backups, ["models", name, "backups"]),
    }


def tiers_of(tables: Sequence[TierTable], array: Sequence[str]) -> list[Tier]:
    """Return the tiers of an array of tables; a mistake, or a key that is missing, is named with the table."""
    tiers = []
    for number, table in enumerate(tables):
        where = table_name([*array, number])
        # Only a server of the user's own may check no key.
        needs = table.reach == "any" or table.key_env is not None or table.key_file is not None
        key = _key(table.base_url, table, where) if needs else None
        try:
            tiers.append(
                Tier(
                    base_url=table.base_url,
                    model=table.model,
                    api_key=key,
                    reach=table.reach,
                    price=_price(table.price),
                    continuation=table.continuation,
                    name=table.name,
                )
            )
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from None
    return tiers


def backups_of(tables: Sequence[ServerTable], array: Sequence[str]) -> list[Backup]:
    """Return the further servers of an array of tables; a key that is missing is named with the table."""
    return [
        Backup(
            base_url=table.base_url,
            api_key=_key(table.base_url, table, table_name([*array, number])),
            model=table.model,
            price=_price(table.price),
            continuation=table.continuation,
            name=table.name,
        )
        for number, table in enumerate(tables)
    ]


def _price(given: Sequence[float] | None) -> tuple[float, float] | None:
    return None if given is None else (float(given[0]), float(given[1]))


def _key(base_url: str, table: ModelTable | ServerTable, where: str) -> str:
    """Return the key of a server.

    Raises:
        ConfigurationError: it is not where the table says, or the table does not say where.
    """
    if table.key_env is not None and table.key_file is not None:
        raise ConfigurationError(f"{where} has key_env and key_file. Leave one of them out.")
    if table.key_env is not None:
        key = os.environ.get(table.key_env, "").strip()
        if not key:
            raise ConfigurationError(
                f"{where} key_env: the environment variable {table.key_env} is not set. Set it to the server's key."
            )
        return _checked_key(key, f"{where} key_env: the environment variable {table.key_env}")
    if table.key_file is not None:
        path = Path(table.key_file)
        key = settings_text(path, f"{where} key_file:").strip()
        if not key:
            raise ConfigurationError(f"{where} key_file: {path} is empty. Put the key into it.")
        return _checked_key(key, f"{where} key_file: {path}")
    if not is_loopback(urlsplit(base_url).hostname or ""):
        raise ConfigurationError(
            f"{where} has no key for its server. Name the environment variable that holds it with key_env, or a file "
            "with key_file (any text in it if the server checks none)."
        )
    return _NO_KEY


def _checked_key(key: str, source: str) -> str:
    if not _KEY.fullmatch(key):
        raise ConfigurationError(
            f"{source} holds more than a key, which is one word of ASCII characters. Leave the rest out."
        )
    return key
