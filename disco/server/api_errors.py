"""Errors in the format of the API."""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Mapping
from typing import Any

import httpx2
import openai

from disco.errors import ConfigurationError, LocalModelError

__all__ = ["INVALID", "SERVER", "Refusal", "error_event", "refusal_of"]

log = logging.getLogger("disco.server")

INVALID, SERVER = "invalid_request_error", "server_error"
# The session, or the SDK for calls that pass through, has already retried. Only one component may retry.
_NO_RETRY = {"x-should-retry": "false"}
_SEQUENCE = re.compile(rb'"sequence_number":\s*(\d+)')


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
        self.headers = dict(headers or {})
        self.reason = reason or code or kind

    def body(self) -> bytes:
        """Return the JSON document."""
        return json.dumps({"error": self.error}).encode()


def refusal_of(error: Exception) -> Refusal:
    """Return the refusal that reports `error`, which ended an answer.

    A server's error keeps its own words; the client has already removed the key from them.
    """
    if isinstance(error, Refusal):
        return error
    if isinstance(error, openai.APIStatusError):
        return _status(error)
    if isinstance(error, ConfigurationError):
        # The message names the SDK's argument; over HTTP it is a field of the body.
        message = str(error).replace('extra_body["disco"]', '"disco"')
        return Refusal(400, message, param="disco", code="invalid_disco_option")
    if isinstance(error, LocalModelError):
        return Refusal(502, error.message, kind=SERVER, code="local_model_failed", headers=_NO_RETRY)
    if isinstance(error, openai.APITimeoutError | httpx2.TimeoutException):
        message = "No endpoint answered in time."
        return Refusal(504, message, kind=SERVER, code="timeout", headers=_NO_RETRY)
    if isinstance(error, openai.APIConnectionError | httpx2.TransportError | httpx2.StreamError):
        message = "The connection to the server behind disco failed."
        return Refusal(502, message, kind=SERVER, code="connection_failed", headers=_NO_RETRY)
    if isinstance(
        error, openai.APIError
    ):  # an error object in a stream, or an answer that breaks the protocol
        more = error.body if isinstance(error.body, Mapping) else {}
        message = "The server behind disco ended the answer with an error."
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
    return gap + b"event: error\ndata: " + json.dumps(event).encode() + b"\n\n"


def _status(error: openai.APIStatusError) -> Refusal:
    """Return the server's error in its own words, converted to the API's format if it used another."""
    given = error.response.headers
    headers = {name: given[name] for name in ("retry-after", "retry-after-ms") if name in given}
    kind = INVALID if error.status_code < 500 else SERVER
    more: Mapping[str, Any] = {}
    message = f"The server behind disco answered with status {error.status_code}."
    if isinstance(error.body, Mapping):
        more = error.body
        detail = more.get("detail")
        if "message" not in more and isinstance(detail, str):
            message = detail
    reason = type(error).__name__
    return Refusal(
        error.status_code, message, kind=kind, headers={**headers, **_NO_RETRY}, more=more, reason=reason
    )
