"""What the SDK makes of a direct answer: with which classes, and how it is noted for the record."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import httpx2
from openai import AsyncStream, NotGiven, Stream
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response

from disco.client.chat.chat_chunks import RoutedChatCompletion, with_route
from disco.client.chat.http_encoding import asks_for_http
from disco.client.chat.routed_results import parsed_by, routed
from disco.client.direct.direct_stream import DirectStream, DirectSyncStream

if TYPE_CHECKING:
    from openai._models import FinalRequestOptions

    from disco.client.direct.direct_answer import DirectAnswer

__all__ = ["classes_for", "noted"]

_STREAMS: dict[Any, Any] = {
    AsyncStream[ChatCompletionChunk]: DirectStream,
    Stream[ChatCompletionChunk]: DirectSyncStream,
}


def classes_for(
    cast_to: Any, options: FinalRequestOptions, stream_cls: Any, direct: DirectAnswer
) -> tuple[Any, Any]:
    """Return the classes to ask the SDK for: its own, or ours that hold the route record besides.

    What the SDK makes of its own classes, its `post_parser` gives the route to.
    """
    is_typed = isinstance(options.post_parser, NotGiven) and not asks_for_http(options)
    if is_typed and cast_to is ChatCompletion:
        cast_to = RoutedChatCompletion
    elif not (is_typed and stream_cls in _STREAMS):
        options.post_parser = parsed_by(options.post_parser, direct)
    return cast_to, _STREAMS.get(stream_cls, stream_cls)


def noted(answer: Any, direct: DirectAnswer, *, is_async: bool) -> Any:
    """Return what the SDK returned; it, or the HTTP response behind it, tells `direct` what came."""
    kind = type(answer)
    if kind is DirectStream or kind is DirectSyncStream:
        answer.noted = direct
        return answer
    if isinstance(answer, ChatCompletion | Response):
        # An answer may be of any shape; what the record would like to know of it must not fail it.
        with contextlib.suppress(Exception):
            _note_whole(answer, direct)
        direct.end()
        if isinstance(answer, RoutedChatCompletion):
            with_route(answer, direct.route)
        return routed(answer, direct)
    response = direct.response
    if response is None or response.is_closed:
        if response is not None:
            direct.came(response.content)
        direct.end()
    elif is_async and isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _Tapped(response.stream, direct)
    elif isinstance(response.stream, httpx2.SyncByteStream):
        response.stream = _TappedSync(response.stream, direct)
    else:
        direct.end()  # a body of another HTTP package
    return routed(answer, direct)


def _note_whole(answer: ChatCompletion | Response, direct: DirectAnswer) -> None:
    direct.usage = answer.usage
    if isinstance(answer, Response):
        direct.finish_reason = "stop" if answer.status == "completed" else "length"
        direct.texts.append((time.monotonic(), answer.output_text))
    elif answer.choices:
        direct.finish_reason = str(answer.choices[0].finish_reason)
        direct.texts.append((time.monotonic(), answer.choices[0].message))


class _Tapped(httpx2.AsyncByteStream):
    """A body that passes through unchanged; its pieces are noted, unless a `DirectStream` takes the body over."""

    def __init__(self, body: httpx2.AsyncByteStream, direct: DirectAnswer) -> None:
        self._body, self._direct = body, direct

    def taken_over(self) -> tuple[httpx2.AsyncByteStream, DirectAnswer]:
        """Return the body, and the answer that its reader notes from now on."""
        return self._body, self._direct

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._body:
                self._direct.came(piece)
                yield piece
        except Exception as error:
            self._direct.end(error)
            raise
        self._direct.end()

    async def aclose(self) -> None:
        await self._body.aclose()
        self._direct.end(GeneratorExit())


class _TappedSync(httpx2.SyncByteStream):
    """See `_Tapped`."""

    def __init__(self, body: httpx2.SyncByteStream, direct: DirectAnswer) -> None:
        self._body, self._direct = body, direct

    def taken_over(self) -> tuple[httpx2.SyncByteStream, DirectAnswer]:
        """See `_Tapped.taken_over`."""
        return self._body, self._direct

    def __iter__(self) -> Iterator[bytes]:
        try:
            for piece in self._body:
                self._direct.came(piece)
                yield piece
        except Exception as error:
            self._direct.end(error)
            raise
        self._direct.end()

    def close(self) -> None:
        self._body.close()
        self._direct.end(GeneratorExit())
