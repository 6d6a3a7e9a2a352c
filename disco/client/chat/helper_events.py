"""The events of the SDK's `.stream()` helpers, without taking the whole message apart for every chunk.

For every chunk, the SDK dumps the whole message, adds the delta and builds the message anew. A chunk with text only
makes `content` longer and causes two events. For such a chunk, this module does so directly. It leaves every other
chunk to the SDK's own code. The resulting objects are equal either way.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from openai import Omit
from openai.lib.streaming.chat import (
    AsyncChatCompletionStream,
    AsyncChatCompletionStreamManager,
    ChatCompletionStream,
    ChatCompletionStreamManager,
    ChatCompletionStreamState,
)
from openai.types.chat import ChatCompletionChunk

from disco.client.chat.revised_text import retracts_to
from disco.endpoints.openai_api.chunk_template import remade

__all__ = ["StreamManager", "StreamState", "SyncStreamManager"]


class StreamState(ChatCompletionStreamState[Any]):
    """The SDK's state of a streamed answer, with a fast path for chunks of plain text.

    Mutable: `_like`, the two events of the last such chunk, set once the SDK's own code has built a whole message.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        # With a class to parse into, every chunk also changes the parsed result.
        self._may = isinstance(self._rich_response_format, Omit)
        self._like: tuple[Any, Any] | None = None

    def handle_chunk(self, chunk: ChatCompletionChunk) -> Any:
        """As the SDK's: take in a chunk and return its events."""
        left = retracts_to(chunk)
        if left is not None:
            message = self.current_completion_snapshot.choices[0].message
            message.content = (message.content or "")[:left]
        like = self._like
        if like is not None and _is_plain(chunk, like[0].snapshot.choices[0].message):
            return self._longer(chunk, *like)
        events = list(super().handle_chunk(chunk))
        self._like = None
        if self._may and len(events) == 2 and events[1].type == "content.delta":
            answer = self.current_completion_snapshot
            if len(answer.choices) == 1 and _is_settled(answer.choices[0]):
                self._like = events[0], events[1]
        return events

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


class StreamManager(AsyncChatCompletionStreamManager[Any]):
    """The SDK's manager of a `.stream()`, whose stream has a `StreamState`."""

    def __init__(self, manager: AsyncChatCompletionStreamManager[Any]) -> None:
        self._manager = manager

    async def __aenter__(self) -> AsyncChatCompletionStream[Any]:
        stream = await self._manager.__aenter__()
        _quicken(stream)
        return stream

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self._manager.__aexit__(exc_type, exc, exc_tb)


class SyncStreamManager(ChatCompletionStreamManager[Any]):
    """See `StreamManager`."""

    def __init__(self, manager: ChatCompletionStreamManager[Any]) -> None:
        self._manager = manager

    def __enter__(self) -> ChatCompletionStream[Any]:
        stream = self._manager.__enter__()
        _quicken(stream)
        return stream

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        self._manager.__exit__(exc_type, exc, exc_tb)


def _quicken(stream: Any) -> None:
    state = stream._state  # noqa: SLF001 - the SDK has no public way to set it
    if type(state) is ChatCompletionStreamState:
        stream._state = StreamState(  # noqa: SLF001
            input_tools=state._input_tools,  # noqa: SLF001
            response_format=state._response_format,  # noqa: SLF001
        )
