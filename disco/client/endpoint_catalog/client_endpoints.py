"""The endpoints that a client was given, in the user's order: the local one, the tiers, the server, its backups."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import anyio

from disco.candidate import Reach
from disco.client.endpoint_catalog.attaching import Attach, attaching
from disco.client.endpoint_catalog.catalog import UNMEASURED, CatalogEntry
from disco.client.endpoint_catalog.local_servers import LocalServer, is_address
from disco.client.endpoint_catalog.pairs import Pairs, Speculate
from disco.client.endpoint_catalog.plugged import Plugin, as_plugin
from disco.client.endpoint_catalog.pricing import price_of
from disco.client.endpoint_catalog.runtimes import model_endpoint
from disco.client.endpoint_catalog.splits import Split
from disco.client.endpoint_catalog.tiers import Tier
from disco.dispatch import Preset
from disco.dispatch.eligibility import is_within
from disco.dispatch.sections import SpeculateSection
from disco.endpoints.contract import Endpoint
from disco.endpoints.runtimes import LoraChoice, Runtime
from disco.endpoints.saved_prompts import PromptCache
from disco.errors import ConfigurationError, DiscoError
from disco.notices import warn
from disco.rates import PriceChoice
from disco.telemetry.log_lines import log_loaded, log_probe

if TYPE_CHECKING:
    from disco.endpoints.openai_api import OpenAIEndpoint

__all__ = ["AnyTier", "ClientEndpoints", "Hosting", "tier_entries"]

AnyTier = Tier | Split | Endpoint | Plugin | str
"""What a client takes as a tier; a text names an endpoint that an installed package adds."""

# Answers that a tier on another machine is assumed to write at the same time, where its server does not report it.
_AT_ONCE_ELSEWHERE = 16


class Hosting(NamedTuple):
    """How a local model runs that a client was given by name.

    Attributes:
        prompt_cache: how prompts are saved; None: none is.
        attach: whether a running `disco serve` may take its place.
        runtime: what runs it.
        context_tokens: prompt and answer together; None: what its file and the free memory say.
        lora: adapters that are added to its weights.
        mmproj: its projector for images.
    """

    prompt_cache: PromptCache | None = None
    attach: Attach = False
    runtime: Runtime = "auto"
    context_tokens: int | None = None
    lora: LoraChoice | Sequence[LoraChoice] = ()
    mmproj: str | os.PathLike[str] | None = None

    def refuse(self, why: str) -> None:
        """Refuse what only a model can be given that disco loads.

        Args:
            why: what the local model is instead, and the remedy, as a sentence without its end.

        Raises:
            ConfigurationError: some of it was given.
        """
        for option in ("lora", "mmproj"):
            if getattr(self, option) not in (None, (), []):
                raise ConfigurationError(
                    f"{option} is for a model that local=... names by its name or file. {why}: leave {option} out."
                )


class ClientEndpoints:
    """The local endpoint, the tiers and the backups of a client and of its copies.

    A copy may have another server. So the server is an argument of every method that needs it.

    Attributes:
        local: the local endpoint; None if there is none.
        pairs: its drafter with the servers that may verify.
        tiers: the tiers, from the smallest model to the best.
    """

    def __init__(
        self,
        *,
        local: str | Path | Endpoint | LocalServer | Plugin | None,
        here: Hosting,
        tiers: Sequence[AnyTier],
        backups: Sequence[CatalogEntry],
        price: PriceChoice | None,
        speculate: Speculate = "off",
    ) -> None:
        """Make the endpoints that are not given as objects; see `AsyncDisco` for the arguments."""
        self._owns_local = not isinstance(local, Endpoint)
        if local is None:
            given = {
                "prompt_cache": here.prompt_cache,
                "context_tokens": here.context_tokens,
                "lora": here.lora or None,
                "mmproj": here.mmproj,
            }
            for option in (name for name, value in given.items() if value is not None):
                raise ConfigurationError(
                    f"{option} is for a local model, but none is configured: pass local=..., or leave {option} out."
                )
        plugin = as_plugin(local)
        self._local_price = None if plugin is None else price_of(plugin.price)
        self._local_model = None if plugin is None else plugin.model or plugin.kind
        local = plugin or local
        self.local = None if local is None else _local_endpoint(local, here, drafts=speculate != "off")
        self.pairs = Pairs(speculate, self.local)
        first_tier = 0 if self.local is None else 1
        self.tiers = tier_entries(tiers, first_rank=first_tier)
        self._own_tiers = [
            e.endpoint for e, given in zip(self.tiers, tiers, strict=True) if not isinstance(given, Endpoint)
        ]
        self._server_rank = first_tier + len(self.tiers)
        self._price = price_of(price)
        self._standby = tuple(replace(entry, standby=True, rank=self._server_rank) for entry in backups)

    @property
    def has_others(self) -> bool:
        """Whether an endpoint besides the server may take part."""
        return self.local is not None or bool(self.tiers or self._standby)

    @property
    def runs_here(self) -> bool:
        """Whether all models on this machine are run by this program now, and not by servers beside it."""
        here = (
            e
            for e in (self.local, *(t.endpoint for t in self.tiers))
            if e is not None and e.reach == "device"
        )
        return not any(
            (hasattr(endpoint, "served_model") and not hasattr(endpoint, "process_id"))
            or getattr(endpoint, "served", None)
            for endpoint in here
        )

    def server_entry(self, server: Endpoint, drafting: SpeculateSection | None = None) -> CatalogEntry:
        """Return the client's own server as an entry of the catalog; where an answer may be drafted, the pair."""
        entry = CatalogEntry(server, price=self._price, rank=self._server_rank)
        if drafting is None or not self.pairs.is_on:
            return entry
        pair = self.pairs.pair(cast("OpenAIEndpoint", server), drafting)
        drafter, local = pair.drafts_with, self._local_entry
        drafts = local if drafter is not None and local is not None and drafter.name == local.name else None
        return replace(entry, endpoint=pair, drafter=drafts)

    @property
    def _local_entry(self) -> CatalogEntry | None:
        if self.local is None:
            return None
        price = self._local_price
        if price is None and self.local.reach == "any":
            price = self._price
        return CatalogEntry(self.local, self._local_model, price)

    def members(
        self, server: Endpoint | None, drafting: SpeculateSection | None = None
    ) -> tuple[CatalogEntry, ...]:
        """Return the endpoints of the client with this server of its own, in the user's order.

        Args:
            server: the server of the client or of a copy.
            drafting: how an answer is drafted that may be; None: none is.

        Raises:
            ConfigurationError: two endpoints have the same name.
        """
        members: list[CatalogEntry] = []
        if (local := self._local_entry) is not None:
            members.append(local)
        members.extend(self.tiers)
        if server is not None:  # backups need a first server
            members.append(self.server_entry(server, drafting))
            members.extend(self._standby)
        names = [member.name for member in members]
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(
                    f"Two endpoints are called {name!r}. Give one of them another name: name=... of the tier, the "
                    "backup or the local endpoint."
                )
        return tuple(members)

    def check(self, server: Endpoint | None, reach: Reach, *, chosen: str, preset: Preset) -> None:
        """Refuse a configuration under which no request could ever be served.

        Args:
            server: the client's server, if it has one.
            reach: how far requests may travel at most.
            chosen: the application's choice that decides the reach, for the message.
            preset: the preset of the client's requests.

        Raises:
            ConfigurationError: no endpoint could serve any request.
        """
        policy = preset.dispatch.policy
        members = self.members(server)
        if not members:
            raise ConfigurationError(
                "Neither a local model nor a server is configured: pass local=..., or api_key=..."
            )
        here = any(m.endpoint.reach == "device" for m in members)
        if not here and (reach == "device" or policy == "device_only"):
            if self.local is not None:
                raise ConfigurationError(
                    f"{chosen} keeps answers on this machine, but the local model is on another one "
                    f"(reach={self.local.reach!r})."
                )
            raise ConfigurationError(
                f"{chosen} keeps answers on this machine, but no local model is "
                'configured: pass local="smollm2-135m", or the path of a GGUF file.'
            )
        if not any(is_within(m.endpoint.reach, reach) for m in members):
            raise ConfigurationError(
                f"{chosen} keeps answers on your own machines, but no endpoint there is configured: pass local=..., "
                'or tiers=[Tier(base_url=..., model=..., reach="own")].'
            )
        away = any(m.endpoint.reach != "device" for m in members)
        if not away and policy == "race":
            raise ConfigurationError(
                f"The preset {preset.name!r} needs a server, but none is configured: pass api_key=... "
                "(and base_url=...), or choose another preset."
            )

    async def warm_up(
        self,
        server: OpenAIEndpoint | None,
        model: str | None,
        reach: Reach,
        drafting: SpeculateSection | None,
        on_local: Callable[[], None] | None = None,
    ) -> None:
        """Warm up every endpoint within `reach`, all at once; `model` names the server's model to probe.

        `on_local` is called once the local model is ready, or there is none: a server may say nothing for long.

        Raises:
            DiscoError: the local model cannot be loaded. A fault of a tier is warned of: its first request reports it.
        """

        async def warm_up_server(server: OpenAIEndpoint) -> None:
            pair = None if drafting is None or not self.pairs.is_on else self.pairs.pair(server, drafting)
            if pair is not None and await pair.ask() is not None:
                return  # what verifies is also known to continue
            await server.warm_up()
            if model is not None and server.probes:
                await server.probe(model)
            log_probe(model, server.continuation(model).method)
            for backup in self._standby:
                if is_within(backup.endpoint.reach, reach):
                    group.start_soon(backup.endpoint.warm_up)

        async def warm_up_tier(tier: Endpoint) -> None:
            try:
                await tier.warm_up()
            except DiscoError as error:
                warn(f"The tier {tier.name!r} could not be warmed up: {type(error).__name__}.")

        error: Exception | None = None
        async with anyio.create_task_group() as group:
            if server is not None and is_within(server.reach, reach):
                group.start_soon(warm_up_server, server)
            for tier in self.tiers:
                if is_within(tier.endpoint.reach, reach):
                    group.start_soon(warm_up_tier, tier.endpoint)
            if self.local is not None and is_within(self.local.reach, reach):
                began_at, was_ready = anyio.current_time(), self.local.capabilities().ready
                try:
                    await self.local.warm_up()
                    if not was_ready:
                        log_loaded(self.local.name, anyio.current_time() - began_at)
                except Exception as raised:  # noqa: BLE001 - raised after the group, not as an ExceptionGroup
                    error = raised
            if error is not None:
                group.cancel_scope.cancel()
            elif on_local is not None:
                on_local()
        if error is not None:
            raise error

    async def aclose(self) -> None:
        """Close every endpoint but the server and those that were given as objects, which the caller closes."""
        await self.pairs.aclose()
        for endpoint in (*self._own_tiers, *(entry.endpoint for entry in self._standby)):
            await endpoint.aclose()
        if self.local is not None and self._owns_local:
            await self.local.aclose()


