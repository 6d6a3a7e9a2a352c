"""Failures for a request that this endpoint refuses: a malformed request, and one that another may serve."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from disco.errors import BUSY_RETRY_S, BusyError, EndpointFailure, FailureKind, NoEndpointError

__all__ = ["lone_surrogate", "malformed", "refuse_what_is_no_json", "too_busy", "unserved"]


def malformed(message: str, param: str | None = None) -> EndpointFailure:
    """Return the failure for a malformed request: no other endpoint is tried."""
    return EndpointFailure(FailureKind.BAD_REQUEST, NoEndpointError(message, param=param))


def unserved(message: str, param: str | None = None) -> EndpointFailure:
    """Return the failure for a request that this endpoint cannot serve as it is; another endpoint may."""
    return EndpointFailure(FailureKind.UNSERVED, NoEndpointError(message, param=param))


def too_busy(message: str) -> EndpointFailure:
    """Return the failure for a request that comes while too many wait: the API's error for "try again"."""
    return EndpointFailure(FailureKind.RATE_LIMIT, BusyError(message), retry_after_s=BUSY_RETRY_S)


def lone_surrogate(endpoint: str, param: str | None) -> EndpointFailure:
    """Return the failure for a text that has no UTF-8; Python's own error quotes it."""
    return malformed(
        f"Endpoint {endpoint!r}: the request holds a lone surrogate (half of a character). Remove it.", param
    )


def refuse_what_is_no_json(body: Mapping[str, Any], *, endpoint: str) -> None:
    """Raise where a parameter cannot be sent to a host.

    Args:
        body: the parameters of a request, its messages among them.
        endpoint: the endpoint's name, for messages.

    Raises:
        EndpointFailure: BAD_REQUEST, with the first such parameter.
    """
    for name, value in body.items():
        try:
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError as error:
            raise lone_surrogate(endpoint, name) from error
        except (TypeError, ValueError) as error:
            raise malformed(
                f"Endpoint {endpoint!r}: the request holds a value that JSON cannot represent.", name
            ) from error
