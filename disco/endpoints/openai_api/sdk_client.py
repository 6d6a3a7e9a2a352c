"""The SDK's own client, which server endpoints use, with two changes.

A request that differs from an earlier one only in its body is not built anew: that takes the SDK 0.17 ms, longer than
all of disco's other work for a request. Of an error's body only as much is read as an error can need.
A `TrafficCounter` that is entered is given what is sent.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import httpx2
from openai import AsyncOpenAI, NotGiven, OpenAI, __version__

from disco.endpoints.openai_api.http_transport import TrafficCounter, unwind

if TYPE_CHECKING:
    from openai._models import FinalRequestOptions

__all__ = ["MAX_ERROR_BYTES", "PlainClient", "ReusesRequests", "capped", "forget_environment", "send_counted"]

MAX_ERROR_BYTES = 64 * 1024
_MOST_KEPT = 16  # requests, one for each key, address and clock


class ReusesRequests:
    """A mixin in front of an `AsyncOpenAI` whose headers do not change: copies the head of an earlier request.

    Not for clients in an application's hands: the application may change headers, or a method that makes them.
    Mutable: `_kept`.
    """

    # The SDK's attributes that are used here.
    api_key: str
    timeout: float | httpx2.Timeout | None
    _client: httpx2.AsyncClient
    _idempotency_header: str | None

    def __init__(self, **given: Any) -> None:
        self._kept: dict[Any, httpx2.Request] = {}
        sdk: Any = super()
        sdk.__init__(**given)

    def _build_request(self, options: FinalRequestOptions, *, retries_taken: int = 0) -> httpx2.Request:
        key = self._reuse_key(options, retries_taken)
        like = None if key is None else self._kept.get(key)
        if like is None:
            sdk: Any = super()
            request: httpx2.Request = sdk._build_request(options, retries_taken=retries_taken)  # noqa: SLF001 - our base
            if key is not None:
                if len(self._kept) >= _MOST_KEPT:
                    self._kept.clear()
                self._kept[key] = _with_body(request, b"")  # a prompt is not kept
            return request
        content = json.dumps(options.json_data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return _with_body(like, content.encode())

    def _reuse_key(self, options: FinalRequestOptions, retries_taken: int) -> Any:
        """Return all values that decide a request besides its body; None where they cannot be listed."""
        http = self._client
        timeout = self.timeout if isinstance(options.timeout, NotGiven) else options.timeout
        ordinary = (
            options.method == "post"
            and type(options.json_data) is dict
            and retries_taken == 0
            and (isinstance(options.headers, NotGiven) or not options.headers)
            and not (options.params or options.files or options.content or options.extra_json)
            and not (options.idempotency_key and self._idempotency_header)
            and not (http.params or len(http.cookies.jar))
            and type(http).build_request is httpx2.AsyncClient.build_request
        )
        if not ordinary or not isinstance(timeout, httpx2.Timeout):
            return None
        clocks = timeout.connect, timeout.read, timeout.write, timeout.pool
        return options.url, self.api_key, clocks, tuple(options.security.items()), tuple(http.headers.raw)


def forget_environment(client: AsyncOpenAI | OpenAI, headers: Mapping[str, Any] | None = None) -> None:
    """Take from one of the SDK's clients, just made, what it has read from the environment.

    Organisation, project, keys and `OPENAI_CUSTOM_HEADERS` (often a gateway's token) are for the server that the user
    has configured as the SDK's, and for no other one.

    Args:
        client: the client.
        headers: its own, which it keeps.
    """
    client.organization = client.project = client.admin_api_key = client.webhook_secret = None
    client._custom_headers = dict(headers or {})  # noqa: SLF001 - the SDK has no public way


class PlainClient(ReusesRequests, AsyncOpenAI):
    """An `AsyncOpenAI` with the module's two changes, for a server of its own.

    Args:
        reads_environment: whether the server is the one that the environment's values are for; see
            `forget_environment`.
        given: as for `AsyncOpenAI`.
    """

    def __init__(self, *, reads_environment: bool = False, **given: Any) -> None:
        super().__init__(**given)
        if not reads_environment:
            forget_environment(self, given.get("default_headers"))

    @property
    def user_agent(self) -> str:
        """Return the SDK's own user agent, which the SDK derives from the class's name."""
        return f"AsyncOpenAI/Python {__version__}"

    async def _send_request(self, request: httpx2.Request, *, stream: bool, **more: Any) -> httpx2.Response:
        return await send_counted(super()._send_request, request, stream=stream, **more)


async def send_counted(
    send: Callable[..., Awaitable[httpx2.Response]], request: httpx2.Request, *, stream: bool, **more: Any
) -> httpx2.Response:
    """Send a request with the SDK's `_send_request`, and tell the `TrafficCounter` that is entered, if any."""
    counter = TrafficCounter.current()
    if counter is None:
        response = await send(request, stream=stream, **more)
    else:
        counter.sending(request)
        try:
            response = await send(request, stream=stream, **more)
        except Exception as error:
            counter.failed(error)
            raise
        counter.answered(response)
    if stream and response.is_error:
        capped(response)
    return response


def _with_body(like: httpx2.Request, content: bytes) -> httpx2.Request:
    """Return the same request with another body; copying its head is faster than encoding every field anew."""
    headers = httpx2.Headers(like.headers)
    headers["Content-Length"] = str(len(content))
    body = httpx2.ByteStream(content)
    request = httpx2.Request("POST", like.url, headers=headers, stream=body, extensions=like.extensions)
    request.read()  # so that hooks which inspect requests find its `content`, as in the SDK's own
    return request


def capped(response: httpx2.Response, most_bytes: int = MAX_ERROR_BYTES) -> None:
    """Limit what is read of a body; the rest is not needed."""
    stream = response.stream
    if isinstance(stream, httpx2.AsyncByteStream):
        response.stream = _Capped(stream, most_bytes)


class _Capped(httpx2.AsyncByteStream):
    def __init__(self, body: httpx2.AsyncByteStream, most_bytes: int) -> None:
        self._body = body
        self._most_bytes = most_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._most_bytes
        body = self._body.__aiter__()
        try:
            async for piece in body:
                yield piece[:left]
                left -= len(piece)
                if left <= 0:
                    break
        finally:
            await unwind(body)

    async def aclose(self) -> None:
        await self._body.aclose()