def tier_entries(tiers: Sequence[AnyTier], *, first_rank: int) -> tuple[CatalogEntry, ...]:
    """Return the tiers as entries of the catalog, their endpoints made where they are described by a `Tier`.

    Args:
        tiers: from the smallest model to the best.
        first_rank: rank of the first tier.

    Raises:
        ConfigurationError: `tiers` is no list, or an item is neither a tier nor an endpoint.
    """
    from disco.client.endpoint_catalog.backup_server import BackupServer  # noqa: PLC0415 - the HTTP endpoint loads with it

    if not isinstance(tiers, Sequence):
        raise ConfigurationError(f"tiers is a {type(tiers).__name__}. Give a list: tiers=[disco.Tier(...)].")
    entries = []
    for number, tier in enumerate(tiers, 1):
        rank = first_rank + number - 1
        if isinstance(tier, Endpoint):
            # The client's own device profile describes the local model, not this one.
            entries.append(CatalogEntry(tier, profile=UNMEASURED, rank=rank))
            continue
        usual = f"tier-{number}"
        if (plugin := as_plugin(tier)) is not None:
            model = plugin.model or plugin.kind
            entries.append(
                CatalogEntry(plugin.make(usual), model, price_of(plugin.price), profile=UNMEASURED, rank=rank)
            )
            continue
        if isinstance(tier, Split):
            split = tier.endpoint(usual if tier.name is None else tier.name)
            drafts = CatalogEntry(split.drafts, profile=UNMEASURED)
            entries.append(
                CatalogEntry(split, price=price_of(tier.price), profile=UNMEASURED, rank=rank, drafter=drafts)
            )
            continue
        if not isinstance(tier, Tier):
            raise ConfigurationError(
                f"tiers contains a {type(tier).__name__}. Write disco.Tier(base_url=..., model=..., api_key=...) for "
                "each server, or give an endpoint object."
            )
        name = usual if tier.name is None else tier.name
        made: Endpoint
        if tier.reach == "any":
            made = BackupServer(tier, name, logp=tier.logp)
        else:
            at_once = 1 if tier.reach == "device" else _AT_ONCE_ELSEWHERE
            made = tier.local_server(name).endpoint(assumed_at_once=at_once)
        entries.append(CatalogEntry(made, tier.model, price_of(tier.price), profile=UNMEASURED, rank=rank))
    return tuple(entries)


