"""The client's side of the proxy: knows when nothing of a response can come any more."""

from __future__ import annotations

from typing import Any

from counted import Asked, CountingTransport
from faults.proxy_server.proxy import FaultProxy

__all__ = ["WatchedTransport"]


class WatchedTransport(CountingTransport):
    """Real connections to `proxy`; to another server, of which it knows nothing, none is ever silent."""

    def __init__(self, proxy: FaultProxy | Any) -> None:
        super().__init__()
        self._proxy = proxy if isinstance(proxy, FaultProxy) else None

    @property
    def is_silent(self) -> bool:
        """Every request that is waited for is silent, and all that was sent before has been read."""
        return all(map(self._silent, self.open))

    def _silent(self, asked: Asked) -> bool:
        if self._proxy is None:
            return False
        if asked.number >= len(self._proxy.passages):
            return self._proxy.is_hole
        passage = self._proxy.passages[asked.number]
        return passage.silent and passage.sent_bytes == asked.read_bytes

    def begin(self) -> Asked:
        if self._proxy is None:
            return super().begin()
        self._proxy.asked += 1  # by other clients, too
        return Asked(self._proxy.asked - 1)
