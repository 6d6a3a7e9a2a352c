"""An HTTP transport to a host, which may be another process with another socket after a restart."""

from __future__ import annotations

import ssl

import httpx2

__all__ = ["SocketTransport"]


class SocketTransport(httpx2.AsyncBaseTransport):
    """Connects to a Unix socket, or by TCP where there is none. Mutable: `_inner`.

    Connections are made anew for each request: that takes a tenth of a millisecond, and an endpoint may be used in one
    event loop after the other.
    """

    def __init__(self) -> None:
        self._inner = _transport(None)

    def connect_to(self, socket: str | None) -> None:
        """Send what comes next there; what is under way goes on.

        Args:
            socket: path of a Unix socket; None: where a request's URL says.
        """
        self._inner = _transport(socket)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _transport(socket: str | None) -> httpx2.AsyncHTTPTransport:
    # No TLS is spoken here, so no certificates have to be read: with none, none would be trusted.
    none = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx2.AsyncHTTPTransport(
        uds=socket, verify=none, trust_env=False, limits=httpx2.Limits(max_keepalive_connections=0)
    )
