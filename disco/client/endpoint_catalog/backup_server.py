"""The endpoints of `AsyncDisco(backups=...)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from disco.client.endpoint_catalog.backups import Backup
from disco.client.endpoint_catalog.catalog import CatalogEntry
from disco.client.endpoint_catalog.plugged import Plugin, as_plugin
from disco.client.endpoint_catalog.pricing import price_of
from disco.client.endpoint_catalog.tiers import Tier
from disco.endpoints.continuation import Continuation
from disco.endpoints.openai_api import OpenAIEndpoint
from disco.endpoints.openai_api.api_attempt import ServerAttempt
from disco.endpoints.openai_api.refused.account import Account
from disco.endpoints.openai_api.sdk_client import PlainClient
from disco.errors import ConfigurationError
from disco.request import Prefix, Request

__all__ = ["BackupServer", "backup_entries"]


class BackupServer(OpenAIEndpoint):
    """The endpoint of a `Backup`, or of a `Tier`. The first server's headers and query are not sent to it."""

    def __init__(self, backup: Backup | Tier, name: str, *, logp: bool | None = None) -> None:
        continuation = backup.continuation
        if isinstance(continuation, str):
            continuation = Continuation(method=continuation)  # type: ignore[arg-type] # checked by Continuation
        self.model = backup.model
        self.price = backup.price
        self._own = PlainClient(
            api_key=backup.api_key, base_url=backup.base_url, max_retries=0, http_client=backup.http_client
        )
        super().__init__(client=self._own, name=name, continuation=continuation, logp=logp)

    def own_model(self, model: str | None) -> str:
        del model  # the request names a model of the first server
        return self.model

    def account(self, extra_headers: Mapping[str, Any] | None = None) -> Account:
        del extra_headers  # as in `open`
        return super().account()

    def open(
        self,
        request: Request,
        prefix: Prefix = Prefix(),  # noqa: B008 - frozen
        *,
        wants: frozenset[str] = frozenset(),
    ) -> ServerAttempt:
        # A backup is asked by chat: the body of a `/responses` request may name items that the first server stores.
        own = replace(request, model=self.model, extra_headers=None, extra_query=None, responses=None)
        return super().open(own, prefix, wants=wants)

    async def warm_up(self) -> None:
        await super().warm_up()
        if self.probes:
            await self.probe(self.model)

    async def aclose(self) -> None:
        await super().aclose()
        await self._own.close()


def backup_entries(
    backups: Sequence[Backup | Plugin | str], *, taken: Sequence[str]
) -> tuple[CatalogEntry, ...]:
    """Make the endpoints of the backups, as entries of the catalog.

    Args:
        backups: the backups; those of equal price are asked in this order.
        taken: names that other endpoints have.

    Raises:
        ConfigurationError: a value is missing, or two endpoints have the same name.
    """
    entries: list[CatalogEntry] = []
    names = set(taken)
    for number, given in enumerate(backups, 1):
        backup = as_plugin(given) or given
        if not isinstance(backup, Backup | Plugin):
            raise ConfigurationError(
                f"backups contains a {type(backup).__name__}. Write "
                "disco.Backup(base_url=..., api_key=..., model=...) for each server."
            )
        name = f"backup-{number}" if backup.name is None else backup.name
        needed = (
            ("base_url", "the address of its API"),
            ("api_key", "any text if the server checks none"),
            ("model", "the model to request from it"),
        )
        for what, remedy in needed if isinstance(backup, Backup) else ():
            if not getattr(backup, what):
                raise ConfigurationError(f"The backup {name!r} has no {what}: pass {what}=... ({remedy}).")
        if not name or name in names:
            raise ConfigurationError(
                f"Two endpoints are called {name!r}. Give the backup another name=..."
                if name
                else "A backup's name is empty. Leave name out, or give the backup a name."
            )
        names.add(name)
        if isinstance(backup, Backup):
            entry = CatalogEntry(BackupServer(backup, name), backup.model, price_of(backup.price))
        else:
            entry = CatalogEntry(backup.make(name), backup.model or backup.kind, price_of(backup.price))
        entries.append(entry)
    return tuple(entries)
