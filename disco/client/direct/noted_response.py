"""An HTTP response that somebody else reads: its body is noted for the record as it is read, and read in turns.

The SDK's own streams and raw responses read it, or the application. What is noted is the body without its compression.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncGenerator, Iterator
from typing import TYPE_CHECKING, Any

from disco.endpoints.openai_api.http_transport import in_turns

if TYPE_CHECKING:
    from disco.client.direct.direct_answer import DirectAnswer

__all__ = ["note_body", "taken_over"]


def note_body(response: Any, direct: DirectAnswer) -> None:
    """Let `direct` note the body of a response, and how its reading ends."""
    response._direct = direct  # noqa: SLF001 - our own class below
    response.__class__ = _noting(type(response))  # type: ignore[arg-type] # a class can be hashed


def taken_over(response: Any) -> DirectAnswer | None:
    """Return the answer that notes the body of a response; from now on the caller notes it. None: nothing does."""
    direct: DirectAnswer | None = getattr(response, "_direct", None)
    if direct is not None:
        response._direct = None  # noqa: SLF001 - as above
    return direct


class _NotedBody:
    """Goes before the class of a response, which keeps its place in the application's `isinstance`."""

    _direct: DirectAnswer | None
    _is_asked = False  # for the next piece: when that is the last, the response closes itself
    headers: Any

    # `aiter_bytes` and `iter_bytes` of httpx2 read through the raw ones.

    def aiter_bytes(self, chunk_size: int | None = None) -> AsyncGenerator[bytes, None]:
        body: Any = super().aiter_bytes(chunk_size)  # type: ignore[misc]
        return self._noted_async(body, chunk_size) if self._is_coded else body

    def aiter_raw(self, chunk_size: int | None = None) -> AsyncGenerator[bytes, None]:
        body: Any = super().aiter_raw(chunk_size)  # type: ignore[misc]
        return body if self._is_coded else self._noted_async(body, chunk_size)

    def iter_bytes(self, chunk_size: int | None = None) -> Iterator[bytes]:
        body: Any = super().iter_bytes(chunk_size)  # type: ignore[misc]
        return self._noted(body) if self._is_coded else body

    def iter_raw(self, chunk_size: int | None = None) -> Iterator[bytes]:
        body: Any = super().iter_raw(chunk_size)  # type: ignore[misc]
        return body if self._is_coded else self._noted(body)

    async def aclose(self) -> None:
        await super().aclose()  # type: ignore[misc]
        self._closed()

    def close(self) -> None:
        super().close()  # type: ignore[misc]
        self._closed()

    def _closed(self) -> None:
        if self._direct is not None and not self._is_asked:
            self._direct.end(GeneratorExit())

    @property
    def _is_coded(self) -> bool:
        return "content-encoding" in self.headers

    async def _noted_async(
        self, body: AsyncGenerator[bytes, None], chunk_size: int | None
    ) -> AsyncGenerator[bytes, None]:
        with self._noted_end():
            # Documents have no events, and who asks for a size gets it.
            in_parts = chunk_size is None and self._direct is not None and self._direct.is_streamed
            async with contextlib.aclosing(in_turns(body) if in_parts else body) as parts:
                async for piece in parts:
                    self._came(piece)
                    yield piece
                    self._is_asked = True
            if self._direct is not None:
                await self._direct.read_in_turns()

    def _noted(self, body: Iterator[bytes]) -> Iterator[bytes]:
        with self._noted_end():
            for piece in body:
                self._came(piece)
                yield piece
                self._is_asked = True

    @contextlib.contextmanager
    def _noted_end(self) -> Iterator[None]:
        self._is_asked = True
        ended: BaseException | None = None
        try:
            yield
        except BaseException as error:
            ended = error
            raise
        finally:
            self._is_asked = False
            if self._direct is not None:
                self._direct.end(ended)

    def _came(self, piece: bytes) -> None:
        self._is_asked = False
        if self._direct is not None:
            self._direct.came(piece)


@functools.cache
def _noting(kind: type[Any]) -> type[Any]:
    return type(kind.__name__, (_NotedBody, kind), {"__module__": kind.__module__})
