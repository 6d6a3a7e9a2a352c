"""Why this endpoint does not serve a request: because nobody could, or because it cannot itself."""

from __future__ import annotations

from disco.errors import EndpointFailure, FailureKind, NoEndpointError

__all__ = ["malformed", "unserved"]


def malformed(message: str, param: str | None = None) -> EndpointFailure:
    """The failure for a request that is wrong: no other endpoint is tried."""
    return EndpointFailure(FailureKind.BAD_REQUEST, NoEndpointError(message, param=param))


def unserved(message: str, param: str | None = None) -> EndpointFailure:
    """The failure for a request that this endpoint cannot serve as it is; another one may."""
    return EndpointFailure(FailureKind.UNSERVED, NoEndpointError(message, param=param))
