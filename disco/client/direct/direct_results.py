"""What the SDK makes of a direct answer: with which classes, and how it is noted for the record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from openai import AsyncStream, NotGiven, Stream
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from disco.client.chat.chat_chunks import RoutedChatCompletion, with_route
from disco.client.chat.http_encoding import asks_for_http
from disco.client.chat.routed_results import parsed_by, routed
from disco.client.direct.direct_stream import DirectStream, DirectSyncStream
from disco.client.direct.noted_response import note_body

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


def noted(answer: Any, direct: DirectAnswer) -> Any:
    """Return what the SDK returned; it, or the HTTP response behind it, tells `direct` what comes."""
    if type(answer) in _STREAMS.values():
        answer.noted = direct
        return answer
    response = direct.response
    if response is None or response.is_closed:
        direct.end()
    else:
        note_body(response, direct)
    if isinstance(answer, RoutedChatCompletion):
        with_route(answer, direct.route)
    return routed(answer, direct)
