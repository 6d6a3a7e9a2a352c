"""What the HTTP side of a verify server costs a round, beside the model.

A verify server with the tests' engine without a model runs in a process of its own, and gets rounds with four drafted
tokens on one connection that stays open, from a bare socket. Printed: the server's processor time and the wall time a
round, and the processor time a line of a reply in lines.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "server"))
import psutil
from fake_engine import FIRST, ROUNDS, a_round, token
from helpers.measuring import Columns, met, options

TARGET_MS = 0.7
PROGRAM = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2] / "server")!r})
import anyio
from fake_engine import FakeEngine
from disco import AsyncDisco
from disco.server import Metrics, serve
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

async def main():
    engine, local = FakeEngine(), SimulatedEndpoint("fake", SimulatedProfile(), place="device")
    async with AsyncDisco(local=local, preset="private") as client:
        ready = lambda url: print(url, flush=True)
        await serve(client, port=0, key="k" * 20, metrics=Metrics(), verifier=engine, on_ready=ready)

anyio.run(main, backend_options={{"use_uvloop": True}})
"""


class Connection:
    """One that stays open. Mutable: what has been read too far."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")

    def ask(self, body: object) -> int:
        """Send a round and read the whole reply; return its length in bytes."""
        data = json.dumps(body).encode()
        head = f"POST {ROUNDS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {'k' * 20}\r\n"
        self._socket.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        assert self._file.readline().startswith(b"HTTP/1.1 200")
        length = -1
        while (line := self._file.readline()) != b"\r\n":
            if line.lower().startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        if length >= 0:
            return len(self._file.read(length))
        read = 0
        while size := int(self._file.readline(), 16):
            read += len(self._file.read(size))
            self._file.readline()
        self._file.readline()
        return read


def main() -> None:
    """Print the table."""
    given = options(__doc__, rounds=5000, turns=5, lines=1000)
    table = Columns("turn >4 | round: CPU ms >13.3f | wall ms >8.3f | target >7 | line: CPU ms >12.3f")
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().rpartition(":")[2].partition("/")[0])
            server, connection = psutil.Process(process.pid), Connection(port)

            def cpu_s() -> float:
                times = server.cpu_times()
                return float(times.user + times.system)

            connection.ask(FIRST)
            at = 1
            for turn in range(given.turns + 1):
                began_s, began_at = cpu_s(), time.perf_counter()
                for number in range(given.rounds):
                    connection.ask(a_round(number, at, *(token(at + n) for n in range(4))))
                    at += 5
                round_ms = 1000 * (cpu_s() - began_s) / given.rounds
                wall_ms = 1000 * (time.perf_counter() - began_at) / given.rounds
                began_s = cpu_s()
                connection.ask(a_round(0, at, alone=given.lines))
                at += given.lines
                if turn:  # the first one warms up
                    line_ms = 1000 * (cpu_s() - began_s) / given.lines
                    table.row(turn, round_ms, wall_ms, met(round_ms, TARGET_MS), line_ms)
        finally:
            process.kill()


if __name__ == "__main__":
    main()
