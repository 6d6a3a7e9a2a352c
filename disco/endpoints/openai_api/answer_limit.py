"""Limiting an answer to a few tokens where the application set no limit: which name of the limit a server takes.

The older name is tried first. Nearly every server keeps to it, and one that does not take it says so, which costs a
round trip once. A server that does not know the newer name often ignores it, which costs an answer of full length.
A server that takes neither name is sent no limit: the session stops it, and its later answers are not divided.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import openai

from disco.endpoints.continuation.methods import RESPONSES, Call
from disco.endpoints.openai_api.error_mapping import kind_of
from disco.errors import FailureKind
from disco.events import Delta, DeltaKind
from disco.plan import OVER_CAP_TOKENS
from disco.request import Request

__all__ = ["AnswerLimit", "AnswerLimits"]

_NAMES: Final = ("max_tokens", "max_completion_tokens")
_OF_RESPONSES: Final = "max_output_tokens"
_LEAST_OF_RESPONSES: Final = 16  # OpenAI's API refuses a lower limit under that name
_REFUSED: Final = (400, 422)


class AnswerLimits:
    """How the models of a server take a limit. Mutable: what requests have shown, by (base_url, model)."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}
        self._useless: set[tuple[str, str]] = set()

    def works(self, key: tuple[str, str]) -> bool:
        """Return whether a limit may divide an answer of this model; True where nothing is known."""
        return key not in self._useless

    def of(self, request: Request, key: tuple[str, str]) -> tuple[Request, AnswerLimit | None]:
        """Return the request as it is to be sent, with disco's own limit on its answer, and what to learn from it."""
        if request.cap is None:
            return request, None
        if any(request.params.get(name) is not None for name in _NAMES):
            return request, None  # the application's limit, lowered
        limit = AnswerLimit(self, key, request.cap, self._names.get(key, _NAMES[0]))
        params = {**request.params, limit.name: request.cap}
        responses = request.responses
        if responses is not None:
            responses = {**responses, _OF_RESPONSES: max(request.cap, _LEAST_OF_RESPONSES)}
        return replace(request, params=params, responses=responses), limit

    def refused(self, key: tuple[str, str], name: str) -> str | None:
        """Store that a model does not take this name, or ignores it; return the next name, None where there is none."""
        left = _NAMES[_NAMES.index(name) + 1 :]
        if not left:
            self._useless.add(key)
            return None
        self._names[key] = left[0]
        return left[0]

    def cannot_divide(self, key: tuple[str, str]) -> None:
        """Store that a limit is of no use for this model: it spends its tokens on thoughts."""
        self._useless.add(key)


@dataclass(slots=True)
class AnswerLimit:
    """The limit of one attempt. Mutable: `name`, `written`.

    Attributes:
        limits: what is known of the server.
        key: base_url and model.
        tokens: the limit.
        name: the name that the server is sent.
        written: tokens that have come.
    """

    limits: AnswerLimits
    key: tuple[str, str]
    tokens: int
    name: str
    written: int = 0

    def amended(self, call: Call, error: openai.APIStatusError) -> Call | None:
        """Return the call with the limit under another name, at last without it, if the server does not take this name.

        None where the error has another cause; a prompt that is too long is one, though its error may name the limit.
        """
        of_responses = call.path == RESPONSES
        name = _OF_RESPONSES if of_responses else self.name
        if error.status_code not in _REFUSED or name not in str(error) or name not in call.body:
            return None
        if kind_of(error) is FailureKind.CONTEXT_LENGTH:
            return None
        body = {given: value for given, value in call.body.items() if given != name}
        if of_responses:
            self.limits.cannot_divide(self.key)
        elif (other := self.limits.refused(self.key, name)) is not None:
            self.name = other
            body[other] = self.tokens
        return replace(call, body=body)

    def read(self, deltas: list[Delta]) -> None:
        """Learn from what has come."""
        limit = self.tokens + OVER_CAP_TOKENS
        was_within = self.written < limit
        self.written += sum([delta.tokens for delta in deltas])
        if was_within and self.written >= limit:
            self.limits.refused(self.key, self.name)
        if any(delta.kind is DeltaKind.REASONING for delta in deltas):
            self.limits.cannot_divide(self.key)

    def ended(self, finish_reason: str) -> None:
        """Learn from the end: a model whose tokens were used up without any text spends them on hidden thoughts."""
        if finish_reason == "length" and not self.written:
            self.limits.cannot_divide(self.key)
