"""From the bytes of a request to the call of the client."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import anyio
from starlette.types import Receive, Scope

from disco.dispatch import available_presets
from disco.errors import nearest, shown
from disco.request_checks import check_chat, check_responses
from disco.server.api_errors import Refusal

__all__ = ["CHAT", "RESPONSES", "Gone", "ParsedBody", "parse", "parse_json", "read_body"]

SILENCE_S = 30.0  # a body is given up if no byte of it comes for so long
WHOLE_S = 300.0  # a body is given up if it is not complete after so long: 32 MiB at 1 Mbit/s
DRAIN_S = 5.0  # how long the rest of a body that is too long is read, so that the client sees the refusal, not a reset
MOST_LEVELS = (
    200  # of lists and objects within each other; Python's own limit, of calls, is reached from 300 on
)
_LONG = 300  # digits of an integer that may be beyond all floating-point numbers
CHAT, EMBEDDINGS, RESPONSES = "/chat/completions", "/embeddings", "/responses"


class Gone(Exception):
    """The client has closed the connection."""


@dataclass(frozen=True, slots=True)
class ParsedBody:
    """A request's body.

    Attributes:
        body: the API's fields.
        disco: the field "disco" of the body, with disco's options; None if the body has none.
        stream: whether the answer is requested as events.
    """

    body: dict[str, Any] = field(repr=False)
    disco: object
    stream: bool


async def read_body(scope: Scope, receive: Receive, max_bytes: int) -> bytes:
    """Return the whole body of a request.

    Raises:
        Refusal: the body is longer than `max_bytes`, or does not come in time.
        Gone: the client closed the connection.
    """
    announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    too_long = announced.isdigit() and int(announced) > max_bytes
    parts: list[bytes] = []
    size = 0
    more = True
    began_at = anyio.current_time()
    with anyio.CancelScope() as reading:
        while more and not too_long:
            reading.deadline = min(anyio.current_time() + SILENCE_S, began_at + WHOLE_S)
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Gone
            part = message.get("body", b"")
            size += len(part)
            parts.append(part)
            too_long = size > max_bytes
            more = message.get("more_body", False)
    if reading.cancelled_caught:
        late = f"No byte of the body came for {SILENCE_S:g} s, or it was not complete after {WHOLE_S:g} s."
        raise Refusal(408, late, code="body_timeout", headers={"connection": "close"})
    if too_long:
        with anyio.move_on_after(DRAIN_S):
            while more:
                more = (await receive()).get("more_body", False)
        mib = max_bytes / 2**20
        raise Refusal(413, f"The body is longer than {mib:g} MiB, the limit here.", code="body_too_long")
    return b"".join(parts)


def parse_json(data: bytes) -> dict[str, Any]:
    """Parse a body that must be a JSON object.

    Raises:
        Refusal: it is none, or holds what cannot be worked with: a number beyond all others, or a structure nested
            deeper than any request's.
    """
    try:
        body = json.loads(data, parse_constant=_no_constant, parse_float=_finite, parse_int=_integer)
        if b"\\u" in data and (b"\\ud" in data or b"\\uD" in data):
            # Half of a surrogate pair is valid JSON, but not valid text.
            json.dumps(body, ensure_ascii=False).encode()
        if data.count(b"[") + data.count(b"{") > MOST_LEVELS:
            _check_levels(body)
    except (ValueError, RecursionError):
        raise Refusal(400, "We could not parse the JSON body of your request.", code="invalid_json") from None
    if not isinstance(body, dict):
        raise Refusal(400, "The body of the request must be a JSON object.", code="invalid_json")
    return body


def parse(path: str, data: bytes, default: str | None = None) -> ParsedBody:
    """Parse a body and check the fields that every endpoint needs.

    Args:
        path: the API path, such as "/responses".
        data: the body's bytes.
        default: the model that is meant where the body names none; None: it must name one.

    Raises:
        Refusal: the body is not a JSON object, or lacks a field that the path needs.
        NoEndpointError: a field has a wrong type or is out of range.
    """
    body = parse_json(data)
    disco = body.pop("disco", None)
    if isinstance(disco, Mapping):
        _check_preset(disco.get("preset", disco.get("policy")))
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        message = "Invalid type for 'stream': expected a boolean."
        raise Refusal(400, message, param="stream", code="invalid_type")
    if body.get("model") is None and default is not None:
        body["model"] = default
    names_model = path == CHAT or (path == RESPONSES and body.get("prompt") is None)
    if names_model and body.get("model") is None:
        raise Refusal(400, "you must provide a model parameter", param="model")
    if path == CHAT:
        _require_messages(body.get("messages"))
        check_chat(body)
    elif path == RESPONSES:
        check_responses(body)
    return ParsedBody(body, disco, bool(stream))


def _require_messages(messages: object) -> None:
    if messages is None:
        message = "Missing required parameter: 'messages'."
        raise Refusal(400, message, param="messages", code="missing_required_parameter")
    if messages == []:
        message = "Invalid 'messages': empty array. Expected an array with minimum length 1."
        raise Refusal(400, message, param="messages", code="empty_array")


def _check_preset(preset: object) -> None:
    """Allow shipped presets by name only: with a path, a caller could read files of this machine."""
    presets = available_presets()
    if isinstance(preset, str) and preset not in presets:
        message = (
            f"No preset is called {shown(preset)}. {nearest(preset, presets)} "
            "Only the server's owner may give paths."
        )
        raise Refusal(400, message, param="disco", code="invalid_disco_option")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)  # Python accepts NaN and Infinity, JSON does not


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(text)
    return number


def _integer(text: str) -> int:
    if len(text) >= _LONG:
        _finite(text)
    return int(text)


def _check_levels(body: Any) -> None:
    """Refuse what is nested so deep that code which follows it by recursion could fail.

    Raises:
        ValueError: it is.
    """
    level = [body]
    for _ in range(MOST_LEVELS):
        level = [
            inner
            for value in level
            for inner in (value.values() if type(value) is dict else value)
            if type(inner) in (dict, list)
        ]
        if not level:
            return
    raise ValueError("nested too deep")
