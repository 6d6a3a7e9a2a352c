"""Whatever goes wrong, in the shape in which the API says so."""

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
# The session, or the SDK for what is passed through, has retried already: one owner of retries.
_NO_RETRY = {"x-should-retry": "false"}
_SEQUENCE = re.compile(rb'"sequence_number":\s*(\d+)')


class Refusal(Exception):
    """An answer that is an error.

    Attributes:
        status: of HTTP.
        error: the object under "error" in the body.
        headers: that go with it.
        reason: what the log says of it: a code of ours, or the class of an error. Never words of a server or a caller.
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
        """`more`: what the body says besides; it also replaces the four fields the API always has."""
        super().__init__(message)
        self.status = status
        self.error = {"message": message, "type": kind, "param": param, "code": code, **(more or {})}
        self.headers = dict(headers or {})
        self.reason = reason or code or kind

    def body(self) -> bytes:
        """The JSON document."""
        return json.dumps({"error": self.error}).encode()


def refusal_of(error: Exception) -> Refusal:
    """What a client is told about `error`, which ended its answer.

    What a server said is told in its words; the client has taken out the key for it.
    """
    if isinstance(error, Refusal):
        return error
    if isinstance(error, openai.APIStatusError):
        return _status(error)
    if isinstance(error, ConfigurationError):
        # The client speaks of the SDK's argument; over HTTP it is a field of the body.
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
    if isinstance(error, openai.APIError):  # an error object in a stream, or an answer that is no protocol
        more = error.body if isinstance(error.body, Mapping) else {}
        message = "The server behind disco broke off with an error."
        reason = type(error).__name__
        return Refusal(
            502, message, kind=SERVER, code=error.code, headers=_NO_RETRY, more=more, reason=reason
        )
    # Its message may quote anything, the prompt included; where it happened is enough to find it.
    frame = traceback.extract_tb(error.__traceback__)[-1:]
    log.error("%s at %s", type(error).__name__, ", ".join(f"{f.filename}:{f.lineno}" for f in frame))
    message = f"disco failed on this request ({type(error).__name__}); its log says where."
    return Refusal(500, message, kind=SERVER, code="internal_error", headers=_NO_RETRY)


def error_event(refusal: Refusal, last: bytes, *, named: bool) -> bytes:
    """The event that ends a stream which cannot be finished.

    Args:
        refusal: why.
        last: the last piece sent.
        named: as the Responses API has it, with a name and a number.
    """
    gap = b"" if not last or last.endswith(b"\n\n") else b"\n\n"
    if not named:
        return gap + b"data: " + refusal.body() + b"\n\n"
    numbers = _SEQUENCE.findall(last)
    flat = {name: refusal.error[name] for name in ("code", "message", "param")}
    # The documented event is flat; the API itself nests the error, and only of that the SDK makes an exception.
    number = int(numbers[-1]) + 1 if numbers else 0
    event = {"type": "error", "sequence_number": number, **flat, "error": refusal.error}
    return gap + b"event: error\ndata: " + json.dumps(event).encode() + b"\n\n"


def _status(error: openai.APIStatusError) -> Refusal:
    """The server's own words, in the API's shape even where it used another."""
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
