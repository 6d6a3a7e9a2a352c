"""Errors in the format of the API."""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import httpx2
import openai

from disco.endpoints.openai_api.chunk_repair import reported_error
from disco.errors import BUSY_RETRY_S, BusyError, ConfigurationError, LocalModelError, cut

__all__ = ["INVALID", "SERVER", "Refusal", "error_event", "garbled", "json_bytes", "passed_on", "refusal_of"]

log = logging.getLogger("disco.server")

INVALID, SERVER = "invalid_request_error", "server_error"
# The session, or the SDK for calls that pass through, has already retried. Only one component may retry.
_NO_RETRY = {"x-should-retry": "false"}
_SEQUENCE = re.compile(rb'"sequence_number":\s*(\d{1,15})')
_LONGEST_TEXT = 1000  # characters of an error that quotes what came from elsewhere
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


def json_bytes(value: object) -> bytes:
    """Return a JSON document. Python reads and writes NaN and infinity, which JSON does not have: they become null.

    Raises:
        RecursionError: it is nested too deep.
    """
    try:
        return json.dumps(value, allow_nan=False).encode()
    except ValueError:
        return json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None)).encode()


def passed_on(headers: httpx2.Headers, wanted: Callable[[str], bool]) -> dict[str, str]:
    """Return the headers of a server's response that are `wanted` by their names, byte for byte as it sent them."""
    named = ((name.decode("latin-1").lower(), value) for name, value in headers.raw)
    return {n: value.decode("latin-1") for n, value in named if wanted(n) and not _CONTROL.search(value)}


class Refusal(Exception):
    """An error as an answer.

    Attributes:
        status: the HTTP status.
        error: the object under "error" in the body.
        headers: the headers of the response.
        reason: for the log: an error code of disco, or the class of an error. Never text from a server or a caller.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
        reason: str | None = None,
    ) -> None:
        """`more`: further fields of the error object; they may also replace the API's four fields."""
        super().__init__(message)
        self.status = status
        self.error = {"message": message, "type": kind, "param": param, "code": code, **(more or {})}
        if not isinstance(self.error["message"], str):
            self.error["message"] = message
        self.headers = dict(headers or {})
        self.reason = reason or code or kind

    def body(self) -> bytes:
        """Return the JSON document."""
        try:
            return json_bytes({"error": self.error})
        except RecursionError:  # a server's own fields
            return json_bytes({"error": {**dict.fromkeys(("type", "param", "code")), "message": str(self)}})


def refusal_of(error: Exception) -> Refusal:
    """Return the refusal that reports `error`, which ended an answer.

    A server's error keeps its own words; the client has already removed the key from them.
    """
    if isinstance(error, Refusal):
        return error
    if isinstance(error, BusyError):  # the one error after which the caller had better ask again
        wait = {"retry-after": str(BUSY_RETRY_S)}
        return Refusal(429, error.message, kind="requests", code=error.code, headers=wait)
    if isinstance(error, openai.APIStatusError):
        return _status(error)
    if isinstance(error, ConfigurationError):
        # The message names the SDK's argument; over HTTP it is a field of the body.
        message = cut(str(error).replace('extra_body["disco"]', '"disco"'), _LONGEST_TEXT)
        return Refusal(400, message, param="disco", code="invalid_disco_option")
    if isinstance(error, LocalModelError):
        return Refusal(502, error.message, kind=SERVER, code="local_model_failed", headers=_NO_RETRY)
    if isinstance(error, openai.APITimeoutError | httpx2.TimeoutException):
        message = "No endpoint answered in time."
        return Refusal(504, message, kind=SERVER, code="timeout", headers=_NO_RETRY)
    if isinstance(error, openai.APIConnectionError | httpx2.TransportError | httpx2.StreamError):
        message = "The connection to the server behind disco failed."
        return Refusal(502, message, kind=SERVER, code="connection_failed", headers=_NO_RETRY)
    if isinstance(error, httpx2.DecodingError):  # compressed, as it says, and not as it is
        return garbled()
    if isinstance(
        error, openai.APIError
    ):  # an error object in a stream, or an answer that breaks the protocol
        more, text = _said(error.body)
        message = text or "The server behind disco ended the answer with an error."
        reason = type(error).__name__
        return Refusal(
            502, message, kind=SERVER, code=error.code, headers=_NO_RETRY, more=more, reason=reason
        )
    # The message may quote anything, even the prompt. The place of the error is enough to find it.
    frame = traceback.extract_tb(error.__traceback__)[-1:]
    log.error("%s at %s", type(error).__name__, ", ".join(f"{f.filename}:{f.lineno}" for f in frame))
    message = f"disco failed on this request ({type(error).__name__}). Its log says where."
    return Refusal(500, message, kind=SERVER, code="internal_error", headers=_NO_RETRY)


def error_event(refusal: Refusal, last: bytes, *, named: bool) -> bytes:
    """Return the event that ends a stream after an error.

    Args:
        refusal: the error.
        last: the last piece sent.
        named: True for the format of the Responses API, with an event name and a number.
    """
    gap = b"" if not last or last.endswith(b"\n\n") else b"\n\n"
    if not named:
        return gap + b"data: " + refusal.body() + b"\n\n"
    numbers = _SEQUENCE.findall(last)
    flat = {name: refusal.error[name] for name in ("code", "message", "param")}
    # The documented event is flat. The API itself nests the error, and the SDK raises only for the nested form.
    number = int(numbers[-1]) + 1 if numbers else 0
    event = {"type": "error", "sequence_number": number, **flat, "error": refusal.error}
    return gap + b"event: error\ndata: " + json_bytes(event) + b"\n\n"


def garbled() -> Refusal:
    """Return the refusal where the server behind disco answered something that is no answer of the API."""
    message = "The server behind disco sent an answer that does not follow the API."
    return Refusal(502, message, kind=SERVER, code="bad_response", headers=_NO_RETRY)


def _status(error: openai.APIStatusError) -> Refusal:
    """Return the server's error in its own words, converted to the API's format if it used another."""
    if (
        not 400 <= error.status_code <= 599
    ):  # a redirect, 304, 999: with a body, HTTP libraries would go astray
        return garbled()
    headers = passed_on(error.response.headers, {"retry-after", "retry-after-ms"}.__contains__)
    kind = INVALID if error.status_code < 500 else SERVER
    more, text = _said(error.body)
    message = text or f"The server behind disco answered with status {error.status_code}."
    reason = type(error).__name__
    return Refusal(
        error.status_code, message, kind=kind, headers={**headers, **_NO_RETRY}, more=more, reason=reason
    )


def _said(body: object) -> tuple[Mapping[str, Any], str]:
    """Return the fields of a server's error object, and its text where no field `message` has it."""
    if isinstance(body, list):
        body = reported_error(body)
    if isinstance(body, Mapping):
        detail = body.get("detail")
        return body, detail if isinstance(detail, str) else ""
    is_text = isinstance(body, str) and not body.lstrip().startswith("<")  # a page of a proxy is for people
    return {}, cut(str(body), _LONGEST_TEXT) if is_text else ""
