"""The text of verdicts as deltas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from disco.endpoints.event_coding import delta_of
from disco.errors import EndpointFailure, FailureKind, IncompleteAnswerError
from disco.events import Delta

__all__ = ["deltas_of"]


def deltas_of(given: Iterable[Mapping[str, Any]]) -> list[Delta]:
    """Return the deltas that a verdict's JSON describes (`messages.Verdict.deltas`).

    Raises:
        EndpointFailure: a field has a wrong type.
    """
    try:
        return [delta_of(one, one) for one in given]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        reason = IncompleteAnswerError("A verify server sent a delta that breaks the protocol.")
        raise EndpointFailure(FailureKind.GARBAGE, reason) from error
