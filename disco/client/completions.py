"""`client.chat.completions.create`, answered by a session instead of a single HTTP request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, overload

import anyio
import httpx2
from openai import NotGiven, Omit
from openai.resources.chat import AsyncChat
from openai.resources.chat.completions import AsyncCompletions

from disco.client.chunks import Chunks, RoutedChatCompletion, assemble
from disco.client.options import take_options
from disco.client.stream import CLOSE_S, DiscoStream, answer_usage
from disco.errors import attach_evidence
from disco.request import Request, Timeouts

if TYPE_CHECKING:
    from disco.client.async_client import AsyncDisco

__all__ = ["DiscoChat", "DiscoCompletions"]

# Set by the SDK's `with_raw_response` and `with_streaming_response`, whose callers want the server's bytes.
RAW_RESPONSE_HEADER = "X-Stainless-Raw-Response"
# An answer with one of these is more than one text; the server gives it whole and untouched.
NOT_ROUTED = ("n", "audio", "modalities")


class DiscoCompletions(AsyncCompletions):
    """The SDK's resource with a routed `create`; everything else of it is inherited."""

    _client: AsyncDisco

    # The SDK's own overloads spell out forty parameters each; these say what comes back.
    @overload  # type: ignore[override]
    async def create(
        self,
        *,
        messages: Iterable[Mapping[str, object]],
        model: str,
        stream: Literal[True],
        **given: Any,
    ) -> DiscoStream: ...

    @overload
    async def create(
        self,
        *,
        messages: Iterable[Mapping[str, object]],
        model: str,
        stream: Literal[False] | Omit | None = ...,
        **given: Any,
    ) -> RoutedChatCompletion: ...

    @overload
    async def create(
        self, *, messages: Iterable[Mapping[str, object]], model: str, stream: bool, **given: Any
    ) -> DiscoStream | RoutedChatCompletion: ...

    async def create(self, **given: Any) -> Any:
        """As `AsyncOpenAI.chat.completions.create`: same arguments, same types back.

        Adds `extra_body={"disco": {...}}` (see `disco.client.options.RequestOptions`), and `.route` on the
        result: on a stream once it has ended, on a completion at once.

        Raises:
            openai.OpenAIError: what the plain SDK would raise, and disco's own errors, which derive from it.
                When text had been written, `partial_text` and `route` on the error keep it.
        """
        headers: Mapping[str, str] | None = _value(given.get("extra_headers"))
        if self._passes_through(given, headers):
            return await super().create(**given)  # `AsyncDisco.request` sees to what must not leave
        options, extra_body = take_options(_value(given.get("extra_body")))
        stream = bool(_value(given.pop("stream", None)))
        stream_options = _value(given.pop("stream_options", None)) or {}
        request = self._request(given, headers, extra_body)
        live = await self._client.router.open(
            request,
            self._client.server,
            stream=stream,
            options=options,
            max_retries=self._client.max_retries,
        )
        chunks = Chunks(request.model)
        try:
            first = await live.read()
            if stream:
                wants_usage = bool(stream_options.get("include_usage"))
                return DiscoStream(live, first, chunks, include_usage=wants_usage)
            deltas = first
            while first:
                first = await live.read()
                deltas.extend(first)
        except Exception as error:
            attach_evidence(error, partial_text=live.session.text, route=live.record)
            raise
        except BaseException:  # cancelled: leave nothing running behind
            live.cancel()
            with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_S):
                await live.wait_done()
            raise
        reason = live.session.finish_reason or "stop"
        return assemble(chunks, deltas, reason, answer_usage(live), live.record)

    def _passes_through(self, given: Mapping[str, Any], headers: Mapping[str, str] | None) -> bool:
        if headers and any(name.lower() == RAW_RESPONSE_HEADER.lower() for name in headers):
            return True
        for name in NOT_ROUTED:
            value = _value(given.get(name))
            if value is not None and not (name == "n" and value == 1) and value != ["text"]:
                return True
        return False

    def _request(
        self, given: dict[str, Any], headers: Mapping[str, str] | None, extra_body: dict[str, Any] | None
    ) -> Request:
        for name in ("extra_body", "extra_headers"):
            given.pop(name, None)
        query = _value(given.pop("extra_query", None))
        timeouts = self._timeouts(given.pop("timeout", NotGiven()))
        params = {name: value for name, value in given.items() if not isinstance(value, (Omit, NotGiven))}
        messages: Iterable[Any] | None = params.pop("messages", None)
        model = params.pop("model", None)
        if messages is None or model is None:
            missing = "messages" if messages is None else "model"
            raise TypeError(f"Missing required argument: {missing!r} of chat.completions.create()")
        if extra_body:
            params.update(extra_body)
        return Request(
            messages=list(messages),
            model=model,
            params=params,
            extra_headers=headers,
            extra_query=query,
            timeouts=timeouts,
        )

    def _timeouts(self, timeout: Any) -> Timeouts:
        """The SDK's `timeout` bounds the silence on the line, so it sets the clocks for silence."""
        base = self._client.timeouts
        if isinstance(timeout, (NotGiven, Omit)):
            return base
        if isinstance(timeout, httpx2.Timeout):
            return Timeouts(
                connect_s=timeout.connect,
                first_content_s=timeout.read,
                gap_s=timeout.read,
                total_s=base.total_s,
            )
        return Timeouts(
            connect_s=timeout if timeout is None or base.connect_s is None else min(timeout, base.connect_s),
            first_content_s=timeout,
            gap_s=timeout,
            total_s=base.total_s,
        )


class DiscoChat(AsyncChat):
    """The SDK's `client.chat` with routed completions."""

    _client: AsyncDisco

    @cached_property
    def completions(self) -> DiscoCompletions:
        """`client.chat.completions`."""
        return DiscoCompletions(self._client)


def _value(given: Any) -> Any:
    """The argument, with the SDK's two marks for "not given" as None."""
    return None if isinstance(given, (Omit, NotGiven)) else given
