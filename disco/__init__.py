"""disco: one good answer out of two models, one on this machine and one behind an API."""

from disco.client.async_client import AsyncDisco
from disco.errors import (
    AnswerTimeoutError,
    ConfigurationError,
    ContextLengthError,
    DiscoError,
    IncompleteAnswerError,
    LocalModelError,
    ModelFileError,
    NoEndpointError,
)
from disco.request import Timeouts

__all__ = [
    "AnswerTimeoutError",
    "AsyncDisco",
    "ConfigurationError",
    "ContextLengthError",
    "DiscoError",
    "IncompleteAnswerError",
    "LocalModelError",
    "ModelFileError",
    "NoEndpointError",
    "Timeouts",
]