def _local_endpoint(
    local: str | Path | Endpoint | LocalServer | Plugin, here: Hosting, *, drafts: bool
) -> Endpoint:
    prompt_cache, attach, runtime, context_tokens, lora, mmproj = here
    if isinstance(local, Plugin):
        _refuse_runtime(runtime, "This endpoint is another package's")
        here.refuse("This endpoint is another package's")
        _refuse_context(context_tokens, "This endpoint is another package's: leave it out")
        if prompt_cache is not None:
            raise ConfigurationError(
                f"prompt_cache is for a model that disco runs. This endpoint is another package's ({local.kind}): "
                "leave prompt_cache out."
            )
        return local.make("device")
    if isinstance(local, Endpoint):
        if prompt_cache is not None:
            raise ConfigurationError(
                "prompt_cache is for a model that local=... names. This local model is an endpoint object "
                "already. Give prompt_cache to that object: HostEndpoint(prompt_cache=...)."
            )
        _refuse_runtime(runtime, "This local model is an endpoint object already")
        here.refuse("This local model is an endpoint object already, which has its own")
        _refuse_context(
            context_tokens, "This local model is an endpoint object already: give it to that object"
        )
        return local
    if isinstance(local, str) and is_address(local):
        local = LocalServer.at(local)
    if isinstance(local, LocalServer):
        if prompt_cache is not None:
            raise ConfigurationError(
                "prompt_cache is for a model that this program starts. This one runs in a server, which may have "
                "a cache of its own: leave prompt_cache out."
            )
        _refuse_runtime(runtime, "This one runs in a server")
        here.refuse(
            "This one runs in a server, which is started with its own (llama-server --lora, --mmproj)"
        )
        _refuse_context(
            context_tokens,
            "This one runs in a server, which has its own: set it there, or say what it has with "
            "LocalServer(context_tokens=...)",
        )
        return local.endpoint()
    own = model_endpoint(
        local,
        runtime=runtime,
        prompt_cache=prompt_cache,
        drafts=drafts,
        context_tokens=context_tokens,
        lora=lora,
        mmproj=mmproj,
    )
    return attaching(own, attach, drafts=drafts)


def _refuse_runtime(runtime: Runtime, why: str) -> None:
    if runtime != "auto":
        raise ConfigurationError(
            f"runtime={runtime!r} is for a model that local=... names by its name or file. {why}: leave runtime out."
        )


def _refuse_context(context_tokens: int | None, why: str) -> None:
    if context_tokens is not None:
        raise ConfigurationError(
            f"context_tokens is for a model that local=... names by its name or file. {why}."
        )
