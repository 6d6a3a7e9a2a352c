"""The matrix: every kind of fault at every moment where it means something else, and what it must be recognised as."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from faults.proxy_server.fault import Cut, Fault, Kind, Moment, refusal

from disco.endpoints.simulation.simulated_script import Fault as Simulated
from disco.errors import FailureKind

__all__ = ["CASES", "FAILING", "FINE", "OF_THE_CALLER", "ON_SOCKETS", "RETRIED", "Case", "each", "simulated"]

K, M, F = Kind, Moment, FailureKind
_ERROR = json.dumps({"error": {"message": "Boom.", "type": "server_error", "code": "boom"}}).encode()
_BUSY = json.dumps({"error": {"message": "Slow down.", "code": "rate_limit_exceeded"}}).encode()
_OOPS = b"data: {oops\n\n"
_IN_3_S = [((name, value),) for name, value in (("Retry-After", "3"), ("retry-after-ms", "3000"))]
_IN_AN_ANSWER = (M.FIRST, M.MIDDLE, M.LAST)
EVENT_BYTES = 200  # of a chunk with one token, about


@dataclass(frozen=True, slots=True)
class Case:
    """A fault, and the attempt's kind of failure; None: it is none, and nobody else is asked."""

    fault: Fault
    failure: FailureKind | None

    @property
    def silent(self) -> bool:
        """Nothing but a clock can notice it."""
        return self.fault.kind in (K.STALL, K.THROTTLE)

    def __str__(self) -> str:
        passed, tokens = self.fault.after_bytes, self.fault.tokens
        detail = f" {passed} bytes" if passed else f" {tokens}" * (tokens != 3)
        return f"{self.fault}{detail}{'' if self.fault.framed else ' raw'}"


def _cases() -> Iterator[tuple[FailureKind | None, list[Fault]]]:
    in_a_character = {"tokens": 2, "cut": Cut.CHARACTER}
    # The connection ends. It stays, and nothing comes, or too slowly.
    yield F.CONNECTION, [Fault(K.REFUSE, M.CONNECT), *(Fault(K.CLOSE, m) for m in (M.HEAD, *_IN_AN_ANSWER))]
    yield F.CONNECTION, [Fault(K.RESET, m) for m in (M.HEAD, M.MIDDLE, M.LAST)]
    yield F.CONNECTION, [Fault(K.CLOSE, m, cut=Cut.LINE) for m in (M.MIDDLE, M.LAST)]
    yield F.CONNECTION, [Fault(K.CLOSE, M.MIDDLE, tokens=12), Fault(K.CLOSE, M.MIDDLE, **in_a_character)]
    yield F.CONNECTION, [Fault(K.CLOSE, M.MIDDLE, after_bytes=n) for n in (1, 300, 2002, 3003, 5005)]
    yield F.TIMEOUT, [Fault(K.BLACK_HOLE, M.CONNECT), Fault(K.THROTTLE, M.HEAD), Fault(K.THROTTLE, M.FIRST)]
    yield F.TIMEOUT, [Fault(K.STALL, M.HEAD), Fault(K.STALL, M.FIRST)]
    yield F.STALLED, [Fault(kind, moment) for kind in (K.STALL, K.THROTTLE) for moment in (M.MIDDLE, M.LAST)]
    yield F.STALLED, [Fault(K.STALL, M.MIDDLE, **in_a_character)]
    # It is not the protocol. The server says so. The answer ends, and is none.
    yield F.GARBAGE, [*(Fault(K.GARBAGE, moment, body=_OOPS) for moment in _IN_AN_ANSWER), Fault(K.PAGE)]
    yield F.SERVER, [Fault(K.ERROR, moment, body=_ERROR) for moment in _IN_AN_ANSWER]
    yield F.SERVER, [refusal(status) for status in (408, 409, 500, 503)]
    yield F.RATE_LIMIT, [Fault(K.ERROR, M.MIDDLE, body=_BUSY), refusal(429)]
    yield F.RATE_LIMIT, [refusal(429, headers=headers) for headers in _IN_3_S]
    yield F.CONTEXT_LENGTH, [refusal(413), refusal(400, "context_length_exceeded")]
    yield F.ACCOUNT, [refusal(401, "invalid_api_key"), refusal(402), refusal(403), refusal(451)]
    yield F.ACCOUNT, [refusal(429, "insufficient_quota"), refusal(400, "billing_hard_limit_reached")]
    yield F.MODEL, [refusal(404, "model_not_found"), refusal(400, "model_decommissioned")]
    yield F.GARBAGE, [refusal(404), refusal(405)]
    yield F.BAD_REQUEST, [refusal(400), refusal(422)]
    yield F.CONTENT_FILTER, [refusal(400, "content_filter")]
    yield F.INCOMPLETE, [Fault(K.END, moment) for moment in _IN_AN_ANSWER]
    yield F.INCOMPLETE, [Fault(K.END, M.MIDDLE, cut=Cut.LINE), Fault(K.END, M.MIDDLE, **in_a_character)]
    # All of it is there. Oddities. (An error behind the reason is one: `tests/endpoints/openai_api/test_ends.py`.)
    yield None, [Fault(kind, M.TAIL) for kind in (K.CLOSE, K.RESET, K.STALL, K.END)]
    yield None, [Fault(K.GARBAGE, M.TAIL, body=_OOPS)]
    yield None, [Fault(K.DELAY, moment, seconds=0.02) for moment in (M.HEAD, *_IN_AN_ANSWER, M.TAIL)]
    yield (
        None,
        [Fault(K.THROTTLE, M.HEAD, bytes_per_s=200_000), Fault(K.REPEAT, M.FIRST), Fault(K.REPEAT, M.TAIL)],
    )
    yield None, [Fault(K.EMPTY, moment) for moment in (*_IN_AN_ANSWER, M.TAIL)]


