"""The SDK's streams of chat chunks, read with less work: the same chunks and errors, noted for the record."""

from __future__ import annotations

import codecs
import contextlib
import json
import math
import ssl
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, Self

import anyio
import httpx2
from openai import APIConnectionError
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel, ValidationError

from disco.client.chat.stream_types import DiscoStream, DiscoSyncStream, RouteOfStream, not_complete
from disco.client.direct.noted_response import taken_over
from disco.endpoints.openai_api.chunk_template import MAX_TEMPLATES, ChunkTemplate
from disco.endpoints.openai_api.error_mapping import stream_error, wrap_transport, wrap_unreadable
from disco.endpoints.openai_api.http_transport import exhaust, leave, pieces
from disco.endpoints.openai_api.sse import ErrorData, EventSplitter

if TYPE_CHECKING:
    from disco.client.direct.direct_answer import DirectAnswer, Sends
    from disco.session.records.answer_progress import AnswerProgress
    from disco.session.records.assist_record import AssistState
    from disco.session.records.route_record import RouteRecord

__all__ = ["DirectStream", "DirectSyncStream", "as_openai_error"]

_TRANSPORT = (httpx2.RequestError, ssl.SSLError, anyio.EndOfStream)


class _Direct(RouteOfStream):
    """What both streams have in common."""

    _reader: _ChunkReader
    response: httpx2.Response

    @property
    def noted(self) -> DirectAnswer | None:
        """The answer; None before it is known."""
        return self._reader.noted

    @noted.setter
    def noted(self, direct: DirectAnswer) -> None:
        self._reader.noted = direct

    @property
    def _answer_source(self) -> DirectAnswer | None:
        """What knows the answer, for the SDK's helpers around this stream."""
        return self.noted

    @property
    def route(self) -> RouteRecord:
        if self.noted is None or self.noted.ended_at is None:
            raise not_complete()
        return self.noted.route()

    @property
    def writer(self) -> str | None:
        return None if self.noted is None else self.noted.writer

    @property
    def buffered_tokens(self) -> int:
        return 0  # the SDK's way has no buffer

    @property
    def progress(self) -> AnswerProgress:
        from disco.session.records.answer_progress import AnswerProgress  # noqa: PLC0415 - numpy loads with it

        noted = self.noted
        if noted is None:  # not begun
            return AnswerProgress(None, (), 0, 0, None, None, None)
        if noted.ended_at is None:
            running = (noted.endpoint,)
            return AnswerProgress(self.writer, running, len(noted.notes), 0, None, None, None)
        route = noted.route()
        return AnswerProgress(
            self.writer,
            (),
            route.answer_tokens,
            0,
            buffered_s=None,
            bill_usd=route.bill_usd,
            device_energy_j=route.device_energy_j,
        )

    @property
    def assist(self) -> AssistState | None:
        return None  # one server answers

    def __del__(self) -> None:
        self._reader.end(GeneratorExit())  # dropped before its end


class DirectStream(_Direct, DiscoStream):
    """See `DiscoStream`."""

    _is_left = False  # closed before its end

    # `_iterator` stays the SDK's: instruments replace it.
    def __aiter__(self) -> Self:  # no generator, which the owner would have to close
        return self

    async def __anext__(self) -> ChatCompletionChunk:
        if self._is_left:
            error = APIConnectionError(message="The stream was closed.", request=self.response.request)
            if self.noted is not None:
                self.noted.fail(error)
            raise error
        return await self._iterator.__anext__()

    def __stream__(self) -> AsyncIterator[ChatCompletionChunk]:
        self._reader = _ChunkReader(self)
        self._chunks: Any = _chunks(self._reader, self.response)
        return self._chunks

    async def close(self) -> None:
        """Close the response and release the connection."""
        await super().close()
        self._reader.end(GeneratorExit())
        if self._reader.has_begun and self._chunks.ag_frame is not None:
            self._is_left = True
            # If another task reads from the generator, that task notices that the response is closed.
            with contextlib.suppress(RuntimeError):
                await self._chunks.aclose()


class DirectSyncStream(_Direct, DiscoSyncStream):
    """See `DiscoSyncStream`."""

    def __stream__(self) -> Iterator[ChatCompletionChunk]:
        self._reader = _ChunkReader(self)
        return _chunks_sync(self._reader, self.response)

    def close(self) -> None:
        """Close the response and release the connection."""
        super().close()
        self._reader.end(GeneratorExit())


# No methods of the streams, which would be in a cycle with their generators: the garbage collector would have to find
# a stream that is dropped, and would close its generators in any order.


async def _chunks(
    reader: _ChunkReader, response: httpx2.Response
) -> AsyncGenerator[ChatCompletionChunk, None]:
    reader.begin(response)
    body = pieces(response)
    try:
        async for piece in body:
            reader.received(piece)
            for chunk in reader.chunks(piece):
                yield chunk
            if reader.done:
                await exhaust(body, note=reader.received)
                break
        reader.body_ended()
        await reader.read_in_turns()
    except BaseException as error:
        await reader.read_in_turns(error)
        reader.fail(error)
        raise
    finally:
        await response.aclose()
        await leave(body)
    reader.end()


