"""The SDK's streams of chat chunks, read with less work: the same chunks and errors, noted for the record."""

from __future__ import annotations

import contextlib
import json
import math
import ssl
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Self

import anyio
import httpx2
from openai import APIConnectionError, APIError, APITimeoutError
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel, ValidationError

from disco.client.chat.stream_types import DiscoStream, DiscoSyncStream, RouteOfStream, not_complete
from disco.endpoints.openai_api.chunk_template import ChunkTemplate
from disco.endpoints.openai_api.http_transport import exhaust, pieces, unwind
from disco.endpoints.openai_api.sse import EventSplitter

if TYPE_CHECKING:
    from disco.client.direct.direct_answer import DirectAnswer
    from disco.session.records.answer_progress import AnswerProgress
    from disco.session.records.assist_record import AssistState
    from disco.session.records.route_record import RouteRecord

__all__ = ["DirectStream", "DirectSyncStream"]

_DRAIN_S = 0.1  # for the few bytes between [DONE] and the end of the body
_TRANSPORT = (httpx2.RequestError, ssl.SSLError, anyio.EndOfStream)
_MAX_TEMPLATES = 8  # that one stream may make; some servers vary more than the text of each event


class _Direct(RouteOfStream):
    """What both streams have in common. Mutable: `noted`, the answer; None before it is known."""

    noted: DirectAnswer | None = None
    _began = False  # whether the body is being read
    response: httpx2.Response

    @property
    def _answer_source(self) -> DirectAnswer | None:
        """What knows the answer, for the SDK's helpers around this stream."""
        return self.noted

    def _begin(self) -> _ChunkReader:
        self._began = True
        body = self.response.stream
        if self.noted is None and hasattr(body, "taken_over"):  # made by `parse()` of a raw response
            self.response.stream, self.noted = body.taken_over()
        return _ChunkReader(self, self.noted)

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
            return AnswerProgress(self.writer, running, len(noted.texts), 0, None, None, None)
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

    def _fail(self, error: BaseException) -> None:
        """Note that reading has failed; raise the SDK's error where it has one for this."""
        raised = _as_the_sdk_raises(error, self.response)
        self._end(raised)
        if raised is not error:
            raise raised from error

    def _end(self, error: BaseException | None = None) -> None:
        if self.noted is not None:
            self.noted.end(error)

    def __del__(self) -> None:
        self._end(GeneratorExit())  # dropped before its end


class DirectStream(_Direct, DiscoStream):
    """See `DiscoStream`."""

    # `_iterator` stays the SDK's: instruments replace it.
    def __aiter__(self) -> Self:  # no generator, which the owner would have to close
        return self

    async def __stream__(self) -> AsyncIterator[ChatCompletionChunk]:
        response, reader = self.response, self._begin()
        is_fresh = not (response.is_closed or response.is_stream_consumed or hasattr(response, "_content"))
        body = pieces(response) if is_fresh else response.aiter_bytes()
        wire = None
        if is_fresh:
            response.is_stream_consumed = True
            wire = None if self.noted is None else self.noted.counting(response)
        try:
            async for piece in body:
                if wire is not None:
                    wire.received(piece)
                for chunk in reader.chunks(piece):
                    yield chunk
                if reader.done:
                    with anyio.move_on_after(_DRAIN_S):  # so that the connection can be used again
                        await exhaust(body, note=None if wire is None else wire.received)
                    break
            if wire is not None:
                wire.ended()
            reader.end()
        except BaseException as error:
            self._fail(error)
            if isinstance(error, GeneratorExit):
                await unwind(body)
            raise
        finally:
            await response.aclose()
        self._end()

    async def close(self) -> None:
        """Close the response and release the connection."""
        await super().close()
        self._end(GeneratorExit())
        trio = sys.modules.get("trio")
        if self._began and trio is not None and trio.lowlevel.in_trio_run():
            # Trio complains of a generator that is left open; asyncio closes it. If another task reads from it, that
            # task notices that the response is closed.
            left: Any = self._iterator
            with contextlib.suppress(RuntimeError, AttributeError):
                await left.aclose()


class DirectSyncStream(_Direct, DiscoSyncStream):
    """See `DiscoSyncStream`."""

    def __stream__(self) -> Iterator[ChatCompletionChunk]:
        response, reader = self.response, self._begin()
        try:
            for piece in response.iter_bytes():
                yield from reader.chunks(piece)
                if reader.done:
                    break
            reader.end()
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            response.close()
        self._end()

    def close(self) -> None:
        """Close the response and release the connection."""
        super().close()
        self._end(GeneratorExit())


class _ChunkReader:
    """Makes chunks of the pieces of a body. Mutable: `done` ([DONE] was read), the template."""

    __slots__ = ("_is_strict", "_noted", "_splitter", "_stream", "_template", "_templates", "done")

    def __init__(self, stream: Any, noted: DirectAnswer | None) -> None:
        self._stream, self._noted = stream, noted
        self._splitter = EventSplitter(most_bytes=math.inf)
        self._template: ChunkTemplate | None = None
        self._is_strict = stream._client._strict_response_validation  # noqa: SLF001 - the SDK then validates itself
        self._templates = _MAX_TEMPLATES
        self.done = False

    def chunks(self, piece: bytes) -> Iterator[ChatCompletionChunk]:
        """Yield the chunks that the piece completes. Raises as the SDK's own stream."""
        noted = self._noted
        for event in self._splitter.feed(piece):
            template = self._template
            if template is not None and (text := template.text(event)) is not None:
                if noted is not None:
                    noted.texts.append((time.monotonic(), text))
                yield template.chunk(text)
                continue
            if event.startswith(b"[DONE]"):
                self.done = True
                return
            chunk = self._parsed(event)
            if noted is not None:
                # A server's JSON may be of any shape; what the record would like to know of it must not fail it.
                with contextlib.suppress(Exception):
                    noted.chunk_came(chunk)
            yield chunk

    def end(self) -> None:
        """Drop an event that the body did not end. Raises as the SDK's own stream, which decodes it first."""
        (self._splitter.end() or b"").decode()

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
        stream = self._stream
        data = json.loads(event.decode())
        if isinstance(data, dict) and data.get("error"):
            error = data["error"]
            message = error.get("message") if isinstance(error, dict) else None
            if not message or not isinstance(message, str):
                message = "An error occurred during streaming"
            raise APIError(message=message, request=stream.response.request, body=error)
        return stream._client._process_response_data(  # type: ignore[no-any-return] # noqa: SLF001 - as its own streams
            data=data,
            cast_to=stream._cast_to,  # noqa: SLF001
            response=stream.response,
        )


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


def _as_the_sdk_raises(error: BaseException, response: Any) -> BaseException:
    """Return what the SDK raises when the transport fails in the middle of a body."""
    older = sys.modules.get("httpx")  # the SDK also takes clients of the package's former name
    if isinstance(error, (httpx2.TimeoutException, *([older.TimeoutException] if older else ()))):
        return APITimeoutError(request=response.request)
    if isinstance(error, (*_TRANSPORT, *([older.RequestError] if older else ()))):
        return APIConnectionError(request=response.request)
    return error
