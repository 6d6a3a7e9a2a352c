"""From deltas to the SDK's own types. An answer has one id, one model and one usage, even with several writers."""

from __future__ import annotations

import time
from collections.abc import Callable
from secrets import token_hex
from typing import TYPE_CHECKING, Any, cast

from openai.types import CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
from openai.types.chat.chat_completion_chunk import (
    ChoiceDelta,
    ChoiceDeltaToolCall,
    ChoiceDeltaToolCallFunction,
)
from openai.types.chat.chat_completion_chunk import ChoiceLogprobs as ChunkLogprobs
from pydantic import ValidationError

from disco.client.chat.stream_types import not_complete
from disco.endpoints.openai_api.chunk_template import TemplateChunk, remade
from disco.events import Delta, DeltaKind, ToolCallDelta

if TYPE_CHECKING:
    from disco.session.records.route_record import RouteRecord

__all__ = ["ChatChunks", "RouteOfAnswer", "RoutedChatCompletion", "like", "with_route"]

# Templates: an object made here is a copy of one of these with some fields replaced. The SDK's `construct` looks at
# every field's type anew, which takes twenty times as long. A template also determines which fields count as set.
_DELTA = ChoiceDelta.construct(content=None, role=None)
_EMPTY, _ROLE = ChoiceDelta.construct(), ChoiceDelta.construct(role="assistant")
_CHUNK_CHOICE = ChunkChoice.construct(index=0, delta=_EMPTY, finish_reason=None, logprobs=None)
_CHUNK = ChatCompletionChunk.construct(
    id="", choices=[], created=0, model="", object="chat.completion.chunk", system_fingerprint=None
)
_TEXT = DeltaKind.TEXT


class ChatChunks:
    """Makes the chunks of one answer. Mutable: the identity, taken from the first vendor chunk, if any."""

    def __init__(self, model: str) -> None:
        self.id = f"chatcmpl-{token_hex(16)}"
        self.model = model
        self.created = int(time.time())
        self.fingerprint: str | None = None
        self._first = True
        self._role_sent = False
        self._roles: set[int] = set()  # of which choices a chunk has given the role

    def of(self, delta: Delta) -> ChatCompletionChunk:
        """Return the chunk for one delta: the vendor's own if there is one, else a new one."""
        raw: ChatCompletionChunk | None = delta.raw
        if type(delta.raw) is TemplateChunk:
            raw = delta.raw.made()
            if self.is_as_it_came(delta) and not delta.raw.template.has_role:
                return raw
        if raw is not None:
            if self._first and raw.id:
                self._identify(raw)
            elif not self._first and (raw.id != self.id or raw.created != self.created):
                # Of another writer, or of llama-server, which gives each chunk a time of its own.
                raw.id, raw.model, raw.created = self.id, self.model, self.created
            self._first = self._first and not raw.id  # a provider's notes before the answer have no id
            self._role_sent = self._role_sent or bool(raw.choices)
            self._give_role_once(raw)
            return raw if delta.kind is not _TEXT else _with_text(raw, delta)
        self._first = False
        if delta.kind is DeltaKind.RETRACT:
            return self._retraction()
        role = None if self._role_sent else "assistant"
        if delta.reasoning or delta.tool_calls or delta.refusal:
            made = _typed(delta, role)
        else:
            made = like(_DELTA, content=delta.text, role=role)
        self._role_sent = True
        self._roles.add(0)
        return self._envelope([like(_CHUNK_CHOICE, delta=made, logprobs=_logprobs(delta.logprobs))])

    def _give_role_once(self, raw: ChatCompletionChunk) -> None:
        """Take the role out of a chunk if another one has given it: the SDK's helpers join roles as they join texts."""
        for choice in raw.choices:
            delta = choice.delta
            if delta.role is None:
                continue
            if choice.index in self._roles:
                delta.role = None
                delta.__pydantic_fields_set__.discard("role")
            self._roles.add(choice.index)

    def _retraction(self) -> ChatCompletionChunk:
        """Return the chunk, without choices, that takes all text back; only callers who asked for revisions get it."""
        chunk: Any = self._envelope([])
        chunk.disco = {"retract_to": 0}
        return cast("ChatCompletionChunk", chunk)

    def _identify(self, raw: ChatCompletionChunk) -> None:
        """Take over a vendor's identity of the answer."""
        self.id, self.model, self.created = raw.id, raw.model, raw.created
        self.fingerprint = raw.system_fingerprint

    def ends_with(self, raw: ChatCompletionChunk) -> None:
        """Take over the identity in the vendor's last chunk, if no other chunk came: the answer is empty."""
        if self._first and raw.id:
            self._identify(raw)

    def is_as_it_came(self, delta: Delta) -> bool:
        """Return whether `of` would return the vendor's chunk unchanged, and learn nothing new from it."""
        raw = delta.raw
        return (
            type(raw) is TemplateChunk
            and not self._first
            and raw.template.id == self.id
            and raw.template.created == self.created
            and (raw.text == delta.text or delta.kind is not _TEXT)
        )

    def last(self, finish_reason: str, raw: ChatCompletionChunk | None = None) -> ChatCompletionChunk:
        """Return the chunk that says why the answer ended: the vendor's own, if there is one and it says the same."""
        if raw is not None:
            self.ends_with(raw)
        if raw is not None and raw.choices and raw.choices[0].finish_reason == finish_reason:
            identity = {"id": self.id, "created": self.created, "model": self.model} if self.id else {}
            made: ChatCompletionChunk = like(raw, **identity, usage=None)
            made.__pydantic_fields_set__.discard("usage")
            return made
        delta = like(_EMPTY if self._role_sent else _ROLE)
        return self._envelope([like(_CHUNK_CHOICE, delta=delta, finish_reason=finish_reason)])

    def text_frame(self) -> tuple[bytes, bytes]:
        """Return the bytes before and after the text's JSON string, in the event of a chunk with text only."""
        made = like(_CHUNK_CHOICE, delta=ChoiceDelta.construct(content="\0"))
        head, tail = self._envelope([made]).model_dump_json(exclude_unset=True).split('"\\u0000"')
        return b"data: " + head.encode(), tail.encode() + b"\n\n"

    def usage(self, usage: CompletionUsage) -> ChatCompletionChunk:
        """Return the chunk without choices that `stream_options.include_usage` asks for."""
        chunk = self._envelope([])
        chunk.usage = usage
        return chunk

    def _envelope(self, choices: list[ChunkChoice]) -> ChatCompletionChunk:
        made: ChatCompletionChunk = like(
            _CHUNK,
            id=self.id,
            choices=choices,
            created=self.created,
            model=self.model,
            system_fingerprint=self.fingerprint,
        )
        return made


