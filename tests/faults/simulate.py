"""What a fault on a connection is to the event simulator."""

from __future__ import annotations

import json
import math

from faults.fault import Direction, Fault, Kind, Moment

from disco.endpoints.simulation.simulated_script import Fault as Simulated
from disco.errors import FailureKind

__all__ = ["simulated"]

EVENT_BYTES = 200  # of a chunk with one token, about
_HARMLESS = (Kind.REPEAT, Kind.EMPTY)
_BY_STATUS = {
    401: FailureKind.AUTHENTICATION,
    403: FailureKind.AUTHENTICATION,
    408: FailureKind.SERVER,
    409: FailureKind.SERVER,
    413: FailureKind.CONTEXT_LENGTH,
    429: FailureKind.RATE_LIMIT,
}
_BY_CODE = {
    "context_length_exceeded": FailureKind.CONTEXT_LENGTH,
    "content_filter": FailureKind.CONTENT_FILTER,
    "rate_limit_exceeded": FailureKind.RATE_LIMIT,
}


def simulated(fault: Fault) -> Simulated | None:
    """The simulator's counterpart; None where the answer is complete or nothing is lost."""
    if fault.moment is Moment.TAIL or fault.kind in _HARMLESS:
        return None
    after = {Moment.MIDDLE: fault.tokens, Moment.LAST: None}.get(fault.moment, 0)
    if fault.after_bytes is not None and fault.moment is Moment.MIDDLE:
        after = fault.after_bytes // EVENT_BYTES
    at_once = after == 0 and fault.moment is not Moment.FIRST
    match fault.kind:
        case Kind.STALL | Kind.DELAY | Kind.BLACK_HOLE:
            return Simulated(after, silence_s=fault.seconds, kind=None, at_once=at_once)
        case Kind.THROTTLE:
            gap_s = EVENT_BYTES / fault.bytes_per_s
            return Simulated(after, silence_s=gap_s, kind=None, gap_s=gap_s)
    return Simulated(after, kind=_failure(fault), at_once=at_once, retry_after_s=_retry_after_s(fault))


def _failure(fault: Fault) -> FailureKind:
    in_stream = fault.moment in (Moment.FIRST, Moment.MIDDLE, Moment.LAST)
    match fault.kind:
        case Kind.GARBAGE if fault.direction is Direction.UP:
            return FailureKind.BAD_REQUEST
        case Kind.GARBAGE if in_stream and fault.framed:
            return FailureKind.GARBAGE
        case Kind.PAGE:
            return FailureKind.GARBAGE
        case Kind.END:
            return FailureKind.INCOMPLETE
        case Kind.STATUS | Kind.ERROR:
            code = json.loads(fault.body)["error"]["code"]
            known = _BY_CODE.get(code) or (
                _BY_STATUS.get(fault.status) if fault.kind is Kind.STATUS else None
            )
            return known or (FailureKind.SERVER if fault.status >= 500 else FailureKind.BAD_REQUEST)
    return FailureKind.CONNECTION


def _retry_after_s(fault: Fault) -> float | None:
    seconds = dict(fault.headers).get("Retry-After")
    return float(seconds) if seconds is not None and math.isfinite(float(seconds)) else None
