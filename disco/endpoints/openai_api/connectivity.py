"""Whether this machine has any route to a server at all, determined without sending anything.

`connect` on a UDP socket only queries the kernel's routing table. With no network (flight mode, an unplugged cable)
it fails at once. A request would fail only after a name look-up times out, or after the connect time-out.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import time

import httpx2
import openai

__all__ = ["CHECK_EVERY_S", "connects_directly", "has_route"]

CHECK_EVERY_S = 1.0
# For names, which are not looked up here: any outside address. These are reserved for documentation (RFC 5737, 3849).
_OUTSIDE = (
    (socket.AddressFamily.AF_INET, "192.0.2.1"),
    (socket.AddressFamily.AF_INET6, "2001:db8::1"),
)
# The kernel's errors for a missing route. Any other error (no permission, no more sockets) is no evidence.
_NO_WAY = frozenset(
    {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}
)

_known: dict[str, tuple[float, bool]] = {}  # by host: (until when, the answer)


def has_route(host: str, port: int) -> bool:
    """Return whether the kernel has a route to `host`; a name counts as an outside address, loopback is always True.

    A name in the local network may be reachable without a route outside. So False is a reason to prefer another
    endpoint, and no reason to refuse the request. The result is kept for `CHECK_EVERY_S`.
    """
    now = time.monotonic()
    until, known = _known.get(host, (0.0, True))
    if now < until:
        return known
    if len(_known) > 100:
        _known.clear()
    found = _look(host, port)
    _known[host] = now + CHECK_EVERY_S, found
    return found


def connects_directly(client: openai.AsyncOpenAI) -> bool:
    """Return whether requests go straight to the server, if known: not through a proxy, a socket file or the like.

    The HTTP client keeps this private; where its attributes are not as expected the result is False.
    """
    if getattr(client, "sends_elsewhere", False):
        return False
    http = client._client  # noqa: SLF001 - there is no other way to it
    try:
        transport = http._transport_for_url(client.base_url)  # noqa: SLF001
    except AttributeError:
        return False
    pool = getattr(transport, "_pool", None)
    return (
        type(transport) is httpx2.AsyncHTTPTransport
        and type(pool).__name__ == "AsyncConnectionPool"  # by name: importing the class imports trio
        and getattr(pool, "_uds", None) is None
        and getattr(pool, "_proxy", None) is None
    )


def _look(host: str, port: int) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return any(_leads_to(family, outside, port) for family, outside in _OUTSIDE)
    if address.is_loopback:
        return True
    family = socket.AddressFamily.AF_INET if address.version == 4 else socket.AddressFamily.AF_INET6
    return _leads_to(family, host, port)


def _leads_to(family: socket.AddressFamily, address: str, port: int) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, port))
    except OSError as error:
        return error.errno not in _NO_WAY
    return True
