"""Every exception class that disco defines, drawn as a tree.

openai.OpenAIError
└── DiscoError                    everything below; an `openai` user's `except OpenAIError` catches it
    ├── ConfigurationError        unknown preset, profile or option, contradictory settings (also a ValueError)
    ├── ModelFileError            a model file is missing or is not a readable GGUF (also a FileNotFoundError
    │                             or ValueError is *not* implied: one type, one handler)
    ├── WrongMaskError            a mask of a refined prompt is for another text (also a ValueError)
    ├── UnreadableAnswerError     a server alone has sent what is no JSON (also a json.JSONDecodeError, as the SDK's)
    ├── AnswerShapeError          the SDK can make no object of an answer (also a RuntimeError, as its own)
    ├── NoEndpointError           no configured endpoint may serve this request (also openai.BadRequestError)
    │   └── ContextLengthError    the prompt is longer than every endpoint's context (code context_length_exceeded)
    ├── BudgetExceededError       a budget leaves nothing for this request (also openai.RateLimitError, code
    │                             insufficient_quota)
    ├── BusyError                 as many requests wait for a local model as may (also openai.RateLimitError, code
    │                             rate_limit_exceeded)
    ├── RedactionError            the application's `redact` hook failed, so nothing was sent
    ├── LocalModelError           the device model failed while it worked (also openai.APIConnectionError)
    ├── IncompleteAnswerError     a server ended without a finish reason (also openai.APIConnectionError)
    └── AnswerTimeoutError        one of the four clocks ran out (also openai.APITimeoutError)

UserWarning
└── DiscoWarning                  a fault that the answers hide; shown where the application has set up no logging

An error that a server itself caused (401, 429, a reset connection, ...) is raised as the `openai` exception that the
SDK made of it, with its type unchanged. Every error of a request, whoever defines its type, has the attributes
`partial_text`, the text already delivered, and `route`, the route record or None. They are never part of its message.
`disco.evidence(error)` gives both in a way that type checkers follow, for any exception.

Messages name the thing, what is wrong with it, and the remedy. They never contain prompts, answers or keys.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import math
import reprlib
from collections.abc import Hashable, Iterable
from enum import StrEnum
from functools import partial
from typing import Any

import httpx2
import openai

__all__ = [
    "AnswerShapeError",
    "AnswerTimeoutError",
    "BudgetExceededError",
    "BusyError",
    "ConfigurationError",
    "ContextLengthError",
    "DiscoError",
    "DiscoWarning",
    "EndpointFailure",
    "FailureKind",
    "IncompleteAnswerError",
    "LocalModelError",
    "ModelFileError",
    "NoEndpointError",
    "RedactionError",
    "UnreadableAnswerError",
    "WrongMaskError",
    "attach_evidence",
    "by_nearness",
    "cut",
    "lay_evidence",
    "meant",
    "nearest",
    "shown",
]


class DiscoWarning(UserWarning):
    """Something that a person should look at, while the answers go on. See `disco.notices`."""


class DiscoError(openai.OpenAIError):
    """Base of disco's own errors.

    Attributes:
        route: the route record (`disco.RouteRecord`) of the answer that the error ended; None where no endpoint was
            asked. `disco.evidence(error).route` is the same, with its type.
        partial_text: the text that was written before the error; "" where there was none.
    """

    route: Any = None
    partial_text: str = ""


class ConfigurationError(DiscoError, ValueError):
    """A setting of the caller's is invalid; the message says what to write instead."""


class ModelFileError(DiscoError):
    """A model file is missing, unreadable or not a GGUF."""


BUSY_RETRY_S = 1
"""After how long a request may be repeated for which a local model had no room, s."""


def _local_request() -> httpx2.Request:
    # The openai exception types require a request; there was none on the network.
    return httpx2.Request("POST", "disco://local/chat/completions")


class WrongMaskError(DiscoError, ValueError):
    """A mask does not fit the text that it is applied to; refine the text without it."""


class UnreadableAnswerError(DiscoError, json.JSONDecodeError):
    """A server alone has sent what is no JSON, or no UTF-8. The SDK raises Python's own errors about it."""

    def __init__(self, message: str, doc: str = "", pos: int = 0) -> None:
        super().__init__(message, doc, pos)
        self.args = (message,)  # without a position, which is that of the cause


class AnswerShapeError(DiscoError, RuntimeError):
    """A server has sent an answer of which the SDK cannot make its objects; Python's own error is the cause."""


