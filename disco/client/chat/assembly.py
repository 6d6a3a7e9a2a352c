"""A whole answer, put together out of the chunks that a stream of it would have had."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from openai.types import CompletionUsage
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs

from disco.client.chat.chat_chunks import ChatChunks, RoutedChatCompletion, like, with_route
from disco.endpoints.openai_api.call_pieces import whole_arguments
from disco.endpoints.openai_api.chunk_template import ChunkTemplate, TemplateChunk
from disco.events import Delta, DeltaKind

if TYPE_CHECKING:
    from disco.session.records.route_record import RouteRecord

__all__ = ["accumulate", "assemble"]

_MESSAGE = ChatCompletionMessage.construct(role="assistant", content=None)
_CHOICE = Choice.construct(index=0, finish_reason="stop", message=_MESSAGE, logprobs=None)
_ANSWER = RoutedChatCompletion.construct(
    id="", choices=[], created=0, model="", object="chat.completion", system_fingerprint=None, usage=None
)
# Most deltas hold no other field. Dumping these deltas to accumulate them would triple the time for a chunk.
_TEXT_FIELDS = {"content", "role"}
_TEXT = DeltaKind.TEXT
_AROUND = ("service_tier", "moderation")


def assemble(
    chunks: ChatChunks,
    deltas: Sequence[Delta | ChatCompletionChunk],
    finish_reason: str,
    usage: CompletionUsage,
    route: Callable[[], RouteRecord] | None,
    last: ChatCompletionChunk | None = None,
) -> RoutedChatCompletion:
    """Return the non-streaming answer. Never fails: as the SDK, it takes what a server says for what it should be.

    Args:
        chunks: the maker of this answer's chunks.
        deltas: all deltas of the answer, or all chunks of its choices.
        finish_reason: the finish reason, as the API names it.
        usage: the usage of the answer.
        route: writes the route record, once.
        last: the vendor's chunk with the finish reason, if the writer is a server.
    """
    parts: dict[int, _Part] = {0: _Part()}
    texts = parts[0].texts
    around: dict[str, Any] = {}  # what a vendor says of the answer, outside its choices
    has_fingerprint = False
    for delta in (*_in_runs(deltas), last):
        if delta is None:
            continue
        if isinstance(delta, Delta):
            if delta.kind is _TEXT and chunks.is_as_it_came(delta):
                texts.append(delta.text)  # other fields are as in the chunk before
                continue
            chunk = chunks.of(delta)
        else:
            chunk = delta
            chunks.ends_with(chunk)
        has_fingerprint = has_fingerprint or "system_fingerprint" in chunk.model_fields_set
        if chunk.model_extra:
            _renew(around, chunk.model_extra)
        if chunk.service_tier is not None or chunk.moderation is not None:
            _renew(around, {name: getattr(chunk, name) for name in _AROUND})
        for choice in chunk.choices:
            parts.setdefault(choice.index, _Part()).add(choice)
    known = {name: value for name in _AROUND if (value := around.pop(name, None)) is not None}
    parts[0].finish_reason = finish_reason
    answer: RoutedChatCompletion = like(
        _ANSWER,
        id=chunks.id,
        choices=[parts[index].made(index) for index in sorted(parts)],
        created=chunks.created,
        model=chunks.model,
        system_fingerprint=chunks.fingerprint,
        usage=usage,
    )
    for name, value in known.items():
        setattr(answer, name, value)
    if last is not None and not has_fingerprint:
        answer.__pydantic_fields_set__.discard("system_fingerprint")
    _add(answer, around)
    with_route(answer, route)
    answer._request_id = None  # noqa: SLF001 - public despite its name; several requests, or none
    return answer


def _in_runs(deltas: Sequence[Delta | ChatCompletionChunk]) -> Iterator[Delta | ChatCompletionChunk]:
    """Yield deltas; thoughts or pieces of a call that differ only in their text are one, and so is their chunk."""
    for template, run in groupby(deltas, _template_of):
        if template is None:
            yield from run
        else:
            first, *others = cast("Iterator[Delta]", run)
            text = "".join([first.raw.text, *(delta.raw.text for delta in others)])
            yield replace(first, raw=TemplateChunk(template, b"", text))


def _template_of(delta: Delta | ChatCompletionChunk) -> ChunkTemplate | None:
    if not isinstance(delta, Delta):
        return None
    return delta.raw.template if delta.kind is not _TEXT and type(delta.raw) is TemplateChunk else None


class _Part:
    """One choice so far."""

    def __init__(self) -> None:
        self.texts: list[Any] = []  # or lists of parts, such as images
        self._has_parts = False
        self.finish_reason: Any = None
        self._role: Any = None
        self._message: dict[str, Any] = {}
        self._pieces: dict[str, list[str]] = {}  # of the message's texts but its content
        self._beside: dict[str, Any] = {}  # what a vendor says of the choice, outside its message
        self._logprobs: Any = None
        self._has_logprobs = False

    def add(self, choice: Any) -> None:
        delta = choice.delta
        self._role = self._role or delta.role
        if isinstance(delta.content, str):
            self.texts.append(delta.content)
        elif delta.content:
            self.texts.append(delta.content)
            self._has_parts = True
        extra = delta.model_extra or {}
        if extra or not delta.model_fields_set <= _TEXT_FIELDS:
            if delta.model_fields_set - extra.keys() <= _TEXT_FIELDS:
                told = extra  # thoughts, mostly
            else:
                told = delta.model_dump(exclude_unset=True, exclude=_TEXT_FIELDS, warnings=False)
            self._take(told)
        self.finish_reason = self.finish_reason or choice.finish_reason
        if choice.model_extra:
            _renew(self._beside, choice.model_extra, joins=True)
        self._has_logprobs = self._has_logprobs or "logprobs" in choice.model_fields_set
        if choice.logprobs is not None:
            self._logprobs = _longer(self._logprobs, choice.logprobs)

    def _take(self, told: Mapping[str, Any]) -> None:
        for name, value in told.items():
            if type(value) is str and name not in _ONCE:
                self._pieces.setdefault(name, []).append(value)  # joining them here would copy them each time
            else:
                accumulate(self._message, {name: value})

    def made(self, index: int) -> Choice:
        for name, pieces in self._pieces.items():
            accumulate(self._message, {name: "".join(pieces)})
        fields: dict[str, Any] = {
            "role": self._role or "assistant",
            "content": _joined(self.texts)
            if self._has_parts
            else ("".join(self.texts) if self.texts else None),
        }
        for call in _dicts(self._message.get("tool_calls")):
            call.pop("index", None)
            function = call.get("function")
            if isinstance(function, dict) and isinstance(arguments := function.get("arguments"), str):
                function["arguments"] = whole_arguments(arguments)
        message = (
            ChatCompletionMessage.construct(**fields, **self._message)
            if self._message
            else like(_MESSAGE, **fields)
        )
        made: Choice = like(
            _CHOICE, index=index, finish_reason=self.finish_reason, message=message, logprobs=self._logprobs
        )
        if not self._has_logprobs:
            made.__pydantic_fields_set__.discard("logprobs")
        self._beside.pop("message", None)  # some servers repeat the whole message so far beside the delta
        _add(made, self._beside)
        return made


def _joined(contents: list[Any]) -> list[Any]:
    """Return the parts of a content that came in texts and lists of parts."""
    parts: list[Any] = []
    for is_text, run in groupby(contents, lambda content: isinstance(content, str)):
        if is_text:
            parts += [{"type": "text", "text": text}] if (text := "".join(run)) else []
        else:
            for content in run:
                parts += content if isinstance(content, list) else [content]
    return parts


# Told of one thing again and again, and never in pieces.
_ONCE = {"id", "type", "role", "format", "index"}


def accumulate(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    """Add a delta's fields to those of earlier deltas: texts are joined, entries of lists by their index.

    As the SDK's `accumulate_delta`, which its stream helpers use, with five differences: that one joins ids, roles and
    other fields that are told again, and repeated names; adds numbers up; raises an error for the second part of a list
    without indices; makes one entry of two that have the same index, but ids or types of their own (a summary of
    thoughts and their signature, from OpenRouter); and an empty value stays in the way of one of another type.
    """
    for name, value in new.items():
        old = into.get(name)
        if old is None or (value and not old and isinstance(old, (str, list, dict))):
            into[name] = _copied(value)
        elif isinstance(old, str) and isinstance(value, str):
            if name not in _ONCE and not (name == "name" and old == value):
                into[name] = old + value
        elif isinstance(old, dict) and isinstance(value, dict):
            accumulate(old, value)
        elif isinstance(old, list) and isinstance(value, list):
            _add_entries(old, value)
        elif isinstance(old, (int, float)) and isinstance(value, (int, float)):
            into[name] = value


def _copied(value: Any) -> Any:
    if isinstance(value, list):
        entries: list[Any] = []
        _add_entries(entries, value)
        return entries
    if isinstance(value, dict):
        fields: dict[str, Any] = {}
        accumulate(fields, value)
        return fields
    return value


def _add_entries(entries: list[Any], new: list[Any]) -> None:
    """Add pieces of entries to a list; what has no index is an entry of its own, but a thought without its signature.

    LiteLLM gives Anthropic's thoughts so: the last piece has the signature.
    """
    for piece in new:
        if entries and _goes_on(entries[-1], piece):
            accumulate(entries[-1], piece)
            continue
        index = piece.get("index") if isinstance(piece, dict) else None
        # Only the last ones are written at a time, and a list may be long.
        for entry in entries[: -_AT_A_TIME - 1 : -1] if type(index) is int else ():
            if isinstance(entry, dict) and entry.get("index") == index and not _differ(entry, piece):
                accumulate(entry, piece)
                break
        else:
            entries.append(_copied(piece))


_AT_A_TIME = 64


def _goes_on(entry: Any, piece: Any) -> bool:
    """Return whether a piece goes on with a thought that awaits its signature."""
    if not (isinstance(entry, dict) and isinstance(piece, dict)) or "index" in piece:
        return False
    are_thoughts = isinstance(entry.get("thinking"), str) and isinstance(piece.get("thinking"), str)
    return are_thoughts and not entry.get("signature") and not _differ(entry, piece)


def _differ(entry: dict[str, Any], piece: dict[str, Any]) -> bool:
    """Return whether a piece has another id or another type than an entry of the same index."""
    for name in ("id", "type"):
        its = piece.get(name)
        if its and entry.get(name) not in (its, None, ""):
            return True
    return False


def _longer(so_far: Any, more: Any) -> Any:
    """Return log probabilities with those of the next chunk behind them."""
    if so_far is None:
        given: dict[str, Any] = {**(getattr(more, "model_extra", None) or {})}
        given |= {name: getattr(more, name, None) for name in ("content", "refusal")}
        if any(
            given[name] is not None and not isinstance(given[name], list) for name in ("content", "refusal")
        ):
            return more  # of another shape
        return ChoiceLogprobs.construct(**{name: _copied(value) for name, value in given.items()})
    if not isinstance(so_far, ChoiceLogprobs):
        return so_far
    for name in ("content", "refusal"):
        entries, old = getattr(more, name, None), getattr(so_far, name)
        if isinstance(entries, list) and old is not None:
            old.extend(entries)
        elif isinstance(entries, list):
            setattr(so_far, name, [*entries])
    if extra := getattr(more, "model_extra", None):
        mine: Any = so_far.model_extra
        _renew(mine, extra, joins=True)
    return so_far


def _renew(into: dict[str, Any], new: Mapping[str, Any], *, joins: bool = False) -> None:
    """Take over the values of fields that every chunk repeats; a null says nothing of them.

    `joins`: lists of numbers, such as the ids of a chunk's tokens, are parts of one list.
    """
    for name, value in new.items():
        old = into.get(name)
        if old is None:
            into[name] = _copied(value)
        elif isinstance(old, dict) and isinstance(value, dict):
            into[name] = {**old, **value}
        elif joins and _are_numbers(old[-1:] if isinstance(old, list) else old) and _are_numbers(value):
            old.extend(value)
        elif value is not None:
            into[name] = _copied(value)


def _add(model: Any, extra: dict[str, Any]) -> None:
    model.__pydantic_extra__.update(extra)
    model.__pydantic_fields_set__.update(extra)


def _dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _are_numbers(value: object) -> bool:
    return isinstance(value, list) and all(type(item) in (int, float) for item in value)
