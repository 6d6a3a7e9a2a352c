"""The device's connection to a layer server: one WebSocket, used by the one thread that computes answers.

A device keeps the states that it has sent (`device_states`). So a connection that broke is made again at once, and
frames without a reply are sent again: rows replace what the server has from their position on. Only where the server
cannot be reached does the answer fail here, and the session lets another endpoint go on.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from socket import SHUT_RDWR, SO_SNDTIMEO, SOL_SOCKET
from struct import pack
from typing import Any, Final
from urllib.parse import urlencode, urlsplit, urlunsplit

import httpx2
import numpy.typing as npt
import openai
from openai import RequestOptions

from disco.endpoints.openai_api import error_mapping
from disco.endpoints.openai_api.sdk_client import forget_environment
from disco.endpoints.split.wire import (
    HEADER_BYTES,
    BadFrameError,
    Dtype,
    Frame,
    StatesUnfitError,
    frame_bytes,
    pack_release,
    pack_rows,
    unpack,
)
from disco.errors import ConfigurationError, EndpointFailure, FailureKind, IncompleteAnswerError
from disco.events import Traffic
from disco.speculate.layer_facts import LayerFacts
from disco.speculate.messages import BadMessageError
from disco.speculate.seen import VerifyCurve

__all__ = ["LayerLink", "LayerServer", "LinkLost"]

_OTHER_MODEL: Final = "has layers of another model, or was cut elsewhere: use files of one cut"
_REFUSALS: Final[dict[int, tuple[FailureKind, type[openai.APIStatusError]]]] = {
    401: (FailureKind.ACCOUNT, openai.AuthenticationError),
    403: (FailureKind.ACCOUNT, openai.PermissionDeniedError),
    429: (FailureKind.RATE_LIMIT, openai.RateLimitError),
}

_FACTS: Final = "/disco/layers"
_OPEN_S: Final = 5.0
_LOOK_S: Final = 0.1  # between two looks whether the thread is to stop
_MOST_REPLY: Final = 2**28
_SLOWEST_BPS: Final = 20_000
_SLOW_SHARE: Final = 4.0  # a server with other devices takes that much longer than it said


class LinkLost(Exception):
    """The connection broke, or could not be made.

    Attributes:
        silent: the server said nothing for too long.
    """

    def __init__(self, what: str, *, silent: bool = False) -> None:
        super().__init__(what)
        self.silent = silent


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerServer:
    """Where the middle layers of a model are.

    Attributes:
        base_url: of the server, as for an OpenAI client: `http://box:8000/v1`. Not in repr.
        api_key: its key; None: it checks none. Not in repr.
        dtype: of states on the wire.
        patience_s: how long a reply may take beyond the time that the bytes before it need, s.
    """

    base_url: str = field(repr=False)
    api_key: str | None = field(default=None, repr=False)
    dtype: Dtype = Dtype.F16
    patience_s: float = 10.0


class LayerLink:
    """See the module. Mutable: `_socket`, `_number`, `_up`, `_down`, `_ended`, `_facts`, `waits`.

    Attributes:
        waits: whether the thread waits for the network, which has limits of its own.

    Args:
        server: where to.
        fingerprint, layers, hidden: of the device's file; the server's must be the same.
        name: the endpoint's, for messages.
        clock: s.

    Raises:
        ConfigurationError: the package `websockets` is missing.
    """

    def __init__(
        self,
        server: LayerServer,
        *,
        fingerprint: str,
        layers: int,
        hidden: int,
        name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if importlib.util.find_spec("websockets") is None:
            raise ConfigurationError(
                'A split model needs the package websockets: pip install "disco-llm[split]"'
            )
        self._server = server
        self._fingerprint, self._layers, self._hidden = fingerprint, layers, hidden
        self._name = name
        self._clock = clock
        self._session = secrets.token_hex(16)
        self._socket: Any = None
        self._closing = ExitStack()
        self._number = 0
        self._up = self._down = 0
        self._ended = False
        self._facts: LayerFacts | None = None
        self.waits = False

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, as far as is known."""
        return self._socket is not None

    @property
    def frames(self) -> int:
        """How many frames of rows were sent."""
        return self._number

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self.waits = True
        try:
            yield
        finally:
            self.waits = False

    @property
    def traffic(self) -> Traffic:
        """Return the bytes of all frames so far."""
        return Traffic(self._up, self._down)

    def facts(self) -> LayerFacts:
        """Ask the server what it is.

        Raises:
            EndpointFailure: it cannot be asked, is no layer server, or has another model.
        """
        key = self._server.api_key
        client = openai.OpenAI(
            api_key=key or "none", base_url=self._server.base_url, max_retries=0, timeout=_OPEN_S
        )
        forget_environment(client)
        with client:
            try:
                # The load without this device's own.
                mine: RequestOptions = {"params": {"session": self._session}}
                facts = LayerFacts.from_json(client.get(_FACTS, cast_to=object, options=mine))
            except openai.APIStatusError as error:
                if error.status_code in (404, 405, 501):
                    raise self._unfit("is no layer server: start it with `disco serve --layers`") from error
                raise self._mapped(error) from error
            except (openai.OpenAIError, httpx2.HTTPError, OSError) as error:
                raise self._mapped(error) from error
            except (BadMessageError, ValueError) as error:
                raise self._unfit("is no layer server: its answer is none of the protocol's") from error
        if (facts.fingerprint, facts.layers, facts.hidden) != (self._fingerprint, self._layers, self._hidden):
            raise self._unfit(_OTHER_MODEL)
        self._facts = facts
        return facts

    def open(self) -> None:
        """Connect, unless there is a connection.

        Raises:
            LinkLost: it cannot be done now.
            EndpointFailure: the server refuses it: its model or its keys have changed, or it is too busy.
        """
        if self._socket is not None:
            return
        self._unless_ended()
        from websockets.exceptions import InvalidStatus, WebSocketException  # noqa: PLC0415 - optional
        from websockets.sync.client import connect  # noqa: PLC0415 - optional

        key = self._server.api_key
        try:
            with self._waiting():
                connection = connect(
                    self._address(),
                    additional_headers={} if key is None else {"Authorization": f"Bearer {key}"},
                    compression=None,  # states do not shrink
                    open_timeout=_OPEN_S,
                    close_timeout=1.0,
                    ping_interval=None,  # a ping would wait behind the prompt on a slow uplink
                    max_size=_MOST_REPLY,
                    max_queue=None,  # replies are as many as frames, and a full queue would stop the other direction
                    user_agent_header=None,
                )
            # Newer versions warn of connections that are no context.
            self._socket = self._closing.enter_context(connection)
        except InvalidStatus as error:
            raise self._refused(error.response.status_code) from error
        except (WebSocketException, OSError, TimeoutError) as error:
            raise LinkLost(type(error).__name__) from error
        # A server that reads no more must not hold the thread for ever. The time begins anew with each byte taken.
        micros = int(self._server.patience_s * 1e6)
        patience = pack("I", micros // 1000) if os.name == "nt" else pack("ll", *divmod(micros, 1_000_000))
        self._socket.socket.setsockopt(SOL_SOCKET, SO_SNDTIMEO, patience)
        self._unless_ended()

    def send(self, sequence: int, at: int, states: npt.NDArray[Any], wanted: int) -> int:
        """Send rows; return the number of the frame. Waits while the connection takes no more.

        Raises:
            LinkLost: the connection broke.
            EndpointFailure: the states cannot be sent.
        """
        self._number += 1
        try:
            frame = pack_rows(
                sequence, at, states, wanted=wanted, number=self._number, dtype=self._server.dtype
            )
        except StatesUnfitError as error:
            raise EndpointFailure(FailureKind.UNSERVED, IncompleteAnswerError(str(error))) from error
        self._write(frame)
        return self._number

    def release(self, sequence: int) -> None:
        """Tell the server that a sequence is over. Does nothing without a connection."""
        if self._socket is not None:
            self._write(pack_release(sequence))

    def until(self, rows: int) -> float:
        """Return until when a reply must have come, with so many rows on their way: they take time there, too."""
        points = () if self._facts is None else self._facts.seen_s or self._facts.compute_s
        server_s = _SLOW_SHARE * VerifyCurve(points).s(rows) if points else 0.0
        return self._clock() + self._server.patience_s + self.frame_bytes(rows) / _SLOWEST_BPS + server_s

    def receive(self, stop: Callable[[], bool], until: float) -> Frame:
        """Return the next reply.

        Args:
            stop: whether the thread is to stop; looked at several times a second.
            until: see there.

        Raises:
            LinkLost: the connection broke, the server says nothing, or the thread is to stop.
        """
        from websockets.exceptions import WebSocketException  # noqa: PLC0415 - optional

        if self._socket is None:
            raise LinkLost("closed")
        data: str | bytes | None = None
        while data is None:
            if stop() or self._clock() > until:
                self.close()
                raise LinkLost("it says nothing", silent=True)
            try:
                with self._waiting():
                    data = self._socket.recv(timeout=_LOOK_S)
            except TimeoutError:
                pass
            except (WebSocketException, OSError) as error:
                self.close()
                raise LinkLost(type(error).__name__) from error
        self._down += len(data)
        try:
            if isinstance(data, str):
                raise BadFrameError("a frame is binary")
            return unpack(data, self._hidden)
        except BadFrameError as error:
            self.close()
            raise EndpointFailure(
                FailureKind.GARBAGE,
                IncompleteAnswerError(f"The layer server of {self._name!r} sent {error}."),
            ) from error

    def frame_bytes(self, rows: int) -> int:
        """Return the length of a frame with so many states."""
        return frame_bytes(rows, self._hidden, self._server.dtype)

    @property
    def state_bytes(self) -> int:
        """Return the bytes of one state on the wire."""
        return self.frame_bytes(1) - HEADER_BYTES

    def unreachable(self, lost: LinkLost) -> EndpointFailure:
        """Return the failure of an answer whose server cannot be reached."""
        error = openai.APIConnectionError(
            message=f"The layer server of {self._name!r} cannot be reached ({lost}).",
            request=httpx2.Request("GET", "disco://layers"),
        )
        return EndpointFailure(FailureKind.CONNECTION, error)

    def end(self) -> None:
        """Break the connection off for good, from any thread: a send or a wait that is under way ends at once."""
        self._ended = True
        connection = self._socket
        if connection is not None:
            with suppress(OSError):
                connection.socket.shutdown(SHUT_RDWR)

    def _unless_ended(self) -> None:
        if self._ended:
            self.close()
            raise LinkLost("closed")

    def close(self) -> None:
        """Break the connection off. Idempotent; another one may follow."""
        self._socket = None
        self._closing.close()

    def _write(self, frame: bytearray) -> None:
        from websockets.exceptions import WebSocketException  # noqa: PLC0415 - optional

        if self._socket is None:
            raise LinkLost("closed")
        try:
            with self._waiting():
                self._socket.send(frame)
        except (WebSocketException, OSError) as error:
            self.close()
            raise LinkLost(type(error).__name__) from error
        self._up += len(frame)

    def _address(self) -> str:
        parts = urlsplit(self._server.base_url.rstrip("/") + f"{_FACTS}/stream")
        query = urlencode(
            {"fingerprint": self._fingerprint, "layers": self._layers, "session": self._session}
        )
        return urlunsplit(("wss" if parts.scheme == "https" else "ws", parts.netloc, parts.path, query, ""))

    def _mapped(self, error: Exception) -> EndpointFailure:
        secrets_of = () if self._server.api_key is None else (self._server.api_key,)
        return error_mapping.failure_from(error, name=self._name, secrets=secrets_of, prompt=())

    def _refused(self, status: int) -> EndpointFailure:
        """Return the failure where the server refuses a connection."""
        if status == 409:
            return self._unfit(_OTHER_MODEL)
        kind, error = _REFUSALS.get(status, (FailureKind.SERVER, openai.APIStatusError))
        host = urlsplit(self._server.base_url).hostname
        response = httpx2.Response(status, request=httpx2.Request("GET", "disco://layers"))
        message = f"The layer server of {self._name!r} at {host} refuses a connection (status {status})."
        return EndpointFailure(kind, error(message, response=response, body=None))

    def _unfit(self, what: str) -> EndpointFailure:
        host = urlsplit(self._server.base_url).hostname
        return EndpointFailure(
            FailureKind.UNSERVED, ConfigurationError(f"The server of {self._name!r} at {host} {what}.")
        )
