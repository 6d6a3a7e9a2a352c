"""disco: one good answer out of two models, one on this machine and one behind an API.

Each name is loaded when it is first used: `import disco` alone loads neither openai nor pydantic nor numpy.
"""

from typing import TYPE_CHECKING

from disco import _needs  # noqa: F401 - names what is missing
from disco._lazy import loader

if TYPE_CHECKING:
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
        BusyError,
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

__all__ = [
    "AnswerTimeoutError",
    "AsyncAzureDisco",
    "AsyncDisco",
    "AzureDisco",
    "Backup",
    "Budget",
    "BudgetExceededError",
    "BusyError",
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

_NAMES = {
    "client": ("PowerReadings", "RouteLog"),
    "client.async_client": ("AsyncAzureDisco", "AsyncDisco"),
    "client.chat.evidence": ("Evidence", "evidence", "route_of"),
    "client.chat.revised_text": ("RevisedText",),
    "client.endpoint_catalog.backups": ("Backup",),
    "client.endpoint_catalog.local_servers": ("LocalServer",),
    "client.endpoint_catalog.plugged": ("Plugin",),
    "client.endpoint_catalog.splits": ("Split",),
    "client.endpoint_catalog.tiers": ("Tier",),
    "client.settings": ("Budget", "Options", "PresetName", "PromptCache"),
    "client.sync.sync_client": ("AzureDisco", "Disco"),
    "errors": (
        *("AnswerTimeoutError", "BudgetExceededError", "BusyError", "ConfigurationError"),
        *(
            "ContextLengthError",
            "DiscoError",
            "DiscoWarning",
            "IncompleteAnswerError",
            "LocalModelError",
            "ModelFileError",
        ),
        *("NoEndpointError", "RedactionError"),
    ),
    "request": ("Timeouts",),
    "session.records.route_record": ("RouteRecord",),
}
"""Module below `disco` -> the names of `__all__` that it defines."""


__getattr__ = loader(__name__, _NAMES)


def __dir__() -> list[str]:
    return list(__all__)
