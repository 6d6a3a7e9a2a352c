"""What a case of the table is to the event simulator."""

from __future__ import annotations

from faults.cases import Case
from faults.proxy_server.fault import Kind, Moment

from disco.endpoints.simulation.simulated_script import Fault as Simulated

__all__ = ["simulated"]

EVENT_BYTES = 200  # of a chunk with one token, about


def simulated(case: Case) -> Simulated | None:
    """The simulator's counterpart; None where the answer is complete or nothing is lost."""
    fault = case.fault
    if fault.moment is Moment.TAIL or fault.kind in (Kind.REPEAT, Kind.EMPTY):
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
    wait_s = dict(fault.headers).get("Retry-After")
    return Simulated(
        after, kind=case.failure, at_once=at_once, retry_after_s=None if wait_s is None else float(wait_s)
    )