CASES = [Case(fault, failure) for failure, faults in _cases() for fault in faults]
FINE = [case for case in CASES if case.failure is None]
OF_THE_CALLER = [case for case in CASES if case.failure in (F.BAD_REQUEST, F.CONTENT_FILTER)]
FAILING = [case for case in CASES if case not in FINE and case not in OF_THE_CALLER]
# What would be the same again is not asked again.
RETRIED = [c for c in FAILING if c.failure not in (F.ACCOUNT, F.MODEL, F.CONTEXT_LENGTH, F.GARBAGE)]
# What a socket must show that memory could get wrong.
ON_SOCKETS = [
    Case(Fault(K.REFUSE, M.CONNECT), F.CONNECTION),
    Case(Fault(K.BLACK_HOLE, M.CONNECT), F.TIMEOUT),
    Case(Fault(K.CLOSE, M.CONNECT), F.CONNECTION),
    Case(Fault(K.CLOSE, M.MIDDLE, cut=Cut.LINE), F.CONNECTION),
    Case(Fault(K.RESET, M.REQUEST, after_bytes=40), F.CONNECTION),
    Case(Fault(K.RESET, M.MIDDLE, tokens=12), F.CONNECTION),
    Case(Fault(K.RESET, M.TAIL), None),
    Case(Fault(K.HALF_CLOSE, M.MIDDLE), F.CONNECTION),
    Case(Fault(K.STALL, M.HEAD), F.TIMEOUT),
    Case(Fault(K.STALL, M.LAST), F.STALLED),
    Case(Fault(K.DELAY, M.MIDDLE, seconds=0.02), None),
    Case(Fault(K.GARBAGE, M.HEAD, body=b"\x00\xff\xfenonsense\r\n\r\n"), F.CONNECTION),
    Case(Fault(K.GARBAGE, M.MIDDLE, body=_OOPS), F.GARBAGE),
    Case(Fault(K.GARBAGE, M.MIDDLE, body=b"zzz\r\n", framed=False), F.CONNECTION),
    Case(Fault(K.PAGE), F.GARBAGE),
    Case(Fault(K.ERROR, M.MIDDLE, body=_ERROR), F.SERVER),
    Case(refusal(413), F.CONTEXT_LENGTH),
    Case(Fault(K.END, M.LAST), F.INCOMPLETE),
]


def each(cases: list[Case]) -> Any:
    """Parametrises a test with `case`."""
    return pytest.mark.parametrize("case", cases, ids=str)


def simulated(case: Case) -> Simulated | None:
    """The event simulator's counterpart; None where the answer is complete or nothing is lost."""
    fault = case.fault
    if fault.moment is M.TAIL or fault.kind in (K.REPEAT, K.EMPTY):
        return None
    after = {M.MIDDLE: fault.tokens, M.LAST: None}.get(fault.moment, 0)
    if fault.after_bytes is not None:
        after = fault.after_bytes // EVENT_BYTES
    at_once = after == 0 and fault.moment is not M.FIRST
    match fault.kind:
        case K.STALL | K.DELAY | K.BLACK_HOLE:
            return Simulated(after, silence_s=fault.seconds, kind=None, at_once=at_once)
        case K.THROTTLE:
            gap_s = EVENT_BYTES / fault.bytes_per_s
            return Simulated(after, silence_s=gap_s, kind=None, gap_s=gap_s)
    wait_s = 3.0 if fault.headers else None
    return Simulated(after, kind=case.failure, at_once=at_once, retry_after_s=wait_s)
