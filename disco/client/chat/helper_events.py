"""The SDK's `.stream()` helpers with the route record, without taking the whole message apart for every chunk.

For every chunk, the SDK dumps the whole message, adds the delta and builds the message anew. A chunk with text only
makes `content` longer and causes two events. For such a chunk, this module does so directly. It leaves every other
chunk to the SDK's own code. The resulting objects are equal either way, but for what the SDK cannot add up: calls
without an index of their own, and lists and numbers that it knows nothing of, are put together as in whole answers.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from openai import Omit
from openai.lib._parsing import ResponseFormatT
from openai.lib._parsing._responses import TextFormatT
from openai.lib.streaming.chat import (
    AsyncChatCompletionStream,
    AsyncChatCompletionStreamManager,
    ChatCompletionStream,
    ChatCompletionStreamManager,
    ChatCompletionStreamState,
)
from openai.lib.streaming.responses import (
    AsyncResponseStream,
    AsyncResponseStreamManager,
    ResponseStream,
    ResponseStreamManager,
)
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessage

from disco.client.chat.assembly import accumulate
from disco.client.chat.revised_text import retracts_to
from disco.client.chat.routed_results import (
    RoutedParsedChatCompletion,
    RoutedParsedResponse,
    RouteOfSource,
    become,
    read_by_the_sdk,
    routed,
)
from disco.endpoints.openai_api.call_pieces import CallPieces
from disco.endpoints.openai_api.chunk_template import remade

__all__ = [
    "DiscoHelperStream",
    "DiscoResponseStream",
    "DiscoSyncHelperStream",
    "DiscoSyncResponseStream",
    "ResponseManager",
    "StreamManager",
    "StreamState",
    "SyncResponseManager",
    "SyncStreamManager",
]


class StreamState(ChatCompletionStreamState[Any]):
    """The SDK's state of a streamed answer, with a fast path for chunks of plain text.

    Mutable: `_like`, the two events of the last such chunk, set once the SDK's own code has built a whole message.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        # With a class to parse into, every chunk also changes the parsed result.
        self._may = isinstance(self._rich_response_format, Omit)
        self._like: tuple[Any, Any] | None = None
        self._calls: dict[Any, CallPieces] = {}  # by choice
        self._unknown: dict[Any, dict[str, Any]] = {}  # by choice, what the SDK does not add up

    def handle_chunk(self, chunk: ChatCompletionChunk) -> Any:
        """As the SDK's: take in a chunk and return its events."""
        left = retracts_to(chunk)
        if left is not None:
            message = self.current_completion_snapshot.choices[0].message
            message.content = (message.content or "")[:left]
        like = self._like
        if like is not None and _is_plain(chunk, like[0].snapshot.choices[0].message):
            return self._longer(chunk, *like)
        taken = self._taken(chunk)
        try:
            events = list(super().handle_chunk(chunk))
        finally:
            for choice, fields in taken:
                choice.delta.__pydantic_extra__.update(fields)
                choice.delta.__pydantic_fields_set__ |= fields.keys()
        for choice, fields in taken:
            so_far = self._unknown.setdefault(choice.index, {})
            accumulate(so_far, fields)
            _put_into(self.current_completion_snapshot.choices[choice.index].message, so_far)
        self._like = None
        if self._may and len(events) == 2 and events[1].type == "content.delta":
            answer = self.current_completion_snapshot
            if len(answer.choices) == 1 and _is_settled(answer.choices[0]):
                self._like = events[0], events[1]
        return events

    def _taken(self, chunk: ChatCompletionChunk) -> list[tuple[Any, dict[str, Any]]]:
        """Number the calls in a chunk, and take out of it what the SDK would not add up; return that, by choice."""
        taken = []
        for choice in chunk.choices or ():
            if getattr(choice, "delta", None) is None:
                continue
            if choice.delta.tool_calls:
                self._calls.setdefault(choice.index, CallPieces()).place(choice.delta.tool_calls)
            extra = choice.delta.model_extra or {}
            fields = {
                name: value for name, value in extra.items() if isinstance(value, (list, dict, int, float))
            }
            if fields:
                for name in fields:
                    extra.pop(name)
                    choice.delta.__pydantic_fields_set__.discard(name)
                taken.append((choice, fields))
        return taken

    def _longer(self, chunk: ChatCompletionChunk, whole: Any, text: Any) -> list[Any]:
        answer = whole.snapshot
        choice = answer.choices[0]
        fields = choice.message.__dict__
        added = chunk.choices[0].delta.content
        content = fields["content"] + added
        # Not by attribute: pydantic's assignment takes as long as all other steps. The fields are already set.
        choice.__dict__["message"] = remade(choice.message, {**fields, "content": content})
        answer.__dict__["usage"] = chunk.usage
        answer.__dict__["system_fingerprint"] = chunk.system_fingerprint
        return [
            remade(whole, {"type": "chunk", "chunk": chunk, "snapshot": answer}),
            remade(text, {"type": "content.delta", "delta": added, "snapshot": content, "parsed": None}),
        ]


def _put_into(message: Any, fields: dict[str, Any]) -> None:
    """Put fields into a message that the SDK has built, as it would have built them."""
    for name, value in fields.items():
        if name in type(message).model_fields:
            message.__dict__[name] = getattr(ChatCompletionMessage.construct(**{name: value}), name)
        else:
            message.__pydantic_extra__[name] = value
        message.__pydantic_fields_set__.add(name)


