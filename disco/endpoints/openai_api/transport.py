"""What an attempt needs to know about the HTTP client under the SDK, and of a request's size."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncGenerator, AsyncIterator

import httpx2

from disco.request import Prefix, Request

__all__ = ["estimated_tokens", "exhaust", "pieces"]


async def exhaust(body: AsyncIterator[bytes]) -> bool:
    """Read a body to its end, whatever end that is; returns whether it was the proper one."""
    with contextlib.suppress(httpx2.HTTPError, httpx2.StreamError, OSError):
        async for _ in body:
            pass
        return True
    return False


def pieces(response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    """The body as it arrives, decompressed where it is compressed.

    Without compression the response's own stream is read directly, which is what `aiter_bytes` does after
    passing every piece through three more generators.
    """
    stream = response.stream
    if "content-encoding" in response.headers or not isinstance(stream, httpx2.AsyncByteStream):
        return response.aiter_bytes()
    pieces = stream.__aiter__()
    return pieces if isinstance(pieces, AsyncGenerator) else response.aiter_bytes()


def estimated_tokens(request: Request, prefix: Prefix) -> int:
    """Prompt tokens, at four characters each; exact figures come with the server's usage."""
    characters = len(prefix.sent)
    for message in request.messages:
        content = message.get("content")
        if isinstance(content, str):
            characters += len(content)
        elif isinstance(content, list):
            characters += sum(len(str(p.get("text") or "")) for p in content if isinstance(p, dict))
    return math.ceil(characters / 4) + 4 * len(request.messages)
