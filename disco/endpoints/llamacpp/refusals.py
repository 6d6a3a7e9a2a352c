"""Failures for a request that this endpoint refuses: a malformed request, and one that another may serve."""

from __future__ import annotations

from disco.errors import BUSY_RETRY_S, BusyError, EndpointFailure, FailureKind, NoEndpointError

__all__ = ["malformed", "too_busy", "unserved"]


def malformed(message: str, param: str | None = None) -> EndpointFailure:
    """Return the failure for a malformed request: no other endpoint is tried."""
    return EndpointFailure(FailureKind.BAD_REQUEST, NoEndpointError(message, param=param))


def unserved(message: str, param: str | None = None) -> EndpointFailure:
    """Return the failure for a request that this endpoint cannot serve as it is; another endpoint may."""
    return EndpointFailure(FailureKind.UNSERVED, NoEndpointError(message, param=param))


def too_busy(message: str) -> EndpointFailure:
    """Return the failure for a request that comes while too many wait: the API's error for "try again"."""
    return EndpointFailure(FailureKind.RATE_LIMIT, BusyError(message), retry_after_s=BUSY_RETRY_S)