def _is_plain(chunk: Any, message: Any) -> bool:
    """Return whether a chunk changes the message only by making its text longer."""
    choices = chunk.choices
    if len(choices) != 1 or chunk.moderation is not None:
        return False
    choice = choices[0]
    delta = choice.delta
    if (
        type(delta.content) is not str
        or choice.finish_reason is not None
        or choice.logprobs is not None
        or choice.index != 0
        or delta.role is not None
        or delta.tool_calls is not None
        or delta.refusal is not None
        or delta.function_call is not None
    ):
        return False
    extra = delta.model_extra
    return not extra or all(v is None and k in message.model_extra for k, v in extra.items())


def _is_settled(choice: Any) -> bool:
    """Return whether the SDK has built this choice's message whole, of parts that the next message may share."""
    message = choice.message
    fields, extra = vars(message), message.model_extra or {}
    return (
        choice.finish_reason is None
        and type(message.content) is str
        and message.model_fields_set >= fields.keys() - {"parsed"}
        and "parsed" not in message.model_fields_set
        and all(v is None for k, v in fields.items() if k not in ("content", "role"))
        and all(v is None or isinstance(v, (str, int, float)) for v in extra.values())
    )


class DiscoHelperStream(AsyncChatCompletionStream[ResponseFormatT], RouteOfSource):
    """What `chat.completions.stream()` gives: the SDK's, with the route record."""

    async def get_final_completion(self) -> RoutedParsedChatCompletion[ResponseFormatT]:
        """As the SDK's: read the stream to its end and return the whole answer."""
        with read_by_the_sdk(self._answer_source):
            made: RoutedParsedChatCompletion[ResponseFormatT] = routed(
                await super().get_final_completion(), self._answer_source
            )
        return made


class DiscoSyncHelperStream(ChatCompletionStream[ResponseFormatT], RouteOfSource):
    """See `DiscoHelperStream`."""

    def get_final_completion(self) -> RoutedParsedChatCompletion[ResponseFormatT]:
        """As the SDK's: read the stream to its end and return the whole answer."""
        with read_by_the_sdk(self._answer_source):
            made: RoutedParsedChatCompletion[ResponseFormatT] = routed(
                super().get_final_completion(), self._answer_source
            )
        return made


class DiscoResponseStream(AsyncResponseStream[TextFormatT], RouteOfSource):
    """What `responses.stream()` gives: the SDK's, with the route record."""

    async def get_final_response(self) -> RoutedParsedResponse[TextFormatT]:
        """As the SDK's: read the stream to its end and return the whole answer."""
        with read_by_the_sdk(self._answer_source):
            made: RoutedParsedResponse[TextFormatT] = routed(
                await super().get_final_response(), self._answer_source
            )
        return made


class DiscoSyncResponseStream(ResponseStream[TextFormatT], RouteOfSource):
    """See `DiscoResponseStream`."""

    def get_final_response(self) -> RoutedParsedResponse[TextFormatT]:
        """As the SDK's: read the stream to its end and return the whole answer."""
        with read_by_the_sdk(self._answer_source):
            made: RoutedParsedResponse[TextFormatT] = routed(
                super().get_final_response(), self._answer_source
            )
        return made


class _AsyncManager:
    """The SDK's manager of a `.stream()`, whose stream is one of ours."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    async def __aenter__(self) -> Any:
        return _ours(await self._manager.__aenter__())

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self._manager.__aexit__(exc_type, exc, exc_tb)


class _SyncManager:
    """See `_AsyncManager`."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager

    def __enter__(self) -> Any:
        return _ours(self._manager.__enter__())

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self._manager.__exit__(exc_type, exc, exc_tb)


class StreamManager(_AsyncManager, AsyncChatCompletionStreamManager[ResponseFormatT]):
    """What `chat.completions.stream()` returns."""

    if TYPE_CHECKING:

        async def __aenter__(self) -> DiscoHelperStream[ResponseFormatT]: ...


class SyncStreamManager(_SyncManager, ChatCompletionStreamManager[ResponseFormatT]):
    """See `StreamManager`."""

    if TYPE_CHECKING:

        def __enter__(self) -> DiscoSyncHelperStream[ResponseFormatT]: ...


class ResponseManager(_AsyncManager, AsyncResponseStreamManager[Any]):
    """What `responses.stream()` returns."""


class SyncResponseManager(_SyncManager, ResponseStreamManager[Any]):
    """See `ResponseManager`."""


_OURS: dict[type, type] = {
    AsyncChatCompletionStream: DiscoHelperStream,
    ChatCompletionStream: DiscoSyncHelperStream,
    AsyncResponseStream: DiscoResponseStream,
    ResponseStream: DiscoSyncResponseStream,
}


def _ours(stream: Any) -> Any:
    """Return the helper's stream, which is now one of ours, if the stream in it is."""
    source = getattr(stream._raw_stream, "_answer_source", None)  # noqa: SLF001 - the SDK has no public way to it
    kind = _OURS.get(type(stream))
    if kind is not None and source is not None:
        become(stream, kind, source)
    state = stream._state  # noqa: SLF001 - as above
    if type(state) is ChatCompletionStreamState:
        stream._state = StreamState(  # noqa: SLF001
            input_tools=state._input_tools,  # noqa: SLF001
            response_format=state._response_format,  # noqa: SLF001
        )
    return stream