def _with_text(raw: ChatCompletionChunk, delta: Delta) -> ChatCompletionChunk:
    """Return a vendor's chunk; with less text where only a part of its text was released."""
    choice = raw.choices[0]
    name = "refusal" if delta.refusal else "content"
    if getattr(choice.delta, name) in (delta.text, None):
        return raw
    part = like(choice.delta, **{name: delta.text})
    made: ChatCompletionChunk = like(raw, choices=[like(choice, delta=part)])
    return made


def _logprobs(given: dict[str, Any] | None) -> ChunkLogprobs | None:
    if given is None:
        return None
    try:
        return ChunkLogprobs.model_validate(given)
    except ValidationError:  # a server's, of another shape
        return ChunkLogprobs.construct(**given)


def _typed(delta: Delta, role: str | None) -> ChoiceDelta:
    """Return the delta of a chunk with reasoning or calls, as servers write it."""
    fields: dict[str, Any] = {"role": role, "content": None} if role else {}
    if delta.text:
        fields["refusal" if delta.refusal else "content"] = delta.text
    if delta.reasoning:
        fields["reasoning_content"] = delta.reasoning
    if delta.tool_calls:
        fields["tool_calls"] = [_call(call) for call in delta.tool_calls]
    return ChoiceDelta.construct(**fields)


def _call(call: ToolCallDelta) -> ChoiceDeltaToolCall:
    function = ChoiceDeltaToolCallFunction.construct(arguments=call.arguments)
    made = ChoiceDeltaToolCall.construct(index=call.index, function=function)
    if call.id is not None:
        made.id = call.id
    if call.name is not None:
        made.type, function.name = "function", call.name
    return made


class _Later:
    """A route record that is made at first access. Equal to the record, and pickled as the record."""

    __slots__ = ("write",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, write: Callable[[], RouteRecord | None]) -> None:
        self.write = write

    def __eq__(self, other: object) -> bool:
        return self.write() == (other.write() if isinstance(other, _Later) else other)

    def __deepcopy__(self, memo: object) -> _Later:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self.write(),)


def _itself(record: RouteRecord | None) -> RouteRecord | None:
    return record


class RouteOfAnswer:
    """What disco adds to the SDK's model of a whole answer. A mixin in front of the SDK's class."""

    _route: Any = None  # in the instance's `__dict__`, as the SDK's `_request_id`
    __hash__ = None  # type: ignore[assignment] # as the SDK's

    def __eq__(self, other: object) -> bool:
        """Compare as the SDK's models do; the route record does not count."""
        mine: Any = self
        plain = next(kind for kind in type(self).__mro__ if kind.__module__.startswith("openai."))
        plain = getattr(plain, "__pydantic_generic_metadata__", {}).get("origin") or plain
        if not isinstance(other, plain):
            return NotImplemented
        theirs: Any = other
        return bool(mine.model_extra == theirs.model_extra) and all(
            vars(mine).get(name) == vars(theirs).get(name) for name in type(mine).model_fields
        )

    @property
    def route(self) -> RouteRecord:
        """The route record of this answer: which endpoints started, which wrote, where it migrated, what it cost.

        Raises:
            DiscoError: the answer is not complete yet.
        """
        record: RouteRecord | None = self._route.write() if type(self._route) is _Later else self._route
        if record is None:
            raise not_complete()
        return record


class RoutedChatCompletion(RouteOfAnswer, ChatCompletion):
    """A `ChatCompletion` with its route record; equal to the plain one and serialised like it."""


def with_route(answer: RouteOfAnswer, route: Callable[[], RouteRecord | None] | None) -> None:
    """Give an answer the function that writes its route record."""
    object.__setattr__(answer, "_route", None if route is None else _Later(route))


def like(model: Any, /, **fields: Any) -> Any:
    """Return a copy of a model with other values of some of its fields."""
    return remade(model, {**vars(model), **fields})
