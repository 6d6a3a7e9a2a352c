"""A routed answer as the API would send it over HTTP: one JSON document, or server-sent events.

All of the SDK that needs an HTTP response (`parse`, `with_raw_response`, `with_streaming_response`, the Responses
API) gets a response made here, and so does the local HTTP server. The ordinary `create` returns typed objects
directly.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

import httpx2
from openai import NotGiven, Omit
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel

from disco.client.chat.answer_stream import (
    Answer,
    Item,
    Reading,
    answer_usage,
    endings,
    read,
    stop,
    whole_answer,
)
from disco.client.chat.chat_chunks import ChatChunks
from disco.client.chat.routed_request import given_headers
from disco.errors import NoEndpointError
from disco.events import Delta, DeltaKind
from disco.request import Request, Timeouts
from disco.request_checks import check_chat

if TYPE_CHECKING:
    from openai._models import FinalRequestOptions

__all__ = [
    "RAW_RESPONSE_HEADER",
    "ChatEncoder",
    "Encoder",
    "EventStream",
    "asks_for_http",
    "chat_request",
    "document",
    "more_than_text",
    "plain_copy",
    "stop",
    "without_markers",
]

# An answer with one of these parameters is more than a text. Such a request goes to the server unchanged.
_MORE_THAN_TEXT = ("audio", "modalities")
# Set by the SDK's `with_raw_response` and `with_streaming_response`, whose callers need an HTTP response.
RAW_RESPONSE_HEADER = "X-Stainless-Raw-Response"
_RAW = RAW_RESPONSE_HEADER.lower()
_TEXT = DeltaKind.TEXT
_AS_IT_IS = frozenset({str, int, float, bool, type(None)})
_NOT_GIVEN = (Omit, NotGiven)


def asks_for_http(options: FinalRequestOptions) -> bool:
    """Return whether the caller wants the HTTP response: `with_raw_response`, `with_streaming_response`."""
    return any(name.lower() == _RAW for name in given_headers(options))


def without_markers(options: FinalRequestOptions) -> dict[str, Any]:
    """Return the headers given for a request, without those by which the SDK talks to itself."""
    return {name: value for name, value in given_headers(options).items() if name.lower() != _RAW}


def plain_copy(value: Any) -> Any:
    """Return a copy of only dicts, lists and JSON values. The SDK's models and iterables become such values.

    A copy, because the answer may be requested again after the application has changed its own lists.
    """
    kind = type(value)
    if kind in _AS_IT_IS:
        return value
    if kind is dict or isinstance(value, Mapping):
        return {key: plain_copy(item) for key, item in value.items() if type(item) not in _NOT_GIVEN}
    if isinstance(value, BaseModel):
        return value.model_dump(
            exclude_unset=True, mode="json", exclude=getattr(value, "__api_exclude__", None)
        )
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes)):
        return [plain_copy(item) for item in value]
    return value


def more_than_text(body: Mapping[str, Any]) -> str | None:
    """Return the parameter by which a chat request asks for more than text; None: a session can answer it."""
    given = (name for name in _MORE_THAN_TEXT if body.get(name) not in (None, ["text"]))
    return next(given, None)


def chat_request(
    body: Mapping[str, Any],
    *,
    timeouts: Timeouts,
    headers: Mapping[str, str] | None = None,
    query: Mapping[str, object] | None = None,
) -> Request:
    """Return the request of a `/chat/completions` body; what it says of streams stands beside the parameters.

    Raises:
        NoEndpointError: `messages` or `model` is null; a field has a wrong type or is out of range (`check_chat`).
    """
    params = {k: v for k, v in body.items() if k not in ("messages", "model", "stream", "stream_options")}
    messages, model = body.get("messages"), body.get("model")
    if messages is None or model is None:
        missing = "messages" if messages is None else "model"
        text = f"Missing required parameter: {missing!r}."
        raise NoEndpointError(text, code="missing_required_parameter", param=missing)
    unusual = check_chat(body)
    options = body.get("stream_options") or {}
    more = {k: v for k, v in options.items() if k != "include_usage"}
    if more:
        params["stream_options"] = more
    return Request(
        messages=list(messages),
        model=model,
        params=params,
        extra_headers=headers,
        extra_query=query,
        timeouts=timeouts,
        unusual=unusual,
        streams=bool(body.get("stream")),
        counts=bool(options.get("include_usage")),
    )


class Encoder(Protocol):
    """The wire format of an answer in one API. Stateful: one encoder per answer."""

    def batch(self, deltas: Sequence[Any]) -> bytes:
        """Return the events for deltas just released; the first call also returns the events before the text."""
        ...

    def end(self, live: Any) -> bytes:
        """Return the events after the last text of a complete answer."""
        ...

    def objects(self, deltas: Sequence[Any]) -> list[Any]:
        """As `batch`: what the SDK would make of those events. Each item goes through `made` before use."""
        ...

    def made(self, item: Any) -> Any:
        """Return the object for an item of `objects`: a model, or the content of the event's JSON."""
        ...

    def last_objects(self, live: Any) -> list[Any]:
        """As `end`: what the SDK would make of those events."""
        ...

    def document(self, deltas: Sequence[Any], live: Any) -> bytes:
        """Return the whole answer as one JSON document, for a request without a stream."""
        ...

    def ends_with(self, error: Exception) -> bool:
        """Return whether the API tells of this error in its answer; then `end`, `last_objects` and `document` do."""
        ...


