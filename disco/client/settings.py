"""What the application chose when it made a client, and what a client shares with its copies.

The dictionaries and names among it are typed, so that a type checker finds a wrong spelling.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union

from disco.client.request_options import DEFAULT_PRESET, NO_OPTIONS, RequestOptions
from disco.endpoints.saved_prompts import PromptCache
from disco.request import Timeouts

if TYPE_CHECKING:
    import httpx2

    from disco.candidate import Reach
    from disco.client.endpoint_catalog.backups import Backup
    from disco.client.endpoint_catalog.local_servers import LocalServer
    from disco.client.endpoint_catalog.plugged import Plugin
    from disco.client.endpoint_catalog.splits import Split
    from disco.client.endpoint_catalog.tiers import Tier
    from disco.client.power_watch import PowerSource
    from disco.client.router import Router
    from disco.dispatch import Preset
    from disco.endpoints.continuation import Continuation
    from disco.endpoints.continuation.verdicts import Verdicts
    from disco.endpoints.contract import Endpoint
    from disco.endpoints.redaction import Redact
    from disco.endpoints.runtimes import LoraChoice, Runtime
    from disco.judging import HistoryStore
    from disco.profiles import DeviceProfile, ServerProfile
    from disco.rates import PriceChoice
    from disco.telemetry import OnRoute

__all__ = [
    "AsyncAzureArguments",
    "AzureArguments",
    "Budget",
    "ClientSettings",
    "Options",
    "OwnArguments",
    "PresetChoice",
    "PresetName",
    "PromptCache",
    "SharedParts",
]


PresetName = Literal["assist", "balanced", "cascade", "cheap", "fast", "private", "server-first", "speech"]
"""The names of the shipped presets."""

PresetChoice = Union[PresetName, "os.PathLike[str]", "Preset"]
"""What `preset=` takes: a name; the path of a file, as a `Path`; or a `Preset`. A text that is no shipped name may be
a typing error, so type checkers refuse it, although one that ends in ".toml" is read as a path. For a name that is
known at run time only: `disco.dispatch.load_preset(name)`."""


class Options(TypedDict, total=False):
    """Options of a request, `extra_body={"disco": Options(...)}`, or of all requests of a client, `default_options`.

    A plain dictionary at run time. `disco.client.request_options.RequestOptions` says what each key means. None stands
    for what the client's preset says.
    """

    preset: PresetName | os.PathLike[str] | None
    local_only: bool | None
    reach: Reach | None
    pace_tps: float | Literal["off"] | None
    migrate: bool | None
    deadline_s: float | None
    budget_class: Literal["background", "standard", "urgent"] | None
    task: str | None
    classes: Sequence[str] | None
    judge: Literal["whole", "guard", "revise", "off"] | None
    speculate: bool | None
    endpoint: str | None
    takeover: Sequence[str] | None


class Budget(TypedDict, total=False):
    """What may be spent: the argument `budget` of a client. docs/how-to/budgets.md says what each key means.

    A plain dictionary at run time.
    """

    usd: float
    server_tokens: int
    device_tokens: int
    window_s: float
    unreported: Literal["estimated", "reserved"]
    account: str
    per: Literal["hour", "day", "week", "month"]


class OwnArguments(TypedDict, total=False):
    """disco's own arguments of a client; `AsyncDisco` describes them."""

    local: str | os.PathLike[str] | Endpoint | LocalServer | Plugin | None
    runtime: Runtime
    context_tokens: int | None
    lora: LoraChoice | Sequence[LoraChoice]
    mmproj: str | os.PathLike[str] | None
    preset: PresetChoice
    policy: PresetChoice | None
    continuation: str | Continuation
    device_profile: str | os.PathLike[str] | DeviceProfile | None
    server_profile: str | os.PathLike[str] | ServerProfile | None
    price: PriceChoice | None
    tiers: Sequence[Tier | Split | Endpoint | Plugin | str]
    backups: Sequence[Backup | Plugin | str]
    budget: Budget | None
    histories: str | os.PathLike[str] | HistoryStore | None
    state: str | os.PathLike[str] | bool | None
    prompt_cache: bool | str | os.PathLike[str] | PromptCache
    timeouts: Timeouts | None
    default_options: Options | None
    redact: Redact | None
    speculate: Literal["auto", "always", "off"]
    power: PowerSource
    shadow: PresetChoice | None
    attach: Literal["auto"] | bool
    on_route: OnRoute | None


class _OfBoth(OwnArguments, total=False):
    azure_endpoint: str | None
    azure_deployment: str | None
    api_version: str | None
    admin_api_key: str | None
    workload_identity: Any
    azure_ad_token: str | None
    organization: str | None
    project: str | None
    webhook_secret: str | None
    base_url: str | None
    websocket_base_url: str | httpx2.URL | None
    timeout: float | httpx2.Timeout | None
    max_retries: int
    default_headers: Mapping[str, str] | None
    default_query: Mapping[str, object] | None


class AzureArguments(_OfBoth, total=False):
    """The arguments of `AzureDisco`: disco's own and those of `openai.AzureOpenAI`."""

    api_key: str | Callable[[], str] | None
    azure_ad_token_provider: Callable[[], str] | None
    http_client: httpx2.Client | None


class AsyncAzureArguments(_OfBoth, total=False):
    """The arguments of `AsyncAzureDisco`: disco's own and those of `openai.AsyncAzureOpenAI`."""

    api_key: str | Callable[[], Awaitable[str]] | None
    azure_ad_token_provider: Callable[[], str | Awaitable[str]] | None
    http_client: httpx2.AsyncClient | None


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """disco's own arguments of a client; `AsyncDisco` describes them. The SDK's arguments are not here."""

    local: str | os.PathLike[str] | Endpoint | LocalServer | Plugin | None = None
    runtime: Runtime = "auto"
    context_tokens: int | None = None
    lora: LoraChoice | Sequence[LoraChoice] = ()
    mmproj: str | os.PathLike[str] | None = None
    preset: PresetChoice = DEFAULT_PRESET
    policy: PresetChoice | None = None
    continuation: str | Continuation = "auto"
    device_profile: str | os.PathLike[str] | DeviceProfile | None = None
    server_profile: str | os.PathLike[str] | ServerProfile | None = None
    price: PriceChoice | None = None
    tiers: Sequence[Tier | Split | Endpoint | Plugin | str] = ()
    backups: Sequence[Backup | Plugin | str] = ()
    budget: Budget | None = None
    histories: str | os.PathLike[str] | HistoryStore | None = None
    state: str | os.PathLike[str] | bool | None = None
    prompt_cache: bool | str | os.PathLike[str] | PromptCache = False
    timeouts: Timeouts | None = None
    default_options: Options | None = None
    redact: Redact | None = None
    speculate: Literal["auto", "always", "off"] = "off"
    power: PowerSource = None
    shadow: PresetChoice | None = None
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
