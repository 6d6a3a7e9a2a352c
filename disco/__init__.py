"""disco: one good answer out of two models, one on this machine and one behind an API."""

from disco import (
    _moved,
    _needs,  # noqa: F401 - imported first: names what is missing
)
from disco.client import PowerReadings, RouteLog
from disco.client.async_client import AsyncAzureDisco, AsyncDisco
from disco.client.chat.evidence import Evidence, evidence, route_of
from disco.client.chat.revised_text import RevisedText
from disco.client.endpoint_catalog.backups import Backup
from disco.client.endpoint_catalog.local_servers import LocalServer
from disco.client.endpoint_catalog.plugged import Plugin
from disco.client.endpoint_catalog.splits import Split
from disco.client.endpoint_catalog.tiers import Tier
from disco.client.settings import Budget, Options, PresetName, PromptCache
from disco.client.sync.sync_client import AzureDisco, Disco
from disco.errors import (
    AnswerTimeoutError,
    BudgetExceededError,
    ConfigurationError,
    ContextLengthError,
    DiscoError,
    DiscoWarning,
    IncompleteAnswerError,
    LocalModelError,
    ModelFileError,
    NoEndpointError,
    RedactionError,
)
from disco.request import Timeouts
from disco.session.records.route_record import RouteRecord

_moved.install()

__all__ = [
    "AnswerTimeoutError",
    "AsyncAzureDisco",
    "AsyncDisco",
    "AzureDisco",
    "Backup",
    "Budget",
    "BudgetExceededError",
    "ConfigurationError",
    "ContextLengthError",
    "Disco",
    "DiscoError",
    "DiscoWarning",
    "Evidence",
    "IncompleteAnswerError",
    "LocalModelError",
    "LocalServer",
    "ModelFileError",
    "NoEndpointError",
    "Options",
    "Plugin",
    "PowerReadings",
    "PresetName",
    "PromptCache",
    "RedactionError",
    "RevisedText",
    "RouteLog",
    "RouteRecord",
    "Split",
    "Tier",
    "Timeouts",
    "evidence",
    "route_of",
]
