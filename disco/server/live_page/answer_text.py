"""The text of one request and its answer, for a page that was told to show texts: parts of them, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["LONGEST_ANSWER", "LONGEST_PROMPT", "AnswerText", "prompt_text"]

LONGEST_PROMPT: Final = 2_000  # characters
LONGEST_ANSWER: Final = 8_000
_LONGEST_LINE: Final = 1_000_000  # bytes of an event that is read; longer ones are left out


def prompt_text(body: Mapping[str, Any]) -> str:
    """Return the last thing that a request says, of either API; "" where it says nothing in words."""
    said = body.get("messages", body.get("input"))
    if isinstance(said, list) and said:
        last = said[-1]
        said = last.get("content") if isinstance(last, Mapping) else None
    if isinstance(said, list):
        texts = [part.get("text") for part in said if isinstance(part, Mapping)]
        said = " ".join(text for text in texts if isinstance(text, str))
    return said[:LONGEST_PROMPT] if isinstance(said, str) else ""


class AnswerText:
    """Reads the answer's text from the bytes that its caller gets.

    Mutable: `answer`, `is_whole`, `_rest` (the beginning of a line whose end has not come).

    Args:
        prompt: what was asked.
        stream: whether the answer comes as events; else as one JSON document.

    Attributes:
        prompt: the same.
        answer: the text so far, at most `LONGEST_ANSWER` characters.
        is_whole: whether the caller has got all of it.
    """

    __slots__ = ("_rest", "_stream", "answer", "is_whole", "prompt")

    def __init__(self, prompt: str, *, stream: bool) -> None:
        self.prompt = prompt
        self.answer = ""
        self.is_whole = False
        self._stream = stream
        self._rest = b""

    def feed(self, piece: bytes) -> None:
        """Read a piece of the response's body."""
        if len(self.answer) >= LONGEST_ANSWER:
            self._rest = b""
            return
        if not self._stream:
            self._take(_object(piece))
            return
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            self._rest = b""
        for line in lines:
            if line.startswith(b"data:"):
                self._take(_object(line[5:]))

    def close(self) -> None:
        """Note that no more comes."""
        self.is_whole = True
        self._rest = b""

    def to_dict(self) -> dict[str, str]:
        """Return both texts."""
        return {"prompt": self.prompt, "answer": self.answer}

    def _take(self, event: Mapping[str, Any]) -> None:
        self.answer = (self.answer + _text_in(event))[:LONGEST_ANSWER]


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}  # "[DONE]", or what a server behind disco sent
    return found if isinstance(found, dict) else {}


def _text_in(event: Mapping[str, Any]) -> str:
    """Return the text of a chunk, an event or a whole answer of either API."""
    if event.get("type") == "response.output_text.delta":
        return _word(event.get("delta"))
    found = ""
    for choice in _items(event.get("choices"))[:1]:
        said = choice.get("delta", choice.get("message"))
        found += _word(said.get("content")) if isinstance(said, Mapping) else ""
    for item in _items(event.get("output")):
        for part in _items(item.get("content")):
            found += _word(part.get("text"))
    return found


def _items(value: object) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""
