"""One answer that takes the SDK's own way to the server, and what is noted of it for its route record.

Nothing of the request or of the answer is changed: the SDK builds the request, retries it, raises its own errors
and makes its own objects. Only where it raises Python's errors, about what is no JSON, the reader gets an
`OpenAIError`. The route record is written when it is first asked for: most applications never read it, and writing it
takes longer than everything else here.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import anyio.lowlevel

from disco.endpoints.openai_api.http_transport import TURN_S, TrafficCounter
from disco.endpoints.openai_api.sse import MAX_EVENT_BYTES, EventSplitter, EventTooLargeError
from disco.errors import attach_evidence
from disco.events import Delta, Traffic, Usage

if TYPE_CHECKING:
    from openai._models import FinalRequestOptions

    from disco.client.request_options import RequestOptions
    from disco.client.router import Router
    from disco.endpoints.openai_api import OpenAIEndpoint
    from disco.session.records.route_record import RouteRecord
    from disco.telemetry.reporter import AnswerReport

__all__ = ["DirectAnswer", "Document", "Sends", "reports_put_off"]

_log = logging.getLogger("disco")


_PUT_OFF: ContextVar[list[Callable[[], None]] | None] = ContextVar("disco_put_off", default=None)


@contextmanager
def reports_put_off() -> Iterator[None]:
    """Report complete direct answers at the end of the block only: a reply to another program must not wait for it."""
    put_off: list[Callable[[], None]] = []
    token = _PUT_OFF.set(put_off)
    try:
        yield
    finally:
        _PUT_OFF.reset(token)
        for report in put_off:
            report()


class Sends(TrafficCounter):
    """Counts traffic, and notes every time that the SDK sends the request; it sends again after some failures.

    Attributes:
        failures: of every send that failed: when it was sent and when it failed, in seconds, and the exception, or the
            status of the response.
        sent_at: when the request was last sent.
    """

    __slots__ = ("failures", "sent_at")

    def __init__(self) -> None:
        super().__init__()
        self.failures: list[tuple[float, float, BaseException | int]] = []
        self.sent_at = 0.0

    def sending(self, request: Any) -> None:
        self.sent_at = time.monotonic()
        super().sending(request)

    def failed(self, error: BaseException) -> None:
        self.failures.append((self.sent_at, time.monotonic(), error))
        super().failed(error)

    def answered(self, response: Any) -> None:
        if response.is_error:
            self.failures.append((self.sent_at, time.monotonic(), response.status_code))
        super().answered(response)


class Document(bytes):
    """A body that is no stream."""

    __slots__ = ()


class DirectAnswer:
    """Asks for one answer, notes what comes, and writes the record.

    Args:
        router: has prices and presets, and reports the answer.
        server: the only endpoint.
        url: the path of the API.
        body: the request's body.
        own: disco's options of the request.
        stream: whether the answer is streamed.

    Attributes:
        router, server, url, body, own: as given; `body` until the record is written.
        notes: what came, in order: seconds on the clock of `time.monotonic`, and a text, or what is still to be read:
            the data of an event, or a whole document. `direct_record` puts deltas in its place, up to `notes_read`.
        is_streamed: whether the answer is streamed.
        finish_reason: why the answer ended; None while it is not known.
        usage: the server's count.
        failed: the error that ended the answer.
    """

    def __init__(
        self,
        router: Router,
        server: OpenAIEndpoint,
        url: str,
        body: Mapping[str, Any],
        own: RequestOptions,
        *,
        stream: bool,
    ) -> None:
        self.router, self.server = router, server
        self.url, self.body, self.own, self.is_streamed = url, body, own, stream

        self.created_s, self.began_at = time.time(), time.monotonic()
        self.ended_at: float | None = None
        self.notes: list[tuple[float, str | bytes | list[Delta]]] = []
        self.notes_read = 0
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.failed: Exception | None = None
        self._raised: Exception | None = None  # `failed`, or a helper's error about a complete answer
        self.is_cancelled = False
        self.reader: Any = None  # of the notes
        self._splitter = EventSplitter()
        self._document = bytearray()
        self.traffic = Traffic()
        self._wire: Sends | None = Sends()
        self.failures: list[tuple[float, float, BaseException | int]] = []  # see `Sends`
        self.sent_at = 0.0
        self._report: AnswerReport | None = None  # None: nothing listens
        if router.is_heard:
            self._report = router.report_on(body, server, stream=stream, at=self.created_s)
        self._route: RouteRecord | None = None

    # ------------------------------------------------------------------ asking

    async def asked(
        self,
        ask: Callable[..., Awaitable[Any]],
        cast_to: Any,
        options: FinalRequestOptions,
        stream: bool,  # noqa: FBT001 - as the SDK's
        stream_cls: Any,
    ) -> Any:
        """Ask the server; return what the SDK's `request` returns, with this answer's record on it."""
        from disco.client.direct.direct_results import classes_for, noted  # noqa: PLC0415 - not needed to make a client

        cast_to, stream_cls = classes_for(cast_to, options, stream_cls, self)
        with self._watched():
            answer = await ask(cast_to, options, stream=stream, stream_cls=stream_cls)
        return noted(answer, self)

    def asked_sync(
        self,
        ask: Callable[..., Any],
        cast_to: Any,
        options: FinalRequestOptions,
        stream: bool,  # noqa: FBT001 - as the SDK's
        stream_cls: Any,
    ) -> Any:
        """As `asked`, for the synchronous client."""
        from disco.client.direct.direct_results import classes_for, noted  # noqa: PLC0415 - as above

        cast_to, stream_cls = classes_for(cast_to, options, stream_cls, self)
        with self._watched():
            answer = ask(cast_to, options, stream=stream, stream_cls=stream_cls)
        return noted(answer, self)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Count what is sent within, as part of the answer's span. An error within ends the answer."""
        assert self._wire is not None
        try:
            with self._wire, nullcontext() if self._report is None else self._report.current():
                yield
        except BaseException as error:
            raised = error
            if self.response is not None and isinstance(error, Exception):
                from disco.client.chat.routed_results import readable  # noqa: PLC0415 - as above
                from disco.client.direct.direct_stream import as_openai_error  # noqa: PLC0415 - as above

                raised = as_openai_error(readable(error), self.response)
            self.end(raised)
            if raised is not error:
                raise raised from error
            raise

    @property
    def response(self) -> Any:
        """The HTTP response of the answer, while it is being read."""
        return None if self._wire is None else self._wire.last_response

    def counting(self, response: Any) -> Sends | None:
        """Return the counter that is told every piece of a body that is read past the HTTP package's own counting."""
        if self._wire is not None:
            self._wire.streams(response)
        return self._wire

    # ------------------------------------------------------------------ noting

    def came(self, piece: bytes) -> None:
        """Note a piece of a body that somebody else parses."""
        if not self.is_streamed:
            self._document += piece[: MAX_EVENT_BYTES + 1 - len(self._document)]
            return
        at = time.monotonic()
        with contextlib.suppress(EventTooLargeError):
            self.notes += [(at, event) for event in self._splitter.feed(piece) if event]

    @property
    def endpoint(self) -> str:
        """The name of the server."""
        return self.server.name

    @property
    def writer(self) -> str | None:
        """The name of the server, once there is text."""
        return self.endpoint if self.notes or self._route is not None else None

    async def read_in_turns(self, error: BaseException | None = None) -> None:
        """Read, ahead of `end`, what its record or its error will need; other tasks run meanwhile."""
        if (isinstance(error, Exception) or self._report is not None) and self.ended_at is None:
            began = time.monotonic()
            for _ in self._reading():
                if time.monotonic() - began > TURN_S:
                    await anyio.lowlevel.checkpoint()
                    began = time.monotonic()

    def _reading(self) -> Iterator[None]:
        from disco.client.direct.direct_record import read_notes  # noqa: PLC0415 - numpy loads with it

        return read_notes(self)

    def end(self, error: BaseException | None = None) -> None:
        """Note that the answer has ended: complete, with an error, or because the reader left. Once."""
        if self.ended_at is not None:
            return
        self.ended_at = time.monotonic()
        if (wire := self._wire) is not None:
            self._note_whole(wire.last_response)
            self.traffic, self.failures, self.sent_at = wire.traffic, wire.failures, wire.sent_at
            self._wire = None
        if isinstance(error, Exception):
            # The SDK's helpers raise about a complete answer, too: it was cut short, or it was filtered.
            self.failed = None if hasattr(error, "completion") else error
            self._raised = error
        elif error is not None:
            self.is_cancelled = True
        put_off = _PUT_OFF.get()
        if put_off is None or self._raised is not None:
            self._tell_safely()
        else:
            put_off.append(self._tell_safely)

    def _note_whole(self, response: Any) -> None:
        """Note the body of a response that somebody else has read."""
        whole = bytes(self._document)
        if not (whole or self.notes or response is None or response.is_error) and response.is_closed:
            with contextlib.suppress(Exception):  # it was closed unread
                whole = response.content
        if 0 < len(whole) <= MAX_EVENT_BYTES:
            from disco.endpoints.openai_api.whole_documents import is_document  # noqa: PLC0415 - as above

            if self.is_streamed and not is_document(response, whole.lstrip()):
                self.came(whole)
            else:
                self.notes.append((time.monotonic(), Document(whole)))

    def _tell_safely(self) -> None:
        try:
            self._tell()
        except Exception as defect:  # noqa: BLE001 - a missing record must not fail an answer
            _log.error("An answer's route record was not written: %s in disco itself.", type(defect).__name__)

    def _tell(self) -> None:
        """Log a failure, put the evidence on it, and report the answer where something listens."""
        if self.failed is not None:
            self._log_failure(self.failed)
        if self._raised is not None:
            self._lay_on(self._raised)
        if self._report is not None and self._report.listens:
            self._report.finish(self.route(), self.failed)

    def record(self) -> RouteRecord | None:
        """Return the route record; None while the answer is not complete."""
        return None if self.ended_at is None else self.route()

    def fail(self, error: Exception, text: str = "") -> None:
        """Put the evidence on an error that the reader of the answer raises; it ends the answer.

        Args:
            error: the SDK's error, or one of its helpers'.
            text: the text of a whole answer; "": what was noted.
        """
        self.end(error)
        self._lay_on(error, text)

    def _lay_on(self, error: Exception, text: str = "") -> None:
        if "partial_text" not in vars(error):
            # The SDK wraps what the transport raised, which has the text that came.
            text = text or self.text() or getattr(error.__cause__, "partial_text", "")
            attach_evidence(error, partial_text=text, route=self.route())

    def _log_failure(self, error: Exception) -> None:
        from disco.client.direct.direct_record import failure_of  # noqa: PLC0415 - as above
        from disco.telemetry.log_lines import log_failure  # noqa: PLC0415 - as above

        log_failure(self.server.name, failure_of(error).kind)

    def text(self) -> str:
        """Return the text that came so far."""
        for _ in self._reading():
            pass
        items: list[Any] = [item for _, item in self.notes]
        return "".join(i if isinstance(i, str) else "".join(delta.text for delta in i) for i in items)

    def route(self) -> RouteRecord:
        """Return the route record; it is written once."""
        if self._route is None:
            from disco.client.direct.direct_record import write_record  # noqa: PLC0415 - as above

            self._route = write_record(self)
            self.body, self.reader = {}, None  # a record holds no text
            self.notes.clear()
        return self._route
