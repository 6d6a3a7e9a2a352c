"""Limiting an answer to a few tokens where the application set no limit: which name of the limit a server takes.

The older name is tried first. Nearly every server keeps to it, and one that does not take it says so, which costs a
round trip once. A server that does not know the newer name often ignores it, which costs an answer of full length.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import openai

from disco.endpoints.continuation.methods import RESPONSES, Call
from disco.events import Delta, DeltaKind
from disco.request import Request

__all__ = ["AnswerLimit", "AnswerLimits"]

_NAMES: Final = ("max_tokens", "max_completion_tokens")
_REFUSED: Final = (400, 422)
_SPARE_TOKENS: Final = 4  # a chunk may hold several tokens, and some servers write one too many


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
            responses = {**responses, "max_output_tokens": request.cap}
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

    def renamed(self, call: Call, error: openai.APIStatusError) -> Call | None:
        """Return the call under another name, if the error says that the server does not take this one."""
        if error.status_code not in _REFUSED or self.name not in str(error) or call.path == RESPONSES:
            return None
        name = self.limits.refused(self.key, self.name)
        if name is None or self.name not in call.body:
            return None
        body = {**call.body, name: self.tokens}
        del body[self.name]
        self.name = name
        return replace(call, body=body)

    def read(self, deltas: list[Delta]) -> None:
        """Learn from what has come."""
        was_within = self.written <= self.tokens + _SPARE_TOKENS
        self.written += sum([delta.tokens for delta in deltas])
        if was_within and self.written > self.tokens + _SPARE_TOKENS:
            self.limits.refused(self.key, self.name)
        if any(delta.kind is DeltaKind.REASONING for delta in deltas):
            self.limits.cannot_divide(self.key)
