"""Chunks that differ only in their text are made from the first of them, instead of each being parsed.

Nearly all events of a stream have the same bytes except for one JSON string. The common part of two such events is
parsed once. Building the models around another text takes half the time of parsing them.
"""

from __future__ import annotations

import re
from typing import Any, Final, Self

from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel, ValidationError

__all__ = ["MAX_TEMPLATES", "ChunkTemplate", "TemplateChunk", "remade"]

MAX_TEMPLATES: Final = (
    8  # that one stream may make in vain: some servers vary more than the text of each event
)
# A JSON string without escapes: its bytes are its text.
_PLAIN: Final = re.compile(rb'[^"\\\x00-\x1f]+')
_TEXT_AT: Final = re.compile(rb'"content":\s*"([^"\\\x00-\x1f]+)"')
_NO_USAGE: Final = re.compile(rb',\s*"usage":\s*null|"usage":\s*null\s*,')
_MARK: Final = "\u2063disco\u2063"

# The four slots of a pydantic model; `model_construct` sets the same ones, with one Python call for each.
_SLOTS: Final = vars(BaseModel)
_set_fields = _SLOTS["__dict__"].__set__
_set_given = _SLOTS["__pydantic_fields_set__"].__set__
_set_extra = _SLOTS["__pydantic_extra__"].__set__
_set_private = _SLOTS["__pydantic_private__"].__set__
_new = object.__new__


def remade(model: Any, fields: dict[str, Any]) -> Any:
    """Return a model like `model` with these values of all its fields. Extra fields are shared one level down."""
    made = _new(type(model))
    _set_fields(made, fields)
    _set_given(made, model.__pydantic_fields_set__.copy())
    extra = model.__pydantic_extra__
    _set_extra(made, extra.copy() if extra else {})
    _set_private(made, None)
    return made


class ChunkTemplate:
    """Makes chunks from events that are the same as one parsed event, except for their text.

    Attributes:
        id: of the answer; all of them share it.
        has_role: whether each of them gives the role, as Ollama's do.
    """

    __slots__ = ("_after", "_before", "_choice", "_chunk", "_delta", "_end", "_shown", "has_role", "id")

    def __init__(self, chunk: ChatCompletionChunk, before: bytes, after: bytes) -> None:
        """Take a chunk and the bytes around its text in its event; `of` checks that they match."""
        self._chunk = chunk
        self._choice = chunk.choices[0]
        self._delta = self._choice.delta
        self.id: str = chunk.id
        self.has_role = self._delta.role is not None
        self._before = before
        self._after = after
        self._end = len(before)
        hides = "usage" not in chunk.__pydantic_fields_set__
        self._shown = [_NO_USAGE.sub(b"", part) if hides else part for part in (before, after)]

    @classmethod
    def of(cls, data: bytes, chunk: ChatCompletionChunk) -> Self | None:
        """Return the template of a chunk that came as `data`; None where more than the text would have to change."""
        found = _TEXT_AT.search(data)
        # The event must be on one line: it is passed on as one.
        if found is None or b"\n" in data or len(chunk.choices) != 1 or not _is_flat(chunk):
            return None
        before, after = data[: found.start(1)], data[found.end(1) :]
        template = cls(chunk, before, after)
        try:
            other = ChatCompletionChunk.model_validate_json(before + _MARK.encode() + after)
        except ValidationError:
            return None
        if "usage" not in chunk.__pydantic_fields_set__:  # hidden from the application
            other.__pydantic_fields_set__.discard("usage")
        made = template.chunk(_MARK)
        return template if made == other and made.model_fields_set == other.model_fields_set else None

    def text(self, data: bytes) -> str | None:
        """Return the text of the chunk in `data`; None where `data` differs in more than the text."""
        if not (data.startswith(self._before) and data.endswith(self._after)):
            return None
        text = data[self._end : len(data) - len(self._after)]
        if _PLAIN.fullmatch(text) is None:
            return None
        try:
            return text.decode()
        except UnicodeDecodeError:
            return None

    def shown(self, data: bytes) -> bytes:
        """Return the data of an event as the application gets it: without a usage that only disco asked for."""
        before, after = self._shown
        if len(before) + len(after) == len(self._before) + len(self._after):
            return data
        return before + data[self._end : len(data) - len(self._after)] + after

    def chunk(self, text: str) -> ChatCompletionChunk:
        """Return a chunk with the given text."""
        delta = remade(self._delta, {**self._delta.__dict__, "content": text})
        choice = remade(self._choice, {**self._choice.__dict__, "delta": delta})
        made: ChatCompletionChunk = remade(self._chunk, {**self._chunk.__dict__, "choices": [choice]})
        return made


class TemplateChunk:
    """A chunk that is built on demand: many are only read for their text, or passed on unchanged.

    Attributes:
        data: the data of the chunk's event, as the application gets it.
        text: the chunk's content.
        template: builds the chunk.
    """

    __slots__ = ("_data", "template", "text")

    def __init__(self, template: ChunkTemplate, data: bytes, text: str) -> None:
        self.template = template
        self.text = text
        self._data = data

    @property
    def data(self) -> bytes:
        return self.template.shown(self._data)

    def made(self) -> ChatCompletionChunk:
        """Return the chunk; a new one with every call."""
        return self.template.chunk(self.text)


def _is_flat(chunk: ChatCompletionChunk) -> bool:
    """Return whether the chunk's own values cannot be changed in place, so that two chunks may share them."""
    choice = chunk.choices[0]
    values = [v for name, v in vars(chunk).items() if name != "choices"]
    values += [v for name, v in vars(choice).items() if name != "delta"]
    values += vars(choice.delta).values()
    for model in (chunk, choice, choice.delta):
        values += (model.model_extra or {}).values()
    return all(value is None or isinstance(value, (str, int, float)) for value in values)
