"""What counts as an answer: the rule for one that its endpoint has ended, and whether its calls are whole.

Behind the assembly, and the same for a stream and a whole answer, a server and a local model, a live session and a
simulated one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from disco.events import ToolCallDelta

__all__ = ["FAILED", "Calls", "has_failed", "lacking"]

# An answer that ends for one of these reasons may be empty or stop within a call: the model has used up its limit,
# perhaps on thoughts, or a filter has spoken. In the API's words and in those that servers pass on from other APIs.
_LIMITS: Final = {
    "length",
    "max_tokens",
    "max_output_tokens",
    "model_length",
    "model_context_window_exceeded",
}
_FILTERS: Final = {
    *(
        "content_filter",
        "content_filtered",
        "refusal",
        "safety",
        "image_safety",
        "recitation",
        "prohibited_content",
    ),
    *("blocklist", "spii", "language", "sensitive", "guardrail_intervened"),
}
# An answer that ends for one of these has failed, and its server passes on what it has. Not Gemini's "OTHER": nobody
# says of what.
_FAILURES: Final = {
    "error",  # Mistral, Cohere, OpenRouter
    "insufficient_system_resource",  # DeepSeek
    "network_error",  # Zhipu
    *("abort", "aborted"),  # vLLM, SGLang; llama.cpp's C++ servers
    "timeout",  # Cohere
    *("cancelled", "canceled"),  # gateways; the Responses API's status
    *(
        "malformed_function_call",
        "function_call_filter: malformed_function_call",
    ),  # Gemini, by its API and OpenAI's
}
FAILED: Final = "failed within its answer"
_MOST_HELD: Final = 2**20  # characters of arguments; a call that is longer is shown as it comes
_MARKS: Final = re.compile(r'\\.|["\\{}\[\]]', re.DOTALL)


@dataclass(slots=True)
class _Call:
    """The arguments of one call so far. All fields are mutable.

    Attributes:
        id: the call's id; None where none has come.
        parts: the pieces.
        depth: how many brackets are open.
        in_string: whether the last piece ends within a JSON string.
        escapes: whether it ends with a backslash that escapes what comes next.
        is_whole: whether the arguments are a whole JSON object or array.
    """

    id: str | None = None
    parts: list[str] = field(default_factory=list)
    depth: int = 0
    in_string: bool = False
    escapes: bool = False
    is_whole: bool = False

    def read(self, text: str) -> None:
        """Take the next piece: each character is looked at once, and JSON is parsed only where all brackets close."""
        self.parts.append(text)
        if text.isspace():
            return
        start, self.escapes = int(self.escapes), False
        for mark in _MARKS.finditer(text, start):
            sign = mark[0]
            if sign == '"':
                self.in_string = not self.in_string
            elif sign == "\\":
                self.escapes = True
            elif not self.in_string and len(sign) == 1:
                self.depth += 1 if sign in "{[" else -1
        closed = self.depth == 0 and not self.in_string and text.rstrip()[-1:] in ("}", "]")
        self.is_whole = closed and _is_json("".join(self.parts))

    @property
    def is_broken(self) -> bool:
        """Whether these are no arguments although nothing more comes. Tools without parameters often get none."""
        whole = "".join(self.parts)
        return not self.is_whole and bool(whole.strip()) and not _is_json(whole)

    @property
    def is_cut(self) -> bool:
        """Whether something is open where the arguments end."""
        return self.depth > 0 or self.in_string


class Calls:
    """The calls of one answer as their pieces come.

    One of a custom tool, whose input is any text, is none of these: it is whole once the answer is.
    """

    __slots__ = ("_calls", "_size")

    def __init__(self) -> None:
        self._calls: list[tuple[int, _Call]] = []
        self._size = 0

    def read(self, pieces: Iterable[ToolCallDelta]) -> None:
        """Take the next pieces. A piece with another id is of another call, even under the same index."""
        for piece in pieces:
            call = next((call for index, call in reversed(self._calls) if index == piece.index), None)
            if call is None or (piece.id and call.id and piece.id != call.id):
                call = _Call()
                self._calls.append((piece.index, call))
            call.id = call.id or piece.id
            if piece.arguments:
                self._size += len(piece.arguments)
                call.read(piece.arguments)

    @property
    def may_be_shown(self) -> bool:
        """Whether every call that has begun is whole, or too long to be kept back."""
        return self._size > _MOST_HELD or all(call.is_whole for _, call in self._calls)

    @property
    def are_broken(self) -> bool:
        """Whether a call is no call although nothing more comes."""
        return any(call.is_broken for _, call in self._calls)

    @property
    def are_cut(self) -> bool:
        """Whether a broken call ends within its arguments. Others are in no JSON, which many applications repair."""
        return any(call.is_broken and call.is_cut for _, call in self._calls)


def lacking(
    text: str, calls: Calls | None, finish_reason: str, *, has_more: bool, may_be_empty: bool
) -> str | None:
    """Return what an answer lacks that its endpoint has ended, in words; None: it counts as an answer.

    Thoughts and white space alone are no answer.

    Args:
        text: all of its text, a refusal included.
        calls: the calls whose arguments are known; None: they are not looked at.
        finish_reason: as the endpoint says it.
        has_more: whether it has content besides text and thoughts: a call, a sound, an image.
        may_be_empty: whether the request itself explains an answer without content.
    """
    if finish_reason.lower() in _LIMITS | _FILTERS:
        return None
    if calls is not None and calls.are_broken:
        if calls.are_cut:
            return "ended its answer within the arguments of a tool call"
        return "gave arguments of a tool call that are no JSON"
    if has_more or text.strip():
        return FAILED if has_failed(finish_reason) else None
    return None if may_be_empty else "answered without any content"


def has_failed(finish_reason: str) -> bool:
    """Whether a finish reason says that the answer has failed."""
    return finish_reason.lower() in _FAILURES


def _is_json(text: str) -> bool:
    try:
        json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return False
    return True
