"""Calls that come through the SDK's `request`: which of them a session answers, and their HTTP responses."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, cast

import anyio
import httpx2
import openai

from disco.client.chat.routed_request import Routed, clocks_of, model_of, routed_request
from disco.client.request_options import take_options
from disco.errors import NoEndpointError

if TYPE_CHECKING:
    from openai._models import FinalRequestOptions

    from disco.client.async_client import AsyncDisco

__all__ = ["may_ask_server", "model_list", "respond", "route_or_pass"]


def may_ask_server(client: AsyncDisco, options: FinalRequestOptions) -> bool:
    """Return whether there is a server that the preset and the request allow."""
    own, _ = take_options(options.extra_json, client.default_options)
    return client.server is not None and not client.router.is_local_only(own)


def model_list(client: AsyncDisco) -> httpx2.Response:
    """Return the response to `GET /models` when no server may be asked."""
    data = [model.model_dump() for model in client.local_models()]
    asked = httpx2.Request("GET", client._prepare_url("/models"))  # noqa: SLF001 - our own client
    return httpx2.Response(200, request=asked, json={"object": "list", "data": data})


def route_or_pass(client: AsyncDisco, options: FinalRequestOptions) -> Routed | None:
    """Return the request that a session has to answer; None for a request to pass on to the server.

    Takes disco's options out of `options`.

    Raises:
        NoEndpointError: the request has to be passed on, and no server is configured or allowed.
    """
    own, rest = take_options(options.extra_json, client.default_options)
    if client.router.local_model is not None and model_of(options, rest) == client.router.local_model:
        own = own.model_copy(update={"local_only": True})  # the local model was requested by name
    options.extra_json = rest
    routed = routed_request(options, own, rest)
    if routed is not None:
        return routed
    if client.server is None:
        raise NoEndpointError(
            f"{options.method.upper()} {options.url} needs a server, but none is configured: pass api_key=... "
            "(and base_url=...). Only chat.completions.create is answered on this machine."
        )
    if client.router.is_local_only(own):
        raise NoEndpointError(
            f"{options.method.upper()} {options.url} would leave this machine, which the preset "
            f"{client.router.preset.name!r} or the request forbids. Use chat.completions.create, which the local "
            "model answers, or another preset (and the server's model)."
        )
    return None


async def respond(
    client: AsyncDisco, routed: Routed, options: FinalRequestOptions, *, stream: bool
) -> httpx2.Response:
    """Return a routed answer as the HTTP response that a server would have sent."""
    from disco.client.chat.http_encoding import (  # noqa: PLC0415 - numpy loads with it
        RAW_RESPONSE_HEADER,
        EventStream,
        chat_request,
        document,
    )

    headers = {} if isinstance(options.headers, openai.NotGiven) else dict(options.headers)
    raw = {k: str(headers.pop(k)) for k in list(headers) if k.lower() == RAW_RESPONSE_HEADER.lower()}
    request = chat_request(
        routed.chat,
        timeouts=clocks_of(options.timeout, client.timeouts),
        headers=cast("dict[str, str]", headers) or None,
        query=options.params or None,
    )
    began_at = anyio.current_time()
    live = await client.router.open(
        request,
        client.server,
        stream=stream,
        options=routed.own,
        max_retries=options.get_max_retries(client.max_retries),
    )
    encoder = routed.encoder()
    asked = httpx2.Request("POST", client._prepare_url(options.url), headers=raw)  # noqa: SLF001 - our own client
    if not stream:
        kind = {"content-type": "application/json"}
        content = await document(live, encoder)
        response = httpx2.Response(200, request=asked, headers=kind, content=content)
    else:
        events = await EventStream.begin(live, encoder)
        kind = {"content-type": "text/event-stream; charset=utf-8"}
        response = httpx2.Response(200, request=asked, headers=kind, stream=events)
    response.elapsed = timedelta(seconds=anyio.current_time() - began_at)
    return response
