"""Chunks that differ only in their text are made from the first of them, instead of each being parsed.

Nearly all events of a stream have the same bytes except for one JSON string: the text, the thoughts, or the next piece
of a call's arguments. The common part of two such events is parsed once. Building the models around another text takes
half the time of parsing them, and what is not read yet is no model but its bytes.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, Self

from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel, ValidationError

from disco.events import DeltaKind

__all__ = ["MAX_TEMPLATES", "ChunkTemplate", "TemplateChunk", "remade"]

# Templates that one stream may make in vain: some servers vary more than the text of each event.
MAX_TEMPLATES: Final = 8

# The inside of a JSON string without escapes: its bytes are its text. Most are, and this is the faster pattern.
_PLAIN: Final = re.compile(rb'[^"\\\x00-\x1f]+')
# The same without characters by number, of which one may be half a character.
_INSIDE: Final = rb'(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt])+'
_ESCAPED: Final = re.compile(_INSIDE)
_THOUGHTS: Final = ("reasoning_content", "reasoning")
_TEXT_AT: Final = {
    name: re.compile(rb'"%b":\s*"(%b)"' % (name.encode(), _INSIDE))
    for name in ("content", "arguments", *_THOUGHTS)
}
_TEXT: Final = DeltaKind.TEXT  # needed for every token; looking it up on the enum runs Python code (3.11)
_KINDS: Final = {"content": _TEXT, "arguments": DeltaKind.TOOL}
_LONGEST: Final = 4096  # bytes; parsing a longer event takes less time
_NO_USAGE: Final = re.compile(rb',\s*"usage":\s*null|"usage":\s*null\s*,')
_ROLE: Final = re.compile(rb',\s*"role":\s*"\w+"|"role":\s*"\w+"\s*,')
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
        id, created: those in all its events; those of the chunks may be changed.
        has_role: whether each of them gives the role, as Ollama's do.
        kind: of which kind the text is: content, thoughts, or a piece of a call's arguments.
        call: the index of that call; -1: the text is of no call.
    """

    __slots__ = (
        *("_after", "_before", "_choice", "_chunk", "_delta", "_end", "_name", "_piece", "_shown"),
        *("call", "created", "has_role", "id", "kind"),
    )

    def __init__(self, chunk: ChatCompletionChunk, name: str, before: bytes, after: bytes) -> None:
        """Take a chunk and the bytes around its text, a field, in its event; `of` checks that they match."""
        self.id, self.created = chunk.id, chunk.created
        self._chunk = chunk
        self._choice = chunk.choices[0]
        self._delta = self._choice.delta
        self.has_role = bool(self._delta.role)
        self._name = name
        self._piece: Any = self._delta.tool_calls and self._delta.tool_calls[0]
        self.kind = _KINDS.get(name, DeltaKind.REASONING)
        self.call: int = self._piece.index if self._piece else -1
        self._before = before
        self._after = after
        self._end = len(before)
        hides = "usage" not in chunk.__pydantic_fields_set__
        shown = [_NO_USAGE.sub(b"", part) if hides else part for part in (before, after)]
        self._shown = [_ROLE.sub(b"", part) if self.has_role else part for part in shown]

    @classmethod
    def of(cls, data: bytes, chunk: ChatCompletionChunk) -> Self | None:
        """Return the template of a chunk that came as `data`; None where more than the text would have to change."""
        name = _only_text(chunk)
        # The event must be on one line: it is passed on as one.
        if name is None or len(data) > _LONGEST or b"\n" in data:
            return None
        found = _TEXT_AT[name].search(data)
        if found is None:
            return None
        before, after = data[: found.start(1)], data[found.end(1) :]
        template = cls(chunk, name, before, after)
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
        if not (data.startswith(self._before) and data.endswith(self._after)) or len(data) > _LONGEST:
            return None
        inside = data[self._end : len(data) - len(self._after)]
        try:
            if _PLAIN.fullmatch(inside) is not None:
                return inside.decode()
            if _ESCAPED.fullmatch(inside) is not None:
                text: str = json.loads(f'"{inside.decode()}"')
                return text
        except UnicodeDecodeError:
            pass
        return None

    def shown(self, data: bytes) -> bytes:
        """Return the data of an event as the application gets it.

        Without a usage that only disco asked for, and without the role: the first chunk, which made this template or
        came before it, has given that.
        """
        before, after = self._shown
        if len(before) + len(after) == len(self._before) + len(self._after):
            return data
        return before + data[self._end : len(data) - len(self._after)] + after

    def chunk(self, text: str) -> ChatCompletionChunk:
        """Return a chunk with the given text."""
        if self.kind is _TEXT:
            delta = remade(self._delta, {**self._delta.__dict__, "content": text})
        elif self._piece:
            function = remade(self._piece.function, {**self._piece.function.__dict__, "arguments": text})
            calls = [remade(self._piece, {**self._piece.__dict__, "function": function})]
            delta = remade(self._delta, {**self._delta.__dict__, "tool_calls": calls})
        else:
            delta = remade(self._delta, self._delta.__dict__.copy())
            delta.__pydantic_extra__[self._name] = text
        choice = remade(self._choice, {**self._choice.__dict__, "delta": delta})
        made: ChatCompletionChunk = remade(self._chunk, {**self._chunk.__dict__, "choices": [choice]})
        return made


class TemplateChunk:
    """A chunk that is built on demand: many are only read for their text, or passed on unchanged.

    Attributes:
        data: the data of the chunk's event, as the application gets it.
        text: the text of the chunk.
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


def _only_text(chunk: ChatCompletionChunk) -> str | None:
    """Return the field of a chunk's only text; None where it has more, or what can be changed in place.

    Two chunks may not share that.
    """
    if len(chunk.choices) != 1:
        return None
    delta = chunk.choices[0].delta
    models: list[Any] = [chunk, chunk.choices[0], delta]
    names = [name for name in _THOUGHTS if (delta.model_extra or {}).get(name)]
    if delta.content:
        names.append("content")
    if delta.tool_calls is not None:
        if not isinstance(delta.tool_calls, list) or len(delta.tool_calls) != 1:
            return None
        if delta.tool_calls[0].function is None:
            return None
        models += [delta.tool_calls[0], delta.tool_calls[0].function]
        names.append("arguments")
    values = [value for model in models for name, value in vars(model).items() if name not in _INNER]
    for model in models:
        values += (model.model_extra or {}).values()
    is_flat = all(value is None or isinstance(value, (str, int, float)) for value in values)
    return names[0] if is_flat and len(names) == 1 else None


_INNER: Final = ("choices", "delta", "tool_calls", "function")
