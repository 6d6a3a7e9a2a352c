"""The matrix: every kind of fault at every moment where it can happen, and what it must be recognised as.

Kinds and moments that are not paired have no meaning (a status code in mid-answer) or are another pair by another name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from faults.proxy_server.fault import Cut, Direction, Fault, Kind, Moment, refusal

from disco.errors import FailureKind

__all__ = [
    "CASES",
    "FAILING",
    "FINE",
    "OF_THE_CALLER",
    "REPRESENTATIVES",
    "RETRIED",
    "Case",
    "each",
    "name_of",
]

K, M = Kind, Moment
UP = Direction.UP
_ERROR = json.dumps({"error": {"message": "Boom.", "type": "server_error", "code": "boom"}}).encode()
_BUSY = json.dumps({"error": {"message": "Slow down.", "code": "rate_limit_exceeded"}}).encode()
_OOPS = b"data: {oops\n\n"
_IN_3_S = (("Retry-After", "3"),)


@dataclass(frozen=True, slots=True)
class Case:
    """A fault and what it is to the client.

    Attributes:
        fault: see there.
        failure: the attempt's kind of failure; None: it is none, and nobody else is asked.
        silent: nothing but a clock can notice it.
    """

    fault: Fault
    failure: FailureKind | None
    silent: bool = False


def _cases() -> list[Case]:
    cases: list[Case] = []

    def add(fault: Fault, failure: FailureKind | None, *, silent: bool = False) -> None:
        cases.append(Case(fault, failure, silent))

    # The connection ends, in all the ways a connection ends.
    add(Fault(K.REFUSE, M.CONNECT), FailureKind.CONNECTION)
    add(Fault(K.BLACK_HOLE, M.CONNECT), FailureKind.TIMEOUT)
    for kind in (K.CLOSE, K.RESET, K.HALF_CLOSE):
        for moment in (M.CONNECT, M.HEAD, M.FIRST, M.MIDDLE, M.LAST):
            add(Fault(kind, moment), FailureKind.CONNECTION)
        add(Fault(kind, M.MIDDLE, tokens=12), FailureKind.CONNECTION)
        add(Fault(kind, M.MIDDLE, tokens=2, cut=Cut.CHARACTER), FailureKind.CONNECTION)
        add(Fault(kind, M.MIDDLE, cut=Cut.LINE), FailureKind.CONNECTION)
        add(Fault(kind, M.LAST, cut=Cut.LINE), FailureKind.CONNECTION)
        add(Fault(kind, M.TAIL), None)
    for bytes_passed in (1, 300, 2002, 3003, 5005):
        add(Fault(K.CLOSE, M.MIDDLE, after_bytes=bytes_passed), FailureKind.CONNECTION)
    # It stays, and nothing comes.
    for moment in (M.CONNECT, M.HEAD, M.FIRST):
        add(Fault(K.STALL, moment), FailureKind.TIMEOUT, silent=True)
    for moment in (M.MIDDLE, M.LAST):
        add(Fault(K.STALL, moment), FailureKind.STALLED, silent=True)
    add(Fault(K.STALL, M.MIDDLE, tokens=2, cut=Cut.CHARACTER), FailureKind.STALLED, silent=True)
    add(Fault(K.STALL, M.TAIL), None)
    # It is slow: too slow, or not.
    add(Fault(K.THROTTLE, M.HEAD, bytes_per_s=50), FailureKind.TIMEOUT, silent=True)
    add(Fault(K.THROTTLE, M.FIRST, bytes_per_s=50), FailureKind.TIMEOUT, silent=True)
    add(Fault(K.THROTTLE, M.MIDDLE, bytes_per_s=50), FailureKind.STALLED, silent=True)
    add(Fault(K.THROTTLE, M.LAST, bytes_per_s=50), FailureKind.STALLED, silent=True)
    for moment in (M.CONNECT, M.HEAD, M.FIRST, M.MIDDLE, M.LAST, M.TAIL):
        add(Fault(K.DELAY, moment, seconds=0.02), None)
    add(Fault(K.THROTTLE, M.HEAD, bytes_per_s=200_000), None)
    # It is not the protocol.
    add(Fault(K.GARBAGE, M.CONNECT, body=b"SSH-2.0-nonsense\r\n"), FailureKind.CONNECTION)
    add(Fault(K.GARBAGE, M.HEAD, body=b"\x00\xff\xfenonsense\r\n\r\n"), FailureKind.CONNECTION)
    for moment in (M.FIRST, M.MIDDLE, M.LAST):
        add(Fault(K.GARBAGE, moment, body=_OOPS), FailureKind.GARBAGE)
        add(Fault(K.GARBAGE, moment, body=b"zzz\r\n", framed=False), FailureKind.CONNECTION)
    add(Fault(K.GARBAGE, M.TAIL, body=_OOPS), None)
    add(Fault(K.GARBAGE, M.TAIL, body=b"zzz\r\n", framed=False), None)
    add(Fault(K.PAGE), FailureKind.GARBAGE)
    # The server says so.
    for moment in (M.FIRST, M.MIDDLE, M.LAST):
        add(Fault(K.ERROR, moment, body=_ERROR), FailureKind.SERVER)
        add(Fault(K.ERROR, moment, body=_BUSY), FailureKind.RATE_LIMIT)
    add(Fault(K.ERROR, M.TAIL, body=_ERROR), None)
    for status in (408, 409, 500, 502, 503, 504):
        add(refusal(status), FailureKind.SERVER)
    add(refusal(429), FailureKind.RATE_LIMIT)
    add(refusal(429, headers=_IN_3_S), FailureKind.RATE_LIMIT)
    add(refusal(413), FailureKind.CONTEXT_LENGTH)
    add(refusal(400, "context_length_exceeded"), FailureKind.CONTEXT_LENGTH)
    add(refusal(400), FailureKind.BAD_REQUEST)
    add(refusal(400, "content_filter"), FailureKind.CONTENT_FILTER)
    add(refusal(401, "invalid_api_key"), FailureKind.AUTHENTICATION)
    add(refusal(403), FailureKind.AUTHENTICATION)
    add(refusal(404, "model_not_found"), FailureKind.BAD_REQUEST)
    add(refusal(422), FailureKind.BAD_REQUEST)
    # The answer ends, and is none.
    for moment in (M.FIRST, M.MIDDLE, M.LAST):
        add(Fault(K.END, moment), FailureKind.INCOMPLETE)
    add(Fault(K.END, M.MIDDLE, cut=Cut.LINE), FailureKind.INCOMPLETE)
    add(Fault(K.END, M.MIDDLE, tokens=2, cut=Cut.CHARACTER), FailureKind.INCOMPLETE)
    add(Fault(K.END, M.TAIL), None)
    # Oddities.
    for moment in (M.FIRST, M.TAIL):
        add(Fault(K.REPEAT, moment), None)
    for moment in (M.FIRST, M.MIDDLE, M.LAST, M.TAIL):
        add(Fault(K.EMPTY, moment), None)
    # The request does not get through. What the server makes of half of one is its answer's business.
    for kind in (K.CLOSE, K.RESET, K.HALF_CLOSE):
        add(Fault(kind, M.REQUEST, after_bytes=40), FailureKind.CONNECTION)
        add(Fault(kind, M.REQUEST, UP, after_bytes=40), FailureKind.CONNECTION)
    add(Fault(K.STALL, M.REQUEST, UP, after_bytes=40), FailureKind.TIMEOUT, silent=True)
    add(Fault(K.THROTTLE, M.REQUEST, UP, after_bytes=40, bytes_per_s=50), FailureKind.TIMEOUT, silent=True)
    add(Fault(K.DELAY, M.REQUEST, UP, after_bytes=40, seconds=0.02), None)
    add(Fault(K.GARBAGE, M.REQUEST, UP, after_bytes=40, body=b"\xff"), FailureKind.BAD_REQUEST)
    # The way there breaks while the answer comes back: who closes their side is taken to have left.
    for moment in (M.FIRST, M.MIDDLE, M.LAST):
        add(Fault(K.RESET, moment, UP), FailureKind.CONNECTION)
        if moment is not M.LAST:
            add(Fault(K.HALF_CLOSE, moment, UP), FailureKind.CONNECTION)
    return cases


CASES = _cases()
FINE = [case for case in CASES if case.failure is None]
OF_THE_CALLER = [
    case for case in CASES if case.failure in (FailureKind.BAD_REQUEST, FailureKind.CONTENT_FILTER)
]
FAILING = [case for case in CASES if case not in FINE and case not in OF_THE_CALLER]
# What would be the same again is not asked again.
_FINAL = (FailureKind.AUTHENTICATION, FailureKind.CONTEXT_LENGTH, FailureKind.GARBAGE)
RETRIED = [case for case in FAILING if case.failure not in _FINAL]


def _representatives() -> list[Case]:
    """One of each kind, direction and outcome: what a socket must show that memory could get wrong."""
    alike: dict[object, list[Case]] = {}
    for case in CASES:
        fault = case.fault
        failure = None if fault.kind is Kind.STATUS else case.failure
        if case.failure is not None or fault.kind in (K.DELAY, K.REPEAT, K.EMPTY, K.RESET):
            alike.setdefault((fault.kind, fault.direction, fault.framed, failure), []).append(case)
    return [cases[len(cases) // 2] for cases in alike.values()]


REPRESENTATIVES = _representatives()


def name_of(case: Case) -> str:
    """As a test's id."""
    fault = case.fault
    detail = f" {fault.after_bytes} bytes" if fault.after_bytes else f" {fault.tokens}" * (fault.tokens != 3)
    return f"{fault}{detail}{'' if fault.framed else ' raw'}{' slowly' if fault.bytes_per_s < 200 else ''}"


def each(cases: list[Case]) -> Any:
    """Parametrises a test with `case`."""
    return pytest.mark.parametrize("case", cases, ids=name_of)
