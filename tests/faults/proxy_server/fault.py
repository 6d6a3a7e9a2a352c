"""What can go wrong between a client and a server, as data: `proxy` plays it on sockets, `in_memory` without one.

A schedule is any iterable of these, one for each request that asks for an answer; None is a request that goes well.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from faults.proxy_server.http_parts import Event

PAGE = b"<!doctype html><title>Sign in</title><p>Please sign in to the network.</p>"


class Kind(StrEnum):
    """What happens."""

    REFUSE = "refuse"  # nobody listens
    BLACK_HOLE = "black hole"  # the address takes no connection: packets get lost
    CLOSE = "close"  # the connection is closed (FIN), whatever was still to come
    RESET = "reset"  # the connection is torn down (RST)
    HALF_CLOSE = "half-close"  # the server ends its side only; on a socket
    STALL = "stall"  # the connection stays open and silent
    DELAY = "delay"  # silence for `seconds`, then everything goes on
    THROTTLE = "throttle"  # `bytes_per_s` from here on; in memory
    GARBAGE = "garbage"  # bytes of `body` in the place of what was to come
    STATUS = "status"  # an HTTP response with `status`, `headers` and `body` instead of an answer
    PAGE = "page"  # a web page with status 200 (a captive portal, a login)
    ERROR = "error object"  # `{"error": ...}` of `body` as an event of the stream, which then ends properly
    END = "end"  # the body ends properly, as if that were all
    REPEAT = "repeat"  # the last event is sent once more; in memory
    EMPTY = "empty chunk"  # a comment, a chunk without choices, an empty delta; in memory


class Moment(StrEnum):
    """When it happens."""

    CONNECT = "connect"  # the connection is made, nothing was read
    REQUEST = "request"  # after `after_bytes` of the request's body
    HEAD = "head"  # the request was read, there is no response yet
    FIRST = "first token"  # the response has begun (head, role chunk), no token yet
    MIDDLE = "middle"  # after `tokens` tokens, or after `after_bytes` of the body
    LAST = "last chunk"  # before the chunk with the finish reason
    TAIL = "tail"  # after the finish reason, before [DONE]


class Cut(StrEnum):
    """How much of the next event still gets through."""

    CLEAN = "between events"
    LINE = "in a line"  # half of its bytes
    CHARACTER = "in a character"  # up to the first byte of its first non-ASCII character


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong; fields that its kind does not use are ignored."""

    kind: Kind
    moment: Moment = Moment.HEAD
    tokens: int = 3  # chunks with content that pass before a fault in the MIDDLE
    after_bytes: int | None = None  # of the response's body, instead of `tokens`; of the request's body
    cut: Cut = Cut.CLEAN
    seconds: float = math.inf  # of silence; `inf` until the client goes
    bytes_per_s: float = 50.0
    framed: bool = True  # False: garbage in mid-stream is no proper piece of the body
    status: int = 500
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""  # of a response, an error object or garbage

    def __str__(self) -> str:
        kind = self.kind.value if self.kind is not Kind.STATUS else str(self.status)
        return f"{kind} at {self.moment.value}{'' if self.cut is Cut.CLEAN else f' {self.cut.value}'}"


Schedule = Iterable[Fault | None]


def refusal(status: int, code: str | None = None, *, headers: tuple[tuple[str, str], ...] = ()) -> Fault:
    """An API's error answer, in the API's shape."""
    error = {"message": "No, thank you.", "type": "some_error", "param": None, "code": code}
    return Fault(Kind.STATUS, status=status, headers=headers, body=json.dumps({"error": error}).encode())


def strikes_before(fault: Fault, event: Event, tokens: int, passed: int) -> bool:
    """Whether `event` is the first behind the fault, after so many tokens and bytes of the body."""
    if fault.cut is Cut.CHARACTER and event.data.isascii():
        return False  # it waits for the next event with a character to cut
    match fault.moment:
        case Moment.FIRST:
            return bool(event.content) and tokens == 0
        case Moment.MIDDLE if fault.after_bytes is not None:
            return passed + len(event.data) > fault.after_bytes
        case Moment.MIDDLE:
            return tokens >= fault.tokens
        case Moment.LAST:
            return event.finishes
        case Moment.TAIL:
            return event.done
    return False


def first_part(data: bytes, fault: Fault, passed: int) -> bytes:
    """What still gets through of the event in which the fault strikes."""
    if fault.after_bytes is not None and fault.moment is Moment.MIDDLE:
        return data[: max(0, fault.after_bytes - passed)]
    if fault.cut is Cut.LINE:
        return data[: len(data) // 2]
    if fault.cut is Cut.CHARACTER:
        return data[: next(i for i, byte in enumerate(data) if byte >= 0x80) + 1]
    return b""
