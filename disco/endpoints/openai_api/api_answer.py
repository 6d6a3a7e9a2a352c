"""Reads a server's answer from the body of its response: deltas in batches, up to the end of the stream's tail."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import httpx2

from disco.endpoints.continuation.rendering import CannotContinueError
from disco.endpoints.continuation.spliced_deltas import SplicedDeltas
from disco.endpoints.openai_api.additions import AnswerLimit
from disco.endpoints.openai_api.chunk_reader import ChatReader, ChunkReader, CompletionReader
from disco.endpoints.openai_api.chunk_repair import ServerReportedError
from disco.endpoints.openai_api.http_transport import TrafficCounter, exhaust, pieces, unwind
from disco.endpoints.openai_api.response_reader import ResponseReader
from disco.endpoints.openai_api.sse import EventSplitter, last_event
from disco.endpoints.openai_api.whole_documents import document_in, events_of_document, is_document
from disco.errors import EndpointFailure
from disco.events import Delta, Usage

__all__ = ["CLOSE_S", "TAIL_S", "ServerAnswer", "read_whole"]

# Behind the finish reason usage, [DONE] and sometimes more text may follow. The reader waits so long for each piece of
# the body, be it a comment, and so long in all. Where more text has come, the answer's own clocks count again. So they
# do behind a reason before any content, but silence of `TAIL_S` ends such an answer: most often it is an empty one.
_TAIL_GAP_S = 5.0
TAIL_S = 15.0
_EVENTS_AT_ONCE = 64  # without a turn of the event loop
CLOSE_S = 1.0


class ServerAnswer:
    """The answer in one response.

    Args:
        response: its head has come.
        reader, spliced: make deltas of its events, and pass on what belongs to an answer that has begun elsewhere.
        limit, wire: count what comes.
        name: the endpoint's.

    Attributes, mutable:
        waiting: events, of many that came at once.
        tail_at: when the wait for the tail of a complete answer began.
        is_over: nothing more comes: [DONE], end of body, or the wait for the tail is over.
        is_at_end: the body was read to its end.
        is_cut: the body ended in the middle of an event.
        is_document: it is one, and no stream.
    """

    def __init__(
        self,
        response: httpx2.Response,
        reader: ChunkReader,
        spliced: SplicedDeltas | None,
        limit: AnswerLimit | None,
        wire: TrafficCounter,
        name: str,
    ) -> None:
        self.response, self.reader, self.spliced = response, reader, spliced
        self._limit, self._name = limit, name
        self._body: Any = pieces(response, wire)  # None: closed
        self._splitter = EventSplitter()
        self._has_begun = False  # something of the body has come
        self.waiting: list[bytes] = []
        self.tail_at: float | None = None
        self.is_over = self.is_at_end = self.is_cut = self.is_document = False

    async def read(self) -> list[Delta] | None:
        """Return the deltas in the next piece of the body, which may be none; None where it completes no event."""
        reader = self.reader
        if reader.broken is not None:
            raise reader.broken
        if self.waiting:
            await anyio.lowlevel.checkpoint()
            return self._passed_on(self.waiting)
        try:
            data = await self._body.__anext__()
            if not self._has_begun:
                data = data.lstrip()
                if data and is_document(self.response, data):
                    return await self._read_document(data)
                self._has_begun = bool(data)
            events = self._splitter.feed(data)
            if not events:
                return None
        except StopAsyncIteration:
            self.is_over = self.is_at_end = True
            last = last_event(self._splitter)
            self.is_cut = last is None
            events = last or []
        except (httpx2.HTTPError, OSError, anyio.EndOfStream):
            if not reader.is_sure:
                raise
            # The answer is complete; only the stream's tail failed.
            self.is_over = True
            return []
        return self._passed_on(events)

    async def read_tail(self) -> list[Delta] | None:
        """Do as `read` behind a finish reason, for a limited time."""
        now = anyio.current_time()
        until = now + TAIL_S
        if self.reader.is_sure:
            if self.tail_at is None:
                self.tail_at = now
            until = min(now + _TAIL_GAP_S, self.tail_at + TAIL_S)
        with anyio.CancelScope(deadline=until):
            return await self.read()
        self.is_over, self.waiting = True, []
        return []

    def _passed_on(self, events: list[bytes]) -> list[Delta]:
        """Return the deltas in events, as the reader gets them."""
        reader, self.waiting = self.reader, events[_EVENTS_AT_ONCE:]
        deltas = reader.read(
            events[:_EVENTS_AT_ONCE] if self.waiting else events, ends=self.is_at_end and not self.waiting
        )
        if self._limit is not None:
            self._limit.read(deltas)
        if self.spliced is not None:
            deltas = self.spliced.pass_on(deltas)
        if reader.done or (self.spliced is not None and self.spliced.is_cut):
            self.is_over, self.waiting = True, []
        return deltas

    async def _read_document(self, first: bytes) -> list[Delta]:
        """Read an answer that comes as one document."""
        whole = await document_in(self.response, first, self._body, name=self._name)
        of_responses = isinstance(self.reader, ResponseReader)
        events = events_of_document(whole, self.response, name=self._name, of_responses=of_responses)
        if events is None:
            self._has_begun = True
            return self._passed_on(self._splitter.feed(whole))
        self.is_over = self.is_at_end = self.is_document = True
        return self._passed_on(events)

    async def aclose(self) -> None:
        """Close the connection, or return it to the pool when the answer was read to its end."""
        body, self._body = self._body, None
        if body is not None and not self.is_at_end:
            if self.reader.done:
                self.is_at_end = await exhaust(body)
            if not self.is_at_end:
                await unwind(body)
        if not self.response.is_closed:
            with anyio.move_on_after(CLOSE_S, shield=True):
                await self.response.aclose()


async def read_whole(path: str, response: httpx2.Response) -> tuple[str, Usage]:
    """Return the text of a short answer, and what was used as far as it shows; `path`: of the request.

    Raises:
        CannotContinueError: it cannot be read.
    """
    reader = CompletionReader() if path == "/completions" else ChatReader()
    answer = ServerAnswer(response, reader, None, None, TrafficCounter(), "server")
    text = ""
    try:
        while not answer.is_over:
            text += "".join(delta.text for delta in await answer.read() or ())
    except (EndpointFailure, ServerReportedError, ValueError):
        raise CannotContinueError("the server's answer cannot be read") from None
    finally:
        await answer.aclose()
    used = reader.usage or Usage()
    return text, Usage(used.prompt_tokens, used.completion_tokens or reader.tokens)