def _chunks_sync(reader: _ChunkReader, response: httpx2.Response) -> Iterator[ChatCompletionChunk]:
    reader.begin(response)
    try:
        for piece in response.iter_bytes():
            reader.received(piece)
            yield from reader.chunks(piece)
            if reader.done:
                break
        reader.body_ended()
    except BaseException as error:
        reader.fail(error)
        raise
    finally:
        response.close()
    reader.end()


class _ChunkReader:
    """Makes chunks of the pieces of a body, and notes them. `done`: [DONE] was read."""

    def __init__(self, stream: Any) -> None:
        self.noted: DirectAnswer | None = None
        self.done = False
        self._first, self._has_events = b"", False
        self._client, self._cast_to = stream._client, stream._cast_to  # noqa: SLF001 - the SDK's own
        self._response: Any = None
        self._wire: Sends | None = None
        self.received: Callable[[bytes], None] = _nothing  # counts a piece
        self._note: Callable[[Any], None] = _nothing
        self._splitter = EventSplitter(most_bytes=math.inf)
        self._template: ChunkTemplate | None = None
        self._templates = MAX_TEMPLATES
        self._is_strict = self._client._strict_response_validation  # noqa: SLF001 - the SDK then validates itself

    @property
    def has_begun(self) -> bool:
        """Whether the body is being read."""
        return self._response is not None

    def begin(self, response: Any) -> None:
        """Begin to read the body of a response."""
        self._response = response
        self.noted = self.noted or taken_over(response)
        self._wire = None if self.noted is None else self.noted.counting(response)
        if self._wire is not None:
            self.received = self._wire.received
        if self.noted is not None:
            self._note = self.noted.notes.append

    def chunks(self, piece: bytes) -> Iterator[ChatCompletionChunk]:
        """Yield the chunks that the piece completes. Raises as the SDK's own stream."""
        # What is noted is what the record is made of: a text, or an event for the reader of all other answers.
        note, template = self._note, self._template
        if not self._first:
            self._first = piece
        for event in self._splitter.feed(piece):
            if template is not None and (text := template.text(event)) is not None:
                note((time.monotonic(), text))
                yield template.chunk(text)
                continue
            if not event.strip() and not isinstance(event, ErrorData):
                continue  # a sign of life
            self._has_events = True
            note((time.monotonic(), event))
            if event.startswith(b"[DONE]"):
                self.done = True
                return
            yield self._parsed(event)
            template = self._template

    def body_ended(self) -> None:
        """Drop an event that the body did not end. Raises as the SDK's own stream, which decodes every line."""
        if self._wire is not None:
            self._wire.ended()
        (self._splitter.end() or b"").decode()
        if not self._has_events:
            codecs.getincrementaldecoder("utf-8")().decode(self._first)  # of an unknown coding, perhaps

    async def read_in_turns(self, error: BaseException | None = None) -> None:
        """See `DirectAnswer`."""
        if self.noted is not None:
            await self.noted.read_in_turns(error)

    def fail(self, error: BaseException) -> None:
        """Note that reading has failed; raise the SDK's error where it has one for this."""
        raised = as_openai_error(error, self._response)
        self.end(raised)
        if self.noted is not None and isinstance(raised, Exception):
            self.noted.fail(raised)  # also behind the end: of a stream that was closed
        if raised is not error:
            raise raised from error

    def end(self, error: BaseException | None = None) -> None:
        """Note that reading has ended."""
        if self.noted is not None:
            self.noted.end(error)

    def _parsed(self, event: bytes) -> ChatCompletionChunk:
        if not self._is_strict:
            try:
                chunk = ChatCompletionChunk.model_validate_json(event)
            except ValidationError:
                pass  # the SDK takes what is not quite a chunk
            else:
                if not (chunk.model_extra and chunk.model_extra.get("error")):
                    if chunk.choices and chunk.choices[0].delta.content and self._templates:
                        self._templates -= 1
                        self._template = ChunkTemplate.of(event, chunk)
                    as_constructed(chunk)
                    return chunk
        data = json.loads(event.decode())
        if isinstance(data, dict) and data.get("error"):
            raise stream_error(data["error"], self._response.request)
        return self._client._process_response_data(  # type: ignore[no-any-return] # noqa: SLF001 - as its own streams
            data=data, cast_to=self._cast_to, response=self._response
        )


def _nothing(_: object) -> None:
    """Neither count nor note."""


def as_constructed(model: Any) -> None:
    """Make a validated model as the SDK constructs it: extra fields do not count as fields that were set."""
    if isinstance(model, BaseModel):
        if model.__pydantic_extra__:
            model.__pydantic_fields_set__.difference_update(model.__pydantic_extra__)
        for value in model.__dict__.values():
            if value is not None and type(value) not in _PLAIN:
                as_constructed(value)
    elif isinstance(model, list):
        for item in model:
            as_constructed(item)


_PLAIN = (str, int, float, bool)


def as_openai_error(error: BaseException, response: Any) -> BaseException:
    """Return what the SDK raises when a body cannot be read, or read on, or should raise: an `OpenAIError`."""
    older = sys.modules.get("httpx")  # the SDK also takes clients of the package's former name
    is_transport = isinstance(error, (*_TRANSPORT, *([older.RequestError] if older else ())))
    return wrap_transport(error, response.request) if is_transport else wrap_unreadable(error)