class NoEndpointError(DiscoError, openai.BadRequestError):
    """No endpoint may serve the request; the message lists each endpoint with its reason."""

    def __init__(self, message: str, *, code: str = "no_eligible_endpoint", param: str | None = None) -> None:
        body = {"message": message, "type": "invalid_request_error", "code": code, "param": param}
        response = httpx2.Response(400, request=_local_request(), json={"error": body})
        super().__init__(message, response=response, body=body)


class ContextLengthError(NoEndpointError):
    """The prompt is longer than the context of every endpoint that may serve it."""

    def __init__(self, message: str, *, param: str = "messages") -> None:
        super().__init__(message, code="context_length_exceeded", param=param)

    @classmethod
    def of(
        cls,
        context_tokens: int,
        tokens: int,
        *,
        at_least: bool = False,
        more: str = "",
        param: str = "messages",
    ) -> ContextLengthError:
        """Return the error in the API's own words: LiteLLM, LangChain and others know it by them.

        Args:
            context_tokens: the context.
            tokens: of the prompt.
            at_least: the prompt was not counted, and has no fewer.
            more: what else is to be said, and the remedy, as a sentence.
            param: what would have to be shorter, where that is not the messages.
        """
        beside = "" if param == "messages" else f" and {param}"
        least = "at least " if at_least else ""
        return cls(
            f"This model's maximum context length is {context_tokens} tokens. However, your messages{beside} "
            f"resulted in {least}{tokens} tokens. "
            f"{more or 'Shorten the messages, or raise the context (context_tokens).'}",
            param=param,
        )


class BudgetExceededError(DiscoError, openai.RateLimitError):
    """The user's budget leaves too little for the only endpoints that could answer. Nothing was sent.

    Attributes:
        limit: the setting, such as "usd".
        account: whose budget it is; "": that of all programs of the user that name no account.
        retry_after_s: seconds until enough of the budget is free again; None where that is not known, or never.
    """

    def __init__(self, message: str, *, limit: str, retry_after_s: float | None, account: str = "") -> None:
        body = {"message": message, "type": "insufficient_quota", "code": "insufficient_quota", "param": None}
        headers = {} if retry_after_s is None else {"retry-after": str(math.ceil(retry_after_s))}
        response = httpx2.Response(429, request=_local_request(), json={"error": body}, headers=headers)
        super().__init__(message, response=response, body=body)
        self.limit = limit
        self.account = account
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[Any, ...]:
        # For an answer in a worker process: Python would make the error again of its message alone.
        made = partial(type(self), limit=self.limit, retry_after_s=self.retry_after_s, account=self.account)
        return made, self.args, self.__dict__


class BusyError(DiscoError, openai.RateLimitError):
    """As many requests wait for a model on this machine as may wait. Nothing of this one was done; ask again."""

    def __init__(self, message: str) -> None:
        body = {"message": message, "type": "requests", "code": "rate_limit_exceeded", "param": None}
        headers = {"retry-after": str(BUSY_RETRY_S)}
        response = httpx2.Response(429, request=_local_request(), json={"error": body}, headers=headers)
        super().__init__(message, response=response, body=body)


class RedactionError(DiscoError):
    """The application's `redact` hook failed, or cannot be applied to the request. Nothing was sent."""


class LocalModelError(DiscoError, openai.APIConnectionError):
    """The model on the device failed while loading or generating."""

    def __init__(self, message: str) -> None:
        super().__init__(message=message, request=_local_request())


class IncompleteAnswerError(DiscoError, openai.APIConnectionError):
    """A stream ended without a finish reason: the answer is not complete."""

    def __init__(self, message: str) -> None:
        super().__init__(message=message, request=_local_request())


class AnswerTimeoutError(DiscoError, openai.APITimeoutError):
    """An endpoint took longer than one of the four clocks allows."""

    def __init__(self, message: str) -> None:
        super().__init__(request=_local_request())
        self.message = message
        self.args = (message,)


class FailureKind(StrEnum):
    """Why an attempt failed. The session's reaction depends on it."""

    CONNECTION = "connection"  # refused, reset, DNS, TLS, offline
    TIMEOUT = "timeout"  # connect or first content took longer than allowed
    STALLED = "stalled"  # the gap between two chunks took longer than allowed
    RATE_LIMIT = "rate_limit"  # 429
    SERVER = "server"  # 408, 409, 5xx, error object in the stream
    GARBAGE = "garbage"  # a reply outside the protocol: HTML, broken JSON, a status that no such API gives
    INCOMPLETE = "incomplete"  # end without a finish reason
    SEAM = "seam"  # a continuation did not continue exactly at the cut
    CRASHED = "crashed"  # the local worker or its model failed
    ACCOUNT = "account"  # this server refuses this key, or its account has no credit: 401, 402, 403, ...
    MODEL = "model"  # this server has no such model, or not for this key
    BAD_REQUEST = "bad_request"  # 400, 422: every endpoint would refuse the same request
    CONTEXT_LENGTH = "context_length"  # prompt too long for this endpoint
    CONTENT_FILTER = "content_filter"  # refused for its content
    BUDGET = "budget"  # the user's budget does not allow the start, or more of the answer
    UNSERVED = "unserved"  # this endpoint cannot serve the request, which may be valid for another endpoint

    @property
    def is_callers_fault(self) -> bool:
        """True when the request itself is wrong: starting another endpoint would only hide the caller's mistake."""
        return self in _CALLERS_FAULT


