"""A layer server in a thread, and a device's side of its stream on a blocking socket."""

from __future__ import annotations

import contextlib
import queue
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import anyio
import numpy as np
from anyio.from_thread import start_blocking_portal
from websockets.sync.client import connect

from disco.endpoints.llamacpp.layers.layer_engine import LayerEngine
from disco.endpoints.llamacpp.layers.row_scheduler import LayerLimits
from disco.endpoints.split import wire
from disco.endpoints.split.wire import Dtype
from disco.server import Metrics, serve

WITHIN_S = 60
HIDDEN = 64
LIMITS = LayerLimits(sequences=2)


@dataclass
class LayerServer:
    """A running server: its address, and what is behind it."""

    port: int
    engine: LayerEngine
    metrics: Metrics

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def device(self, **more: Any):
        facts = self.engine.facts()
        return device(self.port, facts.fingerprint, facts.layers, **more)


@contextlib.contextmanager
def layer_server(path, *, limits=LIMITS, slots=4, most_rows=64, **options) -> Iterator[LayerServer]:
    ready: queue.Queue[Any] = queue.Queue()
    engine = LayerEngine(path, slots=slots, context_tokens=256, most_rows=most_rows, limits=limits)
    metrics = Metrics()

    async def run() -> None:
        with anyio.CancelScope() as scope:
            settings = {"metrics": metrics, "grace_s": 0.0, "layers": engine, **options}
            await serve(None, port=0, on_ready=lambda url: ready.put((url, scope)), **settings)

    with start_blocking_portal("asyncio") as portal:
        running = portal.start_task_soon(run)
        running.add_done_callback(lambda _ended: ready.put(None))
        came = ready.get(timeout=WITHIN_S)
        if came is None:
            running.result()
        url, scope = came
        try:
            yield LayerServer(int(url.rsplit(":", 1)[1].split("/")[0]), engine, metrics)
        finally:
            portal.call(scope.cancel)
            running.result(timeout=WITHIN_S)
            portal.call(engine.aclose)


class Device:
    """One connection."""

    def __init__(self, stream: Any, session: str) -> None:
        self.socket, self.session = stream, session

    def send(self, at, states, *, sequence=0, wanted=None, number=0, dtype=Dtype.F32) -> None:
        wanted = len(states) if wanted is None else wanted
        self.socket.send(
            bytes(wire.pack_rows(sequence, at, states, wanted=wanted, number=number, dtype=dtype))
        )

    def take(self) -> wire.Frame:
        return wire.unpack(self.socket.recv(timeout=WITHIN_S), HIDDEN)

    def ask(self, at, states, **more) -> wire.Frame:
        self.send(at, states, **more)
        return self.take()


@contextlib.contextmanager
def device(
    port, fingerprint, layers=2, *, session=None, host="127.0.0.1", headers=None, **more
) -> Iterator[Device]:
    session = session or secrets.token_hex(16)
    url = f"ws://{host}:{port}{wire.STREAM}?fingerprint={fingerprint}&layers={layers}&session={session}"
    options = {"compression": None, "max_size": 2**26, "proxy": None, "additional_headers": headers, **more}
    raw = socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)
    with connect(url, sock=raw, open_timeout=WITHIN_S, close_timeout=1, **options) as stream:
        yield Device(stream, session)


def states(rows: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, HIDDEN)).astype(np.float32)
