"""A layer server that does as it is told: it drops connections, forgets, says nothing, or lies, frame by frame.

What it computes is right. It needs nothing of `disco.server`, so that a fault of the one is not hidden by the other.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from socket import SHUT_RDWR
from urllib.parse import parse_qs, urlsplit

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Response
from websockets.sync.server import serve

from disco.endpoints.llamacpp.layers.state_model import StateModel, StateRows
from disco.endpoints.split.wire import Code, Frame, Kind, pack_error, pack_states, unpack
from disco.speculate.layer_facts import LayerFacts

__all__ = ["LayerStandIn"]

Script = Callable[[int, Frame], str | None]
"""Told the number of a frame of rows, from 0 on, and the frame, it returns what to do; None: what is right."""


class LayerStandIn:
    """See the module.

    Args:
        cloud: the file.
        key: what the server checks; None: nothing.
        port: 0 chooses one.
        facts: fields of the facts that differ.

    Attributes:
        script: what to do with frames.
        upgrades: what to do with attempts to connect, from the first on: a status, or "drop"; then none is refused.
        connected: how many connections there were.
        frames: (session, sequence, at, rows, wanted) of all that came.
        live: the open connections.
        delay_s: before each reply.
    """

    def __init__(
        self, cloud: Path, *, key: str | None = None, port: int = 0, slots: int = 6, **facts: object
    ):
        context = int(facts.get("context_tokens", 1024))
        self.model = StateModel(cloud, "cloud", context_tokens=context, slots=slots, threads=1, most_rows=512)
        file = self.model.file
        told = {
            "model": "tiny",
            "fingerprint": file.fingerprint,
            "layers": file.layers,
            "total_layers": file.total_layers,
            "hidden": file.hidden,
            "context_tokens": 1024,
            "slots": slots,
            "most_rows": 512,
            "most_sequences": 4,
            "compute_s": ((1, 0.0005), (64, 0.004)),
        }
        self.facts = LayerFacts(**(told | facts))
        self.key, self.delay_s = key, 0.0
        self.script: Script = lambda _number, _frame: None
        self.upgrades: list[int | str] = []
        self.connected = 0
        self.frames: list[tuple[str, int, int, int, int]] = []
        self.live: set[object] = set()
        self._have: dict[tuple[str, int], int] = {}
        self._slots: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()
        self._rows_seen = 0
        self.port = port
        self.start()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        """Listen, on the same port as before."""
        self._server = serve(
            self._serve,
            "127.0.0.1",
            self.port,
            process_request=self._check,
            compression=None,
            max_size=None,
            ping_interval=None,
        )
        self.port = self._server.socket.getsockname()[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Listen no more, break all connections off, and forget everything."""
        self._server.shutdown()
        self._thread.join()
        for connection in tuple(self.live):
            self.cut_off(connection)
        with self._lock:
            self.forget()

    def close(self) -> None:
        self.stop()
        until = time.monotonic() + 10
        while self.live and time.monotonic() < until:
            time.sleep(0.005)
        self.model.close()

    def forget(self) -> None:
        self._have.clear()
        self._slots.clear()
        self.model.forget()

    @staticmethod
    def cut_off(connection: object) -> None:
        with suppress(OSError):
            connection.socket.shutdown(SHUT_RDWR)

    def _check(self, connection, request):
        given = request.headers.get("authorization")
        if self.key is not None and given != f"Bearer {self.key}":
            return _reply(401, {"error": {"message": "wrong key", "code": "invalid_api_key"}})
        path = urlsplit(request.path)
        if path.path == "/v1/disco/layers":
            return _reply(200, self.facts.to_json())
        if path.path != "/v1/disco/layers/stream":
            return _reply(404, {"error": {"message": "no such path"}})
        if self.upgrades:
            what = self.upgrades.pop(0)
            if what != "drop":
                return _reply(int(what), {"error": {"message": "not now"}})
            self.cut_off(connection)
        if parse_qs(path.query)["fingerprint"] != [self.facts.fingerprint]:
            return _reply(409, {"error": {"message": "another model"}})
        return None

    def _serve(self, connection) -> None:
        session = parse_qs(urlsplit(connection.request.path).query)["session"][0]
        self.connected += 1
        self.live.add(connection)
        try:
            for data in connection:
                self._take(connection, session, unpack(data, self.model.hidden))
        except (ConnectionClosed, OSError):
            pass
        finally:
            self.live.discard(connection)

    def _take(self, connection, session: str, frame: Frame) -> None:
        key = session, frame.sequence
        if frame.kind is not Kind.ROWS:
            with self._lock:
                self._have.pop(key, None)
            return
        self.frames.append((session, frame.sequence, frame.at, frame.rows, frame.wanted))
        what = self.script(self._rows_seen, frame)
        self._rows_seen += 1
        if what == "silent":
            return
        if what == "drop":
            self.cut_off(connection)
            return
        if what == "lost":
            with self._lock:
                self.forget()
        elif what == "late":
            time.sleep(0.3)
        elif what == "garbage":
            connection.send(b"\x03" + bytes(40))
            return
        elif what == "text":
            connection.send("hello")
            return
        elif what in ("busy", "failed"):
            connection.send(pack_error(frame.sequence, Code[what.upper()], number=frame.number, text=what))
            return
        reply = self._computed(key, frame)
        time.sleep(self.delay_s)
        if what == "drop after":
            self.cut_off(connection)
            return
        if what == "twice":
            connection.send(reply)
        connection.send(reply)

    def _computed(self, key: tuple[str, int], frame: Frame) -> bytearray:
        with self._lock:
            have = self._have.get(key, 0)
            if frame.at > have:
                return pack_error(frame.sequence, Code.LOST, number=frame.number, have=have)
            slot = self._slot(key)
            self.model.cut(slot, frame.at)
            began_at = time.perf_counter()
            wanted_from = frame.rows - frame.wanted
            out = self.model.compute([StateRows(slot, frame.at, frame.states, wanted_from)])[0]
            self._have[key] = frame.at + frame.rows
            return pack_states(
                frame.sequence,
                frame.at + wanted_from,
                out,
                number=frame.number,
                dtype=frame.dtype,
                batch_rows=frame.rows,
                compute_s=time.perf_counter() - began_at,
            )

    def _slot(self, key: tuple[str, int]) -> int:
        if key not in self._slots:
            if len(self._slots) == self.model.slots:
                oldest = next(iter(self._slots))
                self._have.pop(oldest, None)
                self._slots[key] = self._slots.pop(oldest)
            else:
                self._slots[key] = len(self._slots)
        self._slots[key] = self._slots.pop(key)
        return self._slots[key]


def _reply(status: int, content: object) -> Response:
    body = json.dumps(content).encode()
    headers = Headers({"Content-Type": "application/json", "Content-Length": str(len(body))})
    return Response(status, "-", headers, body)


if __name__ == "__main__":
    stand_in = LayerStandIn(Path(sys.argv[1]), port=int(sys.argv[2]))
    stand_in.delay_s = float(sys.argv[3])
    print(stand_in.port, flush=True)
    threading.Event().wait()
