"""What the application chose when it made a client, and what a client shares with its copies."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from disco.client.request_options import NO_OPTIONS, RequestOptions
from disco.endpoints.saved_prompts import PromptCache
from disco.request import Timeouts

if TYPE_CHECKING:
    from disco.client.endpoint_catalog.backups import Backup
    from disco.client.endpoint_catalog.local_servers import LocalServer
    from disco.client.endpoint_catalog.plugged import Plugin
    from disco.client.endpoint_catalog.runtimes import Runtime
    from disco.client.endpoint_catalog.splits import Split
    from disco.client.endpoint_catalog.tiers import Tier
    from disco.client.power_watch import PowerSource
    from disco.client.router import Router
    from disco.dispatch import Preset
    from disco.endpoints.continuation import Continuation
    from disco.endpoints.continuation.verdicts import Verdicts
    from disco.endpoints.contract import Endpoint
    from disco.endpoints.redaction import Redact
    from disco.judging import HistoryStore
    from disco.profiles import DeviceProfile, ServerProfile
    from disco.rates import PriceChoice
    from disco.telemetry import OnRoute

__all__ = ["ClientSettings", "PromptCache", "SharedParts"]


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """disco's own arguments of a client; `AsyncDisco` describes them. The SDK's arguments are not here."""

    local: str | os.PathLike[str] | Endpoint | LocalServer | Plugin | None = None
    isolation: Literal["thread", "process"] = "thread"
    runtime: Runtime = "auto"
    preset: str | os.PathLike[str] | Preset = "balanced"
    policy: str | os.PathLike[str] | Preset | None = None
    continuation: str | Continuation = "auto"
    device_profile: str | os.PathLike[str] | DeviceProfile | None = None
    server_profile: str | os.PathLike[str] | ServerProfile | None = None
    price: PriceChoice | None = None
    tiers: Sequence[Tier | Split | Endpoint | Plugin | str] = ()
    backups: Sequence[Backup | Plugin | str] = ()
    budget: Mapping[str, Any] | None = None
    histories: str | os.PathLike[str] | HistoryStore | None = None
    state: str | os.PathLike[str] | bool | None = None
    prompt_cache: bool | str | os.PathLike[str] | PromptCache = False
    timeouts: Timeouts | None = None
    default_options: Mapping[str, Any] | None = None
    redact: Redact | None = None
    speculate: Literal["auto", "always", "off"] = "off"
    power: PowerSource = None
    shadow: str | os.PathLike[str] | Preset | None = None
    attach: Literal["auto"] | bool = False
    on_route: OnRoute | None = None

    @classmethod
    def taken_from(cls, given: dict[str, Any]) -> ClientSettings:
        """Take disco's arguments out of a client's arguments; the SDK's are left."""
        return cls(**{f.name: given.pop(f.name) for f in fields(cls) if f.name in given})


@dataclass(frozen=True, slots=True)
class SharedParts:
    """What a copy of a client (`with_options`) shares with it.

    Attributes:
        router: the local model, the statistics and the budgets.
        continuation: how the server is made to continue an answer.
        verdicts: what probes have found; None where there is no server. Mutable.
        timeouts: the clocks, if the application gave them.
        options: the default options of the copied client.
        redact: the application's hook; None: nothing is redacted.
        has_server: whether the copied client has a server.
    """

    router: Router
    continuation: str | Continuation
    verdicts: Verdicts | None = field(repr=False)
    timeouts: Timeouts | None = None
    options: RequestOptions = NO_OPTIONS
    redact: Redact | None = None
    has_server: bool = True