async def document(live: Answer, encoder: Encoder) -> bytes:
    """Wait for the whole answer and return it as a JSON document.

    Raises:
        Exception: the error that ended the answer, with `partial_text` and `route` on it.
    """
    try:
        deltas = await Reading(live, []).rest()
    except Exception as error:
        if not encoder.ends_with(error):
            raise
        deltas = []
    return encoder.document(deltas, live)


class EventStream(httpx2.AsyncByteStream):
    """The answer as server-sent events. Closing it stops the answer."""

    def __init__(self, live: Answer, encoder: Encoder, first: list[Item]) -> None:
        self.live = live
        self._encoder = encoder
        self._reading = Reading(live, first)

    @classmethod
    async def begin(cls, live: Answer, encoder: Encoder) -> Self:
        """Wait for the first text. An error before it is raised here, not inside the stream."""
        try:
            first = await read(live)
        except Exception as error:
            encoder.ends_with(error)  # takes from the error what only an answer with a beginning could tell
            raise
        return cls(live, encoder, first)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        encoder, reading = self._encoder, self._reading
        try:
            while batch := await reading.next():
                yield encoder.batch(batch)
            if not reading.was_cancelled:
                yield encoder.end(self.live)
        except Exception as error:
            if not encoder.ends_with(error):
                raise
            yield encoder.end(self.live)
        finally:
            self.live.cancel()

    async def next_objects(self) -> list[Any]:
        """Return all that waits to be read, as the SDK would parse it: at least one chunk or event; none at the end.

        Each item goes through `made`, in order. For readers that need objects: most of the SDK's time is spent on
        making objects from bytes, which this avoids.
        """
        encoder, reading = self._encoder, self._reading
        made: list[Any] = []
        while not made and not reading.is_over:
            try:
                deltas = await reading.next()
            except Exception as error:
                if not encoder.ends_with(error):
                    raise
                return encoder.last_objects(self.live)
            if deltas:
                made = encoder.objects(deltas)
            elif not reading.was_cancelled:
                made = encoder.last_objects(self.live)
        return made

    def made(self, item: Any) -> Any:
        """See `Encoder.made`."""
        return self._encoder.made(item)

    def __del__(self) -> None:
        # The stream was dropped before it was read; see `DiscoStream`.
        self.live.abandon()

    async def aclose(self) -> None:
        """Stop the answer; see `stop`."""
        await stop(self.live)


class ChatEncoder:
    """Encodes an answer as `chat.completion` or `chat.completion.chunk`."""

    # Mutable: _frame, the constant parts around a text; known after the first chunk, which sets the identity.
    def __init__(self, model: str, *, include_usage: bool) -> None:
        self._chunks = ChatChunks(model)
        self._include_usage = include_usage
        self._frame: tuple[bytes, bytes] | None = None

    def batch(self, deltas: Sequence[Item]) -> bytes:
        """Return a `data:` line for each delta."""
        chunks, out = self._chunks, []
        for delta in deltas:
            if type(delta) is not Delta:
                out.append(_event(self.made(delta)))
                continue
            is_plain = (
                delta.raw is None and delta.kind is _TEXT and delta.logprobs is None and not delta.refusal
            )
            if self._frame and is_plain:
                head, tail = self._frame
                out.append(head + json.dumps(delta.text).encode() + tail)
                continue
            if chunks.is_as_it_came(delta):
                out.append(b"data: " + delta.raw.data + b"\n\n")
                continue
            out.append(_event(chunks.of(delta)))
            self._frame = self._frame or chunks.text_frame()
        return b"".join(out)

    def end(self, live: Answer) -> bytes:
        """Return the finish reason, the usage if requested, and `[DONE]`."""
        return b"".join([*map(_event, self.last_objects(live)), b"data: [DONE]\n\n"])

    def objects(self, deltas: Sequence[Item]) -> list[Any]:
        """Return the deltas: making all their chunks at once would keep the garbage collector busy."""
        return list(deltas)

    def made(self, item: Any) -> ChatCompletionChunk:
        """Return the chunk of a delta."""
        if type(item) is Delta:
            return self._chunks.of(item)
        chunk: ChatCompletionChunk = item
        self._chunks.ends_with(chunk)
        return chunk

    def last_objects(self, live: Answer) -> list[ChatCompletionChunk]:
        """Return the chunk with the finish reason, and the chunk with the usage if requested."""
        last = endings(live, self._chunks)
        if self._include_usage:
            last.append(self._chunks.usage(answer_usage(live)))
        return last

    def document(self, deltas: Sequence[Item], live: Answer) -> bytes:
        """Return the `chat.completion`."""
        answer = whole_answer(live, self._chunks, deltas)
        return answer.model_dump_json(exclude_unset=True, warnings=False).encode()

    def ends_with(self, error: Exception) -> bool:
        """Return False: a chat has no such end."""
        del error
        return False


def _event(chunk: ChatCompletionChunk) -> bytes:
    return b"data: " + chunk.model_dump_json(exclude_unset=True, warnings=False).encode() + b"\n\n"
