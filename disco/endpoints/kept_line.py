"""A connection of the HTTP client's pool, kept for the many small requests of one answer.

A POST through the HTTP client takes about 0.7 ms of this process's time on a connection that is open already: header
validation, state machines, locks and time-outs. A round of drafting may take 10 ms, so that is too much. Behind a
first request that went through the client (with its key, headers, proxy and TLS), later ones with the same head are
written to the same connection directly, and only the plainest reply is read here: status 200 and a length. Anything
else ends the line, and the caller asks again through the client: a round may be asked twice.

The pool knows nothing of what passed. A line that ends between two replies is given back to it as it was.
"""

from __future__ import annotations

from typing import Any, Final

import anyio
import httpx2

from disco.events import Traffic

__all__ = ["KeptLine"]

_PIECE: Final = 65_536
_LONGEST_HEAD: Final = 16_384
_LONGEST_BODY: Final = 64 * 2**20
_HEAD_ENDS: Final = b"\r\n\r\n"
# The SDK's statistics are the larger part of a head, and the reply must not come compressed.
_LEFT_OUT: Final = (b"x-stainless-", b"content-length", b"transfer-encoding", b"accept-encoding")
_CLOSE_S: Final = 1.0


class KeptLine:
    """One connection. Made by `of`; one request at a time. Do not print it: it holds the key.

    Mutable: `_traffic`, `_clean`, `_response`.
    """

    __slots__ = ("_clean", "_down", "_head", "_response", "_stream", "_up")

    def __init__(self, response: httpx2.Response, stream: Any) -> None:
        self._response: httpx2.Response | None = response
        self._stream = stream  # httpcore's AsyncNetworkStream
        self._head = _head_like(response.request)
        self._clean = True
        self._up = self._down = 0

    @classmethod
    def of(cls, response: httpx2.Response) -> KeptLine | None:
        """Return the connection of a response whose body was read to its end, but which is not closed yet.

        None where it is not plain HTTP/1.1 that stays open; the caller closes the response then.
        """
        found = response.extensions
        stream = found.get("network_stream")
        is_plain = found.get("http_version") == b"HTTP/1.1" and response.status_code == 200
        stays = "close" not in response.headers.get("connection", "").lower()
        if stream is None or not (is_plain and stays) or response.is_closed:
            return None
        return cls(response, stream)

    @property
    def traffic(self) -> Traffic:
        """Return the bytes that passed behind the first request."""
        return Traffic(self._up, self._down)

    async def ask(self, body: bytes) -> bytes | None:
        """Send a JSON document as the first request's was sent, and return the body of the reply.

        None where the reply is anything but a plain 200, or none came; the line is of no use then.
        """
        self._clean = False
        sent = b"%b%d\r\n\r\n%b" % (self._head, len(body), body)
        try:
            await self._stream.write(sent)
            self._up += len(sent)
            reply = await self._reply()
        except Exception:  # noqa: BLE001 - the transport's own; the client gives the same fault its proper name
            return None
        self._clean = reply is not None
        return reply

    async def _reply(self) -> bytes | None:
        got = b""
        while (ends := got.find(_HEAD_ENDS)) < 0:
            piece = await self._stream.read(_PIECE)
            if not piece or len(got) > _LONGEST_HEAD:
                return None
            self._down += len(piece)
            got += piece
        length = _length(got[:ends])
        if length is None:
            return None
        pieces = [got[ends + len(_HEAD_ENDS) :]]
        missing = length - len(pieces[0])
        while missing > 0:
            piece = await self._stream.read(_PIECE)
            if not piece:
                return None
            self._down += len(piece)
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces) if missing == 0 else None

    async def aclose(self) -> None:
        """Give the connection back to the pool, or close it where a reply is still due. Idempotent."""
        response, self._response = self._response, None
        if response is None:
            return
        with anyio.move_on_after(_CLOSE_S, shield=True):
            if not self._clean:
                await self._stream.aclose()  # the pool notices, and drops the connection
            await response.aclose()


def _head_like(request: httpx2.Request) -> bytes:
    """Return the request's head up to the value of its content-length, which comes last."""
    fields = [field for field in request.headers.raw if not field[0].lower().startswith(_LEFT_OUT)]
    lines = [b"%b %b HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
    lines += [b"%b: %b" % field for field in fields]
    return b"\r\n".join([*lines, b"content-length: "])


def _length(head: bytes) -> int | None:
    """Return the length of the body behind a plain head with status 200; None for any other."""
    first, *fields = head.lower().split(b"\r\n")
    if not first.startswith(b"http/1.1 200"):
        return None
    length = None
    for field in fields:
        name, _, given = field.partition(b":")
        value = given.strip()
        if name == b"content-length" and value.isdigit():
            length = int(value)
        elif name in (b"transfer-encoding", b"content-encoding") or (
            name == b"connection" and value == b"close"
        ):
            return None
    return length if length is not None and length <= _LONGEST_BODY else None
