"""What can go wrong between a client and a server, as data: kind, moment, direction.

A schedule is any iterable of these, one for each request that asks for an answer; None is a request that goes well.
`proxy` plays them on real sockets, `simulate` says what the same fault is to an event simulator.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Cut", "Direction", "Fault", "Kind", "Moment", "Schedule", "refusal"]


class Kind(StrEnum):
    """What happens."""

    REFUSE = "refuse"  # nobody listens
    BLACK_HOLE = "black hole"  # the address takes no connection: packets get lost
    CLOSE = "close"  # the connection is closed (FIN), whatever was still to come
    RESET = "reset"  # the connection is torn down (RST)
    HALF_CLOSE = "half-close"  # only one direction of the connection is closed
    STALL = "stall"  # the connection stays open and silent
    DELAY = "delay"  # silence for `seconds`, then everything goes on
    THROTTLE = "throttle"  # `bytes_per_s` from here on
    GARBAGE = "garbage"  # bytes of `body` in the place of what was to come
    STATUS = "status"  # an HTTP response with `status`, `headers` and `body` instead of an answer
    PAGE = "page"  # a web page with status 200 (a captive portal, a login)
    ERROR = "error object"  # `{"error": ...}` of `body` as an event of the stream, which then ends properly
    END = "end"  # the body ends properly, as if that were all
    REPEAT = "repeat"  # the last event is sent once more
    EMPTY = "empty chunk"  # events without content: a chunk without choices, an empty delta, a comment


class Moment(StrEnum):
    """When it happens; response moments count on what the upstream server really sends."""

    CONNECT = "connect"  # the connection is made, nothing was read
    REQUEST = "request"  # in the middle of the request's body, after `after_bytes` of it
    HEAD = "head"  # the request was read, there is no response yet
    FIRST = "first token"  # the response has begun (head, role chunk), no token yet
    MIDDLE = "middle"  # after `tokens` tokens, or after `after_bytes` of the body
    LAST = "last chunk"  # before the chunk with the finish reason
    TAIL = "tail"  # after the finish reason, before [DONE]


class Direction(StrEnum):
    """Which way of the connection breaks."""

    DOWN = "server to client"
    UP = "client to server"


class Cut(StrEnum):
    """How much of the next event still gets through."""

    CLEAN = "between events"
    LINE = "in a line"  # half of its bytes
    CHARACTER = "in a character"  # up to the first byte of its first non-ASCII character


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong; fields that its kind does not use are ignored.

    Attributes:
        kind: what.
        moment: when.
        direction: which way.
        tokens: chunks with content that pass before a fault in the MIDDLE.
        after_bytes: of the response's body, for MIDDLE, instead of `tokens`; of the request's body, for REQUEST.
        cut: how much of the next event still passes.
        seconds: of silence, for DELAY and STALL; `inf` until the client goes.
        bytes_per_s: for THROTTLE.
        framed: garbage in mid-stream is a proper piece of the body; False breaks the body's framing as well.
        status, headers, body: of a response, an error object (`body` alone) or garbage (`body` alone).
    """

    kind: Kind
    moment: Moment = Moment.HEAD
    direction: Direction = Direction.DOWN
    tokens: int = 3
    after_bytes: int | None = None
    cut: Cut = Cut.CLEAN
    seconds: float = math.inf
    bytes_per_s: float = 200.0
    framed: bool = True
    status: int = 500
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def __str__(self) -> str:
        parts = [
            self.kind.value if self.kind is not Kind.STATUS else str(self.status),
            "at",
            self.moment.value,
        ]
        if self.cut is not Cut.CLEAN:
            parts.append(self.cut.value)
        if self.direction is Direction.UP:
            parts.append("(up)")
        return " ".join(parts)


Schedule = Iterable[Fault | None]


def refusal(
    status: int,
    code: str | None = None,
    *,
    message: str = "No, thank you.",
    headers: tuple[tuple[str, str], ...] = (),
) -> Fault:
    """An API's error answer, in the API's shape."""
    error = {"message": message, "type": "some_error", "param": None, "code": code}
    body = json.dumps({"error": error}).encode()
    return Fault(Kind.STATUS, status=status, headers=headers, body=body)
