"""A link with a delay, as a process: forwards TCP connections on loopback and holds every byte for half a round trip.

    python delay_link.py PORT RTT_MS [RTT_MS ...]

Prints one line with the ports that it listens on, one for each round trip. Each direction of a connection has a thread
that sleeps until the bytes are due: that is exact to a tenth of a millisecond, where event loops wake at whole ones.
The delay of opening a connection is not added.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from queue import SimpleQueue


@contextlib.contextmanager
def links(port: int, round_trips_ms: Sequence[float]) -> Iterator[dict[float, int]]:
    """Run the process; give the port for each round trip."""
    command = [sys.executable, __file__, str(port), *map(str, round_trips_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as process:
        try:
            assert process.stdout is not None
            ports = map(int, process.stdout.readline().split())
            yield dict(zip(round_trips_ms, ports, strict=True))
        finally:
            process.kill()


def _carry(source: socket.socket, sink: socket.socket, one_way_s: float) -> None:
    held: SimpleQueue[tuple[float, bytes]] = SimpleQueue()

    def write() -> None:
        with contextlib.suppress(OSError):
            while data := (item := held.get())[1]:
                if (left_s := item[0] - time.monotonic()) > 0:
                    time.sleep(left_s)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    threading.Thread(target=write, daemon=True).start()
    data = b"-"
    while data:
        try:
            data = source.recv(65_536)
        except OSError:
            data = b""
        held.put((time.monotonic() + one_way_s, data))


def _serve(listener: socket.socket, port: int, one_way_s: float) -> None:
    while True:
        client, _ = listener.accept()
        server = socket.create_connection(("127.0.0.1", port))
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for pair in ((client, server), (server, client)):
            threading.Thread(target=_carry, args=(*pair, one_way_s), daemon=True).start()


def _main(port: int, round_trips_ms: list[float]) -> None:
    listeners = []
    for round_trip_ms in round_trips_ms:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        given = (listener, port, round_trip_ms / 2e3)
        threading.Thread(target=_serve, args=given, daemon=True).start()
    print(*(listener.getsockname()[1] for listener in listeners), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    _main(int(sys.argv[1]), [float(one) for one in sys.argv[2:]])
