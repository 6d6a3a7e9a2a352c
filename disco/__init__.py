"""disco: one good answer out of two models, one on this machine and one behind an API.

Each name is loaded when it is first used: `import disco` alone loads neither openai nor pydantic nor numpy.
"""

from typing import TYPE_CHECKING, Any

from disco import _needs  # noqa: F401 - names what is missing

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


def __getattr__(name: str) -> Any:
    """Load a name of `__all__`, or a module such as `disco.errors`.

    Raises:
        AttributeError: there is neither.
    """
    import importlib  # noqa: PLC0415 - would be a name of this package
    import importlib.util  # noqa: PLC0415 - as above

    for module, names in _NAMES.items():
        if name in names:
            value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
            globals()[name] = value  # found at once the next time
            return value
    if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}") is not None:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
