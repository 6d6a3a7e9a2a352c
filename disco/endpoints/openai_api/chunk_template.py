"""Chunks that differ only in their text are made from the first of them, instead of each being parsed.

Nearly all events of a stream have the same bytes except for one JSON string: the text, or the next piece of a call's
arguments. The common part of two such events is parsed once. Building the models around another text takes half the
time of parsing them, and what is not read yet is no model but its bytes.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, Self

from openai.types.chat import ChatCompletionChunk
from openai.types.chat.chat_completion_chunk import ChoiceDelta
from pydantic import BaseModel, ValidationError

__all__ = ["ChunkTemplate", "TemplateChunk", "remade"]

# The inside of a JSON string without characters by number, of which one may be half a character.
_INSIDE: Final = rb'(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt])+'
_TEXT: Final = re.compile(_INSIDE)
_CONTENT_AT: Final = re.compile(rb'"content":\s*"(' + _INSIDE + rb')"')
_ARGUMENTS_AT: Final = re.compile(rb'"arguments":\s*"(' + _INSIDE + rb')"')
_LONGEST: Final = 4096  # bytes; parsing a longer event takes less time
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
        call: the index of the call of which the text is a piece of the arguments; None: it is the content.
    """

    __slots__ = ("_after", "_before", "_choice", "_chunk", "_delta", "_end", "_piece", "_shown", "call")

    def __init__(self, chunk: ChatCompletionChunk, before: bytes, after: bytes) -> None:
        """Take a chunk and the bytes around its text in its event; `of` checks that they match."""
        self._chunk = chunk
        self._choice = chunk.choices[0]
        self._delta = self._choice.delta
        self._piece = _only_piece(self._delta)
        self.call: int | None = None if self._piece is None else self._piece.index
        self._before = before
        self._after = after
        self._end = len(before)
        hides = "usage" not in chunk.__pydantic_fields_set__
        self._shown = [_NO_USAGE.sub(b"", part) if hides else part for part in (before, after)]

    @classmethod
    def of(cls, data: bytes, chunk: ChatCompletionChunk) -> Self | None:
        """Return the template of a chunk that came as `data`; None where more than the text would have to change."""
        # The event must be on one line: it is passed on as one.
        if len(data) > _LONGEST or b"\n" in data or len(chunk.choices) != 1:
            return None
        delta = chunk.choices[0].delta
        piece = _only_piece(delta)
        found = (_CONTENT_AT if piece is None else _ARGUMENTS_AT).search(data)
        if found is None or (piece is None and delta.tool_calls is not None) or not _is_flat(chunk, piece):
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

    @property
    def id(self) -> str:
        """Return the id, which all chunks of the template share."""
        return self._chunk.id

    def text(self, data: bytes) -> str | None:
        """Return the text of the chunk in `data`; None where `data` differs in more than the text."""
        if not (data.startswith(self._before) and data.endswith(self._after)) or len(data) > _LONGEST:
            return None
        inside = data[self._end : len(data) - len(self._after)]
        if _TEXT.fullmatch(inside) is None:
            return None
        try:
            text = inside.decode()
        except UnicodeDecodeError:
            return None
        return text if b"\\" not in inside else json.loads(f'"{text}"')

    def shown(self, data: bytes) -> bytes:
        """Return the data of an event as the application gets it: without a usage that only disco asked for."""
        before, after = self._shown
        if len(before) + len(after) == len(self._before) + len(self._after):
            return data
        return before + data[self._end : len(data) - len(self._after)] + after

    def chunk(self, text: str) -> ChatCompletionChunk:
        """Return a chunk with the given text."""
        fields: dict[str, Any] = {"content": text}
        if (piece := self._piece) is not None:
            function = remade(piece.function, {**piece.function.__dict__, "arguments": text})
            fields = {"tool_calls": [remade(piece, {**piece.__dict__, "function": function})]}
        delta = remade(self._delta, {**self._delta.__dict__, **fields})
        choice = remade(self._choice, {**self._choice.__dict__, "delta": delta})
        made: ChatCompletionChunk = remade(self._chunk, {**self._chunk.__dict__, "choices": [choice]})
        return made


class TemplateChunk:
    """A chunk that is built on demand: many are only read for their text, or passed on unchanged.

    Attributes:
        data: the data of the chunk's event, as the application gets it.
        text: the chunk's content, or its piece of a call's arguments.
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


def _only_piece(delta: ChoiceDelta) -> Any:
    """Return the only piece of a call in a delta, if it has one and no text."""
    pieces = delta.tool_calls or []
    is_alone = not delta.content and len(pieces) == 1
    return pieces[0] if is_alone and pieces[0].function is not None else None


def _is_flat(chunk: ChatCompletionChunk, piece: Any) -> bool:
    """Return whether the chunk's own values cannot be changed in place, so that two chunks may share them."""
    models: list[Any] = [chunk, chunk.choices[0], chunk.choices[0].delta]
    models += [] if piece is None else [piece, piece.function]
    values = [value for model in models for name, value in vars(model).items() if name not in _MODELS]
    for model in models:
        values += (model.model_extra or {}).values()
    return all(value is None or isinstance(value, (str, int, float)) for value in values)


_MODELS: Final = ("choices", "delta", "tool_calls", "function")
