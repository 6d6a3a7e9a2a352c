"""`client.chat.completions`, and a routed answer as the typed objects that `create` returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, Literal, overload

from openai import AsyncStream, NotGiven, Omit, Stream
from openai.resources.chat import AsyncChat
from openai.resources.chat.completions import AsyncCompletions
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from disco.client.chat.answer_stream import Reading, SessionStream, read, whole_answer
from disco.client.chat.chat_chunks import ChatChunks, RoutedChatCompletion
from disco.client.chat.helper_events import StreamManager
from disco.client.chat.http_encoding import asks_for_http
from disco.client.chat.routed_request import CHAT, Routed
from disco.client.chat.stream_types import DiscoStream
from disco.client.http_gateway import open_session

if TYPE_CHECKING:
    from openai._models import FinalRequestOptions
    from openai.lib._parsing import ResponseFormatT

    from disco.client.async_client import AsyncDisco
    from disco.client.chat.routed_results import RoutedParsedChatCompletion
    from disco.client.routed_client import RoutedClient

__all__ = ["DiscoChat", "DiscoCompletions", "answer_of", "is_typed"]


class DiscoCompletions(AsyncCompletions):
    """The SDK's resource. Its `create` calls `AsyncDisco.request`, which routes; the types say what comes of it."""

    _client: AsyncDisco

    if TYPE_CHECKING:
        # The SDK's own `create` runs. Its overloads list forty parameters each; these give only the types returned.
        @overload  # type: ignore[override]
        async def create(
            self,
            *,
            messages: Iterable[Mapping[str, object]],
            model: str,
            stream: Literal[True],
            **given: Any,
        ) -> DiscoStream: ...

        @overload
        async def create(
            self,
            *,
            messages: Iterable[Mapping[str, object]],
            model: str,
            stream: Literal[False] | Omit | None = ...,
            **given: Any,
        ) -> RoutedChatCompletion: ...

        @overload
        async def create(
            self, *, messages: Iterable[Mapping[str, object]], model: str, stream: bool, **given: Any
        ) -> DiscoStream | RoutedChatCompletion: ...

        async def create(self, **given: Any) -> Any: ...

        async def parse(
            self,
            *,
            messages: Iterable[Mapping[str, object]],
            model: str,
            response_format: type[ResponseFormatT] | Omit = ...,
            **given: Any,
        ) -> RoutedParsedChatCompletion[ResponseFormatT]: ...

        def stream(
            self,
            *,
            messages: Iterable[Mapping[str, object]],
            model: str,
            response_format: type[ResponseFormatT] | Mapping[str, object] | Omit = ...,
            **given: Any,
        ) -> StreamManager[ResponseFormatT]: ...

    if not TYPE_CHECKING:  # type checkers see the SDK's own, with all its parameters

        @wraps(AsyncCompletions.stream)
        def stream(self, **given: Any) -> Any:
            """As the SDK's `stream`: the same events, at a fraction of the CPU time."""
            return StreamManager(super().stream(**given))


class DiscoChat(AsyncChat):
    """The SDK's `client.chat` with routed completions."""

    _client: AsyncDisco

    @cached_property
    def completions(self) -> DiscoCompletions:
        """`client.chat.completions`."""
        return DiscoCompletions(self._client)


def is_typed(cast_to: Any, options: FinalRequestOptions, stream_cls: Any) -> bool:
    """Return whether the caller of `create` gets the SDK's typed objects, not an HTTP response or a parsed answer."""
    return (
        options.url == CHAT
        and (cast_to is ChatCompletion or stream_cls in _CHUNK_STREAMS)
        and isinstance(options.post_parser, NotGiven)
        and not asks_for_http(options)
    )


_CHUNK_STREAMS = (AsyncStream[ChatCompletionChunk], Stream[ChatCompletionChunk])


async def answer_of(
    client: RoutedClient, routed: Routed, options: FinalRequestOptions, *, stream: bool
) -> SessionStream | RoutedChatCompletion:
    """Return a routed answer as typed objects, which no HTTP response is made for.

    Raises:
        openai.OpenAIError: the errors of the plain SDK, and disco's own, which derive from it.
            The error's `partial_text` and `route` keep the text written before it.
    """
    live = await open_session(client, routed, options, stream=stream)
    chunks = ChatChunks(routed.chat["model"])
    if stream:
        wants_usage = bool((routed.chat.get("stream_options") or {}).get("include_usage"))
        return SessionStream(live, await read(live), chunks, include_usage=wants_usage)
    deltas = await Reading(live, []).rest()
    return whole_answer(live, chunks, deltas)
