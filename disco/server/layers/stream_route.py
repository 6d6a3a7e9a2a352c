"""The WebSocket `/v1/disco/layers/stream`: one device's rows in, what comes out for them back.

`?fingerprint=…&layers=2&session=<32 hexadecimal digits>` must name the model that the server has a part of. Messages
are frames of `disco.endpoints.split.wire`. A device that connects again with the same session finds its sequences.

Memory is bounded: of one connection only so many bytes are in work, from a frame's arrival until its reply is sent.
Beyond that no frame is read, so that a slow reader, or one that sends too fast, waits.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final
from urllib.parse import parse_qs

import anyio
from starlette.types import Receive, Scope, Send

from disco.endpoints.llamacpp.layers.chunk import Chunk, Computed, Outcome, Refused
from disco.endpoints.split import wire
from disco.endpoints.split.wire import BadFrameError, Kind
from disco.server.admission import AnswerLimiter
from disco.server.api_errors import Refusal
from disco.server.layers.layer_host import LayerHost, LayerLink
from disco.server.layers.layer_metrics import LayerMetrics
from disco.speculate.layer_facts import Code

__all__ = ["MOST_IN_WORK_BYTES", "StreamRoute", "UpgradeRoute"]

log = logging.getLogger("disco.server")

MOST_IN_WORK_BYTES: Final = 2**24
"""Of one connection; a frame that is longer alone is taken when nothing else is in work."""
_MOST_IN_WORK: Final = 256  # frames of one connection
_SESSION: Final = re.compile(r"[0-9a-f]{32}")
_PROTOCOL_ERROR, _TRY_LATER = 1002, 1013  # codes of a WebSocket's end (RFC 6455 and its registry)


class StreamRoute:
    """The ASGI application of the stream.

    Args:
        engine: computes.
        limiter: its `close` ends all streams.
        metrics: counts; None: nobody does.
    """

    def __init__(self, engine: LayerHost, *, limiter: AnswerLimiter, metrics: LayerMetrics | None) -> None:
        self._engine = engine
        self._limiter = limiter
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        session = self._checked(scope["query_string"].decode("latin-1"))
        with self._limiter.receive():
            if (await receive())["type"] != "websocket.connect":
                return
            link = self._engine.connect(session)
            metrics = self._metrics
            try:
                if metrics is not None:
                    metrics.connections += 1
                await send({"type": "websocket.accept"})
                await _Stream(link, self._engine.facts().hidden, receive, send, metrics).run()
            except OSError:  # the device is gone
                pass
            finally:
                link.close()
                if metrics is not None:
                    metrics.connections -= 1

    def _checked(self, query: str) -> str:
        """Return the session's name.

        Raises:
            Refusal: it is malformed, or the device has a part of another model.
        """
        given = {name: values[-1] for name, values in parse_qs(query).items()}
        session = given.get("session", "")
        if not _SESSION.fullmatch(session):
            message = "Invalid 'session': 32 hexadecimal digits are needed, chosen at random."
            raise Refusal(400, message, param="session", code="invalid_session")
        facts = self._engine.facts()
        if (given.get("fingerprint"), given.get("layers")) != (facts.fingerprint, str(facts.layers)):
            message = (
                "The device's file and this server's were not cut from the same model, or not behind the same layer: "
                f"this server has the layers from {facts.layers + 1} to {facts.total_layers}."
            )
            raise Refusal(409, message, code="model_differs")
        return session


class _Stream:
    """One connection. Mutable: `_bytes` and `_frames`, what is in work; `_room`, set when something was sent; `_end`.

    Args:
        link: to the model.
        hidden: length of a state.
        receive, send: of the ASGI server.
        metrics: counts; None: nobody does.
    """

    def __init__(
        self, link: LayerLink, hidden: int, receive: Receive, send: Send, metrics: LayerMetrics | None
    ) -> None:
        self._link = link
        self._hidden = hidden
        self._receive = receive
        self._send = send
        self._metrics = metrics
        self._bytes = self._frames = 0
        self._room = anyio.Event()
        self._end: tuple[Code, str] | None = None  # why the server ends the connection

    async def run(self) -> None:
        """Read and reply until one side ends."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._reply, tasks.cancel_scope)
            await self._read()
            tasks.cancel_scope.cancel()
        if self._end is not None:
            code, text = self._end
            log.info("%s: ended by the server (%s)", wire.STREAM, code.name.lower())
            await self._bytes_out(wire.pack_error(0, code, number=0, text=text))
            end = _PROTOCOL_ERROR if code is Code.BAD_FRAME else _TRY_LATER
            await self._send({"type": "websocket.close", "code": end, "reason": text[:120]})

    async def _read(self) -> None:
        while True:
            while self._bytes >= MOST_IN_WORK_BYTES or self._frames >= _MOST_IN_WORK:
                self._room = anyio.Event()
                await self._room.wait()
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                return
            try:
                self._take(message)
            except BadFrameError as bad:
                self._count(Code.BAD_FRAME)
                self._end = Code.BAD_FRAME, str(bad)
                return

    def _take(self, message: Any) -> None:
        """Pass a message on to the model.

        Raises:
            BadFrameError: it is none that a device may send.
        """
        data = message.get("bytes")
        if data is None:
            raise BadFrameError("a message is binary")
        frame = wire.unpack(data, self._hidden)
        if frame.kind is Kind.RELEASE:
            self._frames += 1
            self._link.release(frame.sequence)
            return
        if frame.kind is not Kind.ROWS or frame.states is None:
            raise BadFrameError("a device sends rows and releases only")
        finite = wire.all_finite(frame.states)
        # What comes out is kept in float32 beside the message that is made of it.
        size = len(data) + 8 * frame.wanted * self._hidden
        tag = (frame.number, frame.dtype, size)
        self._frames += 1
        self._bytes += size
        self._link.ask(Chunk(frame.sequence, frame.at, frame.states, frame.wanted, finite, tag))

    async def _reply(self, scope: anyio.CancelScope) -> None:
        try:
            while outcomes := await self._link.take():
                for outcome in outcomes:
                    if isinstance(outcome, Refused) and outcome.chunk is None:
                        self._end = outcome.code, outcome.text
                        return
                    await self._say(outcome)
        except OSError:
            self._end = None  # the device is gone
        finally:
            scope.cancel()

    async def _say(self, outcome: Outcome) -> None:
        size = 0
        if self._metrics is not None:
            self._metrics.outcome(outcome)
        if isinstance(outcome, Computed):
            chunk = outcome.chunk
            number, dtype, size = chunk.tag
            assert chunk.out is not None
            await self._bytes_out(
                wire.pack_states(
                    chunk.sequence,
                    chunk.end - chunk.wanted,
                    chunk.out,
                    number=number,
                    dtype=dtype,
                    batch_rows=chunk.batch_rows,
                    queue_s=outcome.queue_s,
                    compute_s=chunk.compute_s,
                )
            )
        elif isinstance(outcome, Refused) and outcome.chunk is not None:
            number, _, size = outcome.chunk.tag
            sequence = outcome.chunk.sequence
            await self._bytes_out(
                wire.pack_error(sequence, outcome.code, number=number, have=outcome.have, text=outcome.text)
            )
        self._bytes -= size
        self._frames -= 1
        self._room.set()

    async def _bytes_out(self, data: bytearray) -> None:
        await self._send({"type": "websocket.send", "bytes": data})

    def _count(self, code: Code) -> None:
        if self._metrics is not None:
            self._metrics.refused(code)


class UpgradeRoute:
    """The ASGI application for those who ask for the stream without a WebSocket."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive, send
        raise Refusal(
            426, "This path needs a WebSocket.", code="upgrade_required", headers={"upgrade": "websocket"}
        )
