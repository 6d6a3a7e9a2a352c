"""A link with a delay and, if wanted, limited rates, as a process: forwards TCP connections on loopback.

    python delay_link.py PORT LINK [LINK ...]

A LINK is RTT_MS, or RTT_MS/UP_BPS/DOWN_BPS with bytes/s. Every byte is held for half a round trip. With a rate, bytes
leave one behind the other at that rate before that, and no more is read than the link carries: whoever sends too fast
finds its connection full, as on a slow network, because the buffers here are small.

Prints one line with the ports that it listens on, one for each link. Each direction of a connection has a thread that
sleeps until the bytes are due: that is exact to a tenth of a millisecond, where event loops wake at whole ones. The
delay of opening a connection is not added.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

_BUFFER = 16_384  # of the kernel, for each direction of a link with a rate
_PACKET = 1_448
_PIECE_S = 0.002  # at most so much of the link's time is read at once


@dataclass(frozen=True)
class Link:
    """What a link is like: ms there and back, and bytes/s each way."""

    round_trip_ms: float
    up_bps: float = float("inf")
    down_bps: float = float("inf")

    def __str__(self) -> str:
        return f"{self.round_trip_ms}/{self.up_bps}/{self.down_bps}"


@contextlib.contextmanager
def links(port: int, wanted: Sequence[float | Link]) -> Iterator[dict[float | Link, int]]:
    """Run the process; give the port for each link, or for each round trip in ms."""
    command = [sys.executable, __file__, str(port), *map(str, wanted)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as process:
        try:
            assert process.stdout is not None
            ports = map(int, process.stdout.readline().split())
            yield dict(zip(wanted, ports, strict=True))
        finally:
            process.kill()


def _carry(source: socket.socket, sink: socket.socket, one_way_s: float, bps: float) -> None:
    held: SimpleQueue[tuple[float, bytes]] = SimpleQueue()

    def write() -> None:
        with contextlib.suppress(OSError):
            while data := (item := held.get())[1]:
                if (left_s := item[0] - time.monotonic()) > 0:
                    time.sleep(left_s)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    threading.Thread(target=write, daemon=True).start()
    is_limited = bps != float("inf")
    most = max(_PACKET, int(bps * _PIECE_S)) if is_limited else 65_536
    data, free_at = b"-", time.monotonic()
    while data:
        try:
            data, waited = _read(source, most)
        except OSError:
            data, waited = b"", True
        # What lay here already follows the last piece without a gap.
        began_at = time.monotonic() if waited or not is_limited else free_at
        free_at = began_at + len(data) / bps
        held.put((free_at + one_way_s, data))
        if is_limited and (left_s := free_at - time.monotonic()) > 0:
            time.sleep(left_s)


def _read(source: socket.socket, most: int) -> tuple[bytes, bool]:
    """Return the next bytes, and whether they had to be waited for."""
    try:
        return source.recv(most, socket.MSG_DONTWAIT), False
    except BlockingIOError:
        return source.recv(most), True


def _serve(listener: socket.socket, port: int, link: Link) -> None:
    one_way_s = link.round_trip_ms / 2e3
    while True:
        client, _ = listener.accept()
        server = socket.socket()
        if link.down_bps != float("inf"):
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        server.connect(("127.0.0.1", port))
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for way in ((client, server, one_way_s, link.up_bps), (server, client, one_way_s, link.down_bps)):
            threading.Thread(target=_carry, args=way, daemon=True).start()


def _main(port: int, wanted: list[Link]) -> None:
    listeners = []
    for link in wanted:
        listener = socket.create_server(("127.0.0.1", 0))
        if link.up_bps != float("inf"):  # what is accepted inherits it
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        listeners.append(listener)
        threading.Thread(target=_serve, args=(listener, port, link), daemon=True).start()
    print(*(listener.getsockname()[1] for listener in listeners), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    _main(int(sys.argv[1]), [Link(*map(float, one.split("/"))) for one in sys.argv[2:]])
