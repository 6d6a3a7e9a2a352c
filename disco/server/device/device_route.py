"""`GET /v1/disco/device` and `POST /v1/disco/device/answers`: the model on this machine, for programs that attach.

An answer here is the model's own: it is not planned, routed, paced or accounted for by this server, and it goes to no
other one. The program that asks does all that itself. Callers show the attach key of this start of the server, which
only programs of its user can read (`endpoints.attached.announcement`); the callers' key is not needed, and not enough.
"""

from __future__ import annotations

import hmac
import json
from typing import Final
from urllib.parse import parse_qs

from pydantic import ValidationError
from starlette.types import Receive, Scope, Send

from disco.endpoints.attached.handshake import is_nonce, proof, token
from disco.endpoints.attached.messages import ANSWERS, HELLO, Order, event_line, failure_line
from disco.endpoints.contract import Endpoint
from disco.errors import EndpointFailure, shown
from disco.events import Alive
from disco.request import Prefix, Request
from disco.request_checks import checked_order
from disco.server.access_guards import is_loopback
from disco.server.admission import AnswerLimiter
from disco.server.api_errors import Refusal
from disco.server.http_reply import LINES, Reply
from disco.server.request_body import parse_json
from disco.server.request_flow import answer_request

__all__ = ["PATHS", "DeviceAnswersRoute", "DeviceProofRoute"]

PATHS: Final = frozenset({HELLO, ANSWERS})
"""Paths that need no callers' key."""


class DeviceProofRoute:
    """Proves to a program that this server wrote the announcement that the program has read.

    Args:
        key: the attach key.
    """

    def __init__(self, key: str) -> None:
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        reply = Reply(send, HELLO)
        _check_is_here(scope)
        given = parse_qs(scope["query_string"].decode("latin-1")).get("nonce", [""])[0]
        if not is_nonce(given):
            await reply.refuse(Refusal(400, "nonce must be 64 hexadecimal digits.", code="invalid_nonce"))
            return
        answer = proof(self._key, given, client=scope["client"], server=scope["server"])
        await reply.whole(200, json.dumps({"version": 1, "proof": answer}).encode())


class DeviceAnswersRoute:
    """Opens attempts of the model on this machine, and sends their events as lines.

    Args:
        endpoint: the model.
        key: the attach key.
        limiter: admits requests.
        max_body_bytes: the longest body that is read, in bytes.
    """

    def __init__(self, endpoint: Endpoint, key: str, *, limiter: AnswerLimiter, max_body_bytes: int) -> None:
        self._endpoint = endpoint
        self._token = token(key).encode()
        self._limiter = limiter
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _check_is_here(scope)
        scheme, _, given = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self._token):
            raise Refusal(
                401,
                "This path is for programs that attach (docs/how-to/attach.md); callers use /v1/chat/completions.",
                code="invalid_attach_key",
                headers={"www-authenticate": "Bearer"},
            )
        await answer_request(
            scope,
            receive,
            Reply(send, ANSWERS),
            limiter=self._limiter,
            max_body_bytes=self._max_body_bytes,
            parse=_parsed,
            answer=self._answer,
        )

    async def _answer(self, order: tuple[Request, Prefix, frozenset[str]], reply: Reply) -> None:
        request, prefix, wants = order
        await reply.begin(200, [("content-type", LINES)])
        async with self._endpoint.open(request, prefix, wants=wants) as attempt:
            try:
                async for event in attempt:
                    if type(event) is not Alive:
                        await reply.piece(event_line(event, attempt.usage))
            except EndpointFailure as failure:
                await reply.piece(failure_line(failure, attempt.usage))
        await reply.end()


def _check_is_here(scope: Scope) -> None:
    """Refuse what comes from another machine: a server that listens on a network is attached to on this one only.

    Raises:
        Refusal: it does, or nobody knows.
    """
    ends = scope.get("client"), scope.get("server")
    if not all(end is not None and is_loopback(end[0]) for end in ends):
        raise Refusal(403, "Only programs on this machine may attach.", code="not_on_this_machine")


def _parsed(data: bytes) -> tuple[Request, Prefix, frozenset[str]]:
    """Return what the order in a body asks for.

    Raises:
        Refusal: there is none.
        NoEndpointError: it asks for what no caller may ask for.
    """
    try:
        order = Order.model_validate(parse_json(data))
        asked = {"prefix": order.prefix, "wants": order.wants, "classes": order.classes, "cap": order.cap}
        return checked_order({**order.params, "messages": order.messages}, asked)
    except ValidationError as error:
        where = ".".join(map(str, error.errors(include_input=False, include_url=False)[0]["loc"]))
        raise Refusal(400, f"The order is malformed at {shown(where)}.", code="invalid_order") from None