# A wrong key or model is not among these: it is wrong for one server, and another endpoint may serve the request.
_CALLERS_FAULT = frozenset({FailureKind.BAD_REQUEST, FailureKind.CONTENT_FILTER})


class EndpointFailure(Exception):
    """The failure of an attempt, as the session gets it; `error` is the exception for the caller.

    Attributes:
        kind: the class of failure.
        error: the exception for the caller, an `openai.OpenAIError`.
        retry_after_s: the server's Retry-After, where it sent one. With SEAM, 0: the target began its text in another
            way than it was told to, and may be asked once more.
        may_retry: whether the request may be sent again, by the server (`x-should-retry`) or because its response
            had begun; None: the kind decides.
        once_more: it may be asked once more where the application wants no retries, too: the request had what the
            application did not ask for (the endpoint then leaves it out), or it was silent while another went on.
        plainly: it may be asked once more whatever its kind, from the start, and the endpoint is to leave that out.
        account: whose account was refused, where the kind is ACCOUNT or MODEL; it holds no key in a readable form.
    """

    def __init__(
        self,
        kind: FailureKind,
        error: Exception,
        *,
        retry_after_s: float | None = None,
        may_retry: bool | None = None,
        once_more: bool = False,
        account: Hashable = None,
    ) -> None:
        super().__init__(kind.value)
        self.kind = kind
        self.error = error
        self.retry_after_s = retry_after_s
        self.may_retry = may_retry
        self.once_more = once_more
        self.plainly = False
        self.account = account


def attach_evidence(error: Exception, *, partial_text: str, route: Any) -> Exception:
    """Set the text already delivered and the route record as attributes of `error`, outside its message.

    Args:
        error: the error that the caller gets.
        partial_text: the text already delivered.
        route: the route record; None where there is none.
    """
    with contextlib.suppress(AttributeError, TypeError):  # a class of an application's may forbid it
        error.partial_text = partial_text  # type: ignore[attr-defined]
        error.route = route  # type: ignore[attr-defined]
    return error


def lay_evidence(error: Exception) -> None:
    """Give an error that a client raises the two attributes of `attach_evidence`, unless it has them."""
    if getattr(error, "partial_text", None) is None:
        attach_evidence(error, partial_text="", route=None)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 120


def shown(value: object) -> str:
    """Return a value of a user's or a caller's for a message: its `repr`, cut in the middle where it is long."""
    return _SHORT.repr(value)


def cut(text: str, most: int) -> str:
    """Return a text for a message, without quotes: the first `most` characters where it has more."""
    return text if len(text) <= most else f"{text[:most]}..."


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests the known names nearest to a mistyped one, and lists the known names.

    The nearest comes first. Of more than 25 names, only the 25 nearest are listed.

    Args:
        name: the mistyped name.
        known: all names there are.
    """
    ordered = by_nearness(name, known)
    if not ordered:
        return "None is known."
    more = f" and {len(ordered) - _MOST_NAMES} more" if len(ordered) > _MOST_NAMES else ""
    names = f"Known: {', '.join(ordered[:_MOST_NAMES])}{more}."
    return f"{meant(name, ordered)} {names}".strip()


def meant(name: str, known: Iterable[str]) -> str:
    """Return a question that suggests the known names nearest to a mistyped one; "" where none is near.

    Args:
        name: the mistyped name.
        known: all names there are.
    """
    close = difflib.get_close_matches(name[:_COMPARED], list(known), n=3, cutoff=0.54)
    return f"Did you mean {' or '.join(map(repr, close))}?" if close else ""


def by_nearness(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names, the most similar to `name` first."""
    start = name[:_COMPARED]
    return sorted(known, key=lambda one: (-difflib.SequenceMatcher(None, one, start).ratio(), one))


_MOST_NAMES = 25
_COMPARED = 120  # characters of a mistyped name: what a caller sends may have any length
