"""A server on loopback that keeps every byte it is sent, and answers nothing."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass
class Recorder:
    """connections so far; received, all bytes of all of them."""

    base_url: str
    connections: int = 0
    received: bytes = b""

    @property
    def untouched(self) -> bool:
        """Nobody has so much as opened a connection."""
        return (self.connections, self.received) == (0, b"")


@contextlib.contextmanager
def recording() -> Iterator[Recorder]:
    """Listen until the end of the block, and until everything that was sent has been read."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    seen = Recorder(f"http://127.0.0.1:{listener.getsockname()[1]}/v1")

    def listen() -> None:
        with contextlib.suppress(OSError):  # the end
            while True:
                connection, _ = listener.accept()
                seen.connections += 1
                with connection, contextlib.suppress(OSError):
                    connection.settimeout(0.2)  # whoever has sent nothing by then waits for us
                    while b"\r\n\r\n" not in seen.received and (part := connection.recv(65536)):
                        seen.received += part

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield seen
    finally:
        listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        listener.close()
        thread.join(60)
