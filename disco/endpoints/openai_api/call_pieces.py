"""Which call a piece of a streamed tool call belongs to."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall

__all__ = ["CallPieces", "is_one_that_goes_on", "whole_arguments"]


@dataclass(slots=True)
class _Call:
    """What was told of a call so far."""

    id: Any = None
    type: Any = None
    name: Any = None
    arguments: list[str] = field(default_factory=list)
    size: int = 0  # characters in the arguments


class CallPieces:
    """Gives each piece of one answer's calls the index of its call, and tells a call's id, type and name once.

    Whoever puts calls together does so by index alone, joins what is told twice, and takes an empty text for a new
    value: so do the SDK's helpers. Servers send several calls under one index or without any, and repeat a call's id,
    type and name in each of its pieces, or leave them empty there. Calls are numbered in their order of appearance.
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[int, int] = {}  # the server's index: the call that it meant last
        self._by_id: dict[str, int] = {}

    def place(self, pieces: object) -> None:
        """Change the pieces of one chunk in place; what is no piece stays as it is."""
        if not isinstance(pieces, list):
            return
        for position, piece in enumerate(pieces):
            if isinstance(piece, ChoiceDeltaToolCall):
                self._place(piece, position if len(pieces) > 1 else len(self._calls) - 1)

    def _place(self, piece: ChoiceDeltaToolCall, unnumbered: int) -> None:
        """`unnumbered`: the call of a piece that has neither index nor id."""
        function: Any = piece.function
        arguments: Any = getattr(function, "arguments", None)
        at = self._by_index.get(piece.index) if type(piece.index) is int else None
        if at is None or at != piece.index or not _only_goes_on(piece):  # most pieces do
            at = self._call_of(piece, unnumbered)
            if at is None:
                at = len(self._calls)
                self._calls.append(_Call())
            if _repeats(piece, self._calls[at]):
                arguments = function.arguments = arguments[self._calls[at].size :]
            if type(piece.index) is int:
                self._by_index[piece.index] = at
            piece.index = at
            for model, name in ((piece, "id"), (piece, "type"), (function, "name")):
                _tell_once(model, name, self._calls[at])
            if self._calls[at].id:
                self._by_id[str(self._calls[at].id)] = at
        if isinstance(arguments, str) and self.come_again(at, arguments):
            arguments = function.arguments = ""
        self.go_on(
            at, arguments if isinstance(arguments, str) else json.dumps(arguments) if arguments else ""
        )

    def come_again(self, at: int, arguments: str) -> bool:
        """Return whether a piece without a name says all of its call's arguments again: no JSON goes on so."""
        call = self._calls[at]
        is_like = call.size == len(arguments) > 1 and arguments.startswith("{")
        return is_like and arguments == "".join(call.arguments) and _is_whole(call)

    def go_on(self, at: int, arguments: str) -> None:
        """Note what has come of a call that goes on."""
        self._calls[at].arguments.append(arguments)
        self._calls[at].size += len(arguments)

    def _call_of(self, piece: ChoiceDeltaToolCall, unnumbered: int) -> int | None:
        """Return the place of a piece's call; None for a new call."""
        index, call_id, function = piece.index, piece.id, piece.function
        name, arguments = getattr(function, "name", None), getattr(function, "arguments", None)
        is_numbered = type(index) is int
        named = self._by_id.get(str(call_id)) if call_id else None
        at = self._by_index.get(index) if is_numbered else named if call_id else unnumbered
        is_known = at is not None and 0 <= at < len(self._calls)
        if not is_known:
            at = named if named is not None or (is_numbered and index >= 0) else len(self._calls) - 1
        if at is None or at < 0:
            return None
        call = self._calls[at]
        if not is_known or (call_id and call.id and call_id != call.id):
            if is_known and named is not None:
                return named
            # Some servers number each piece of a call anew, or give it an id of its own. No call has no name, and none
            # begins within another one of its index.
            is_none = not name or (is_numbered and is_known and name == call.name)
            return at if arguments and is_none and not _is_whole(call) else None
        if not (name and call.name):
            return at
        # Without an id, a name begins a call, but some servers repeat it, or id and name, in every piece.
        is_other = name != call.name
        if is_other and not is_numbered and not call_id:
            return None
        if isinstance(arguments, str):
            begins = arguments.lstrip().startswith("{") and not (call_id and _repeats(piece, call))
        else:
            begins = bool(arguments) or not call_id
        return None if (is_other or begins) and _is_whole(call) else at


def is_one_that_goes_on(pieces: object) -> bool:
    """Return whether the pieces of a chunk are a single one, and only go on with a call."""
    if not isinstance(pieces, list) or len(pieces) != 1:
        return False
    return isinstance(pieces[0], ChoiceDeltaToolCall) and _only_goes_on(pieces[0])


def whole_arguments(text: str) -> str:
    """Return a call's arguments without the empty object that some servers begin them with."""
    begun = text.lstrip()
    behind = begun.removeprefix("{}").strip()
    return behind if begun.startswith("{}") and _is_object(behind) else text


def _only_goes_on(piece: ChoiceDeltaToolCall) -> bool:
    """Return whether a piece has nothing but an index and arguments."""
    of_function = getattr(piece.function, "model_fields_set", None)
    return piece.model_fields_set == {"index", "function"} and of_function == {"arguments"}


def _tell_once(model: Any, name: str, call: _Call) -> None:
    """Take a field out of a piece if an earlier piece has told it."""
    value, known = getattr(model, name, None), getattr(call, name)
    if not known:
        setattr(call, name, value)
    elif name == "name" and value and value != known:
        call.name = f"{known}{value}"  # the name itself came in pieces
    elif hasattr(model, name):
        setattr(model, name, None)
        model.__pydantic_fields_set__.discard(name)  # not null, which would be a value, too


def _repeats(piece: ChoiceDeltaToolCall, call: _Call) -> bool:
    """Return whether a piece says again all that was told of its call, and perhaps goes on behind it."""
    function: Any = piece.function
    name, arguments = getattr(function, "name", None), getattr(function, "arguments", None)
    if not isinstance(arguments, str) or not 0 < call.size <= len(arguments) or name != call.name:
        return False
    return bool(name) and arguments.lstrip().startswith("{") and arguments.startswith("".join(call.arguments))


def _is_whole(call: _Call) -> bool:
    """Return whether the arguments so far are a whole object, which nothing can continue."""
    if call.size > _MOST_READ:
        return False
    return _is_object("".join(call.arguments).strip())


def _is_object(text: str) -> bool:
    if not (text.startswith("{") and text.endswith("}")):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


_MOST_READ = 65_536  # characters of arguments; this may be asked at every piece
