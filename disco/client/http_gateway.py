"""Calls that come through the SDK's `request`: which way each of them takes, and the HTTP responses made here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import anyio
import httpx2

from disco.client.chat.routed_request import (
    RESPONSES,
    Routed,
    clocks_of,
    is_answer,
    model_of,
    request_as_sent,
    routed_request,
)
from disco.client.direct.direct_answer import DirectAnswer
from disco.client.request_options import RequestOptions, take_options
from disco.cost.token_bounds import most_prompt_tokens
from disco.errors import NoEndpointError
from disco.request import Request

if TYPE_CHECKING:
    from openai._models import FinalRequestOptions

    from disco.client.chat.answer_stream import Answer
    from disco.client.chat.routed_results import LiveSource
    from disco.client.routed_client import RoutedClient
    from disco.client.router import Router
    from disco.endpoints.redaction import Redact

__all__ = ["may_ask_server", "model_list", "open_session", "respond", "way_of"]

_EMBEDDINGS = "/embeddings"
# What is posted to these makes no model work that costs: it stores, checks, counts, manages or cancels.
_FREE = re.compile(
    r"/?(?:files|uploads|vector_stores|conversations|assistants|skills|moderations|organization|projects)(?:/|$)"
    r"|/?threads(?!.*/runs)"
    r"|/?chat/completions/[^/]+$"  # changes what the server has stored of an answer
    r"|.*/(?:cancel|input_tokens)$"
)


def may_ask_server(client: RoutedClient, options: FinalRequestOptions) -> bool:
    """Return whether there is a server that the preset and the request allow."""
    own, _ = take_options(options.extra_json, client.default_options)
    return client.server is not None and client.router.may_ask(client.server, own)


def model_list(client: RoutedClient) -> httpx2.Response:
    """Return the response to `GET /models` when no server may be asked."""
    data = [model.model_dump() for model in client.local_models()]
    sdk: Any = client
    asked = httpx2.Request("GET", sdk._prepare_url("/models"))  # noqa: SLF001 - the SDK's own part of the client
    return httpx2.Response(200, request=asked, json={"object": "list", "data": data})


def way_of(
    client: RoutedClient, options: FinalRequestOptions, *, stream: bool
) -> Routed | DirectAnswer | None:
    """Return the request that a session has to answer, or the answer that only the server can give.

    None for a request that is passed on without a record. Takes disco's options out of `options`.

    Raises:
        NoEndpointError: the request has to be passed on, and no server is configured or allowed.
    """
    own, rest = take_options(options.extra_json, client.default_options)
    router, server = client.router, client.server
    if router.local_model is not None and model_of(options, rest) == router.local_model:
        own = own.model_copy(update={"local_only": True})  # the local model was requested by name
    options.extra_json = cast("Any", rest)
    is_plain = client._timeouts is None and client.redact is None  # noqa: SLF001 - our own mixin
    if server is not None and is_answer(options) and is_plain:
        body: dict[str, Any] = {**cast("dict[str, Any]", options.json_data or {}), **(rest or {})}
        if router.is_direct(server, str(body.get("model")), own):
            return DirectAnswer(router, server, options.url, body, own, stream=stream)
    routed = routed_request(options, own, rest)
    if routed is not None and (routed.choices == 1 or not _writes_choices(client, own)):
        return routed
    what, param = _passed_on(options, rest)
    leave = "" if param is None else f", or leave {param} out"
    if server is None and options.url == _EMBEDDINGS:
        raise _no_embeddings(router.local_model)
    if server is None:
        raise NoEndpointError(
            f"{what} needs a server, and none is configured: a model on this machine answers chat completions and "
            f"responses with text. Configure a server{leave}.",
            param=param,
        )
    if own.endpoint not in (None, server.name):
        raise NoEndpointError(
            f"{what} goes to the server as it is, and this request is pinned to {own.endpoint!r}, so nothing was sent. "
            f'Leave the option "endpoint" out{leave}.',
            param=param,
        )
    if not router.may_ask(server, own):
        leaves, who = "your machines", "an endpoint there"
        if router.reach_of(own) == "device":
            leaves, who = "this machine", "the local model"
        raise NoEndpointError(
            f"{what} would leave {leaves}, which the preset {router.preset.name!r} or the request forbids. Chat "
            f"completions and responses with text are answered by {who}. Use another preset (and the server's "
            f"model){leave}.",
            param=param,
        )
    if client.redact is not None and (
        options.json_data is not None or rest or options.files or options.content
    ):
        raise NoEndpointError(
            f"{what} goes to the server as it is, so the redact hook cannot be applied, and nothing was sent. Use "
            f"chat completions with text, or with_options(redact=None) for requests that need no redaction{leave}.",
            param=param,
        )
    path = options.url.partition("?")[0]
    if options.method.lower() == "post" and not _FREE.match(path):
        router.tell_uncounted(own, path)
    return None


def _no_embeddings(model: str | None) -> NoEndpointError:
    """Return the refusal of `/v1/embeddings` where there is no server: no other model stands in for the one asked for.

    Args:
        model: the local model, if there is one.
    """
    here = (
        "" if model is None else f" The local model, {model!r}, is a chat model: disco gets no vectors of it."
    )
    return NoEndpointError(
        f"Embeddings need a server with an embedding model, and none is configured.{here} Name one: "
        'base_url="http://localhost:11434/v1" with api_key for Ollama, or another address; `disco serve` takes it from '
        "OPENAI_BASE_URL and OPENAI_API_KEY, or base_url in its --config.",
        param="model",
    )


def _writes_choices(client: RoutedClient, own: RequestOptions) -> bool:
    """Return whether a single server may write all choices of a request, which then goes there as it is."""
    server = client.server
    return (
        server is not None
        and own.endpoint in (None, server.name)
        and client.redact is None
        and client.router.may_ask(server, own)
    )


def _passed_on(options: FinalRequestOptions, rest: Mapping[str, Any] | None) -> tuple[str, str | None]:
    """Return what cannot be answered by sessions, for a message, and the parameter that is the reason, if it is one."""
    from disco.client.chat.http_encoding import more_than_text  # noqa: PLC0415 - numpy loads with it
    from disco.client.responses.responses_request import untranslated  # noqa: PLC0415 - rarely needed

    what, param = f"{options.method.upper()} {options.url}", None
    if is_answer(options):
        body = {**cast("dict[str, Any]", options.json_data or {}), **(rest or {})}
        param = untranslated(body) if options.url == RESPONSES else more_than_text(body)
    return (what, None) if param is None else (f"{what} with {param}", param)


async def open_session(
    client: RoutedClient, routed: Routed, options: FinalRequestOptions, *, stream: bool
) -> Answer:
    """Start the session of a routed request, or those of its choices."""
    from disco.client.chat.http_encoding import chat_request, without_markers  # noqa: PLC0415 - as above
    from disco.client.chat.live_choices import LiveChoices, request_of_choice  # noqa: PLC0415 - as above
    from disco.client.responses.responses_request import server_body  # noqa: PLC0415 - rarely needed

    request = chat_request(
        routed.chat,
        timeouts=clocks_of(options.timeout, client.timeouts),
        headers=without_markers(options) or None,
        query=options.params or None,
    )
    if routed.url == RESPONSES:
        request = replace(request, responses=server_body(routed.body))
    if client.redact is not None:
        request = await _redacted_outside(request, client.redact, client.router, routed.own)
    start = partial(
        client.router.open,
        server=client.server,
        stream=stream,
        options=routed.own,
        max_retries=options.get_max_retries(client.max_retries),
    )
    if routed.choices == 1:
        return await start(request)
    choices = LiveChoices(request.model, routed.choices, lambda at: start(request_of_choice(request, at)))
    await choices.start()
    return choices


async def _redacted_outside(request: Request, redact: Redact, router: Router, own: RequestOptions) -> Request:
    """Return the request with the redaction that it has outside this machine."""
    from disco.endpoints.redaction import Redaction  # noqa: PLC0415 - rarely needed

    redaction = Redaction(redact)
    request = replace(request, redaction=redaction)
    if router.has_budget(own) and router.reach_of(own) != "device":
        # A budget is reserved before the start, and placeholders may be longer than what they stand for.
        sent = (await redaction.redacted(request)).request
        added = most_prompt_tokens(sent) - most_prompt_tokens(request)
        request = replace(request, added_tokens=max(0, added))
    return request


async def respond(
    client: RoutedClient, routed: Routed, options: FinalRequestOptions, *, stream: bool
) -> tuple[httpx2.Response, LiveSource]:
    """Return a routed answer as the HTTP response that a server would have sent, and what knows its route.

    What the SDK makes of the response, its `post_parser` gives the route to.
    """
    from disco.client.chat.http_encoding import EventStream, document  # noqa: PLC0415 - as above
    from disco.client.chat.routed_results import LiveSource, parsed_by  # noqa: PLC0415 - as above

    began_at = anyio.current_time()
    asked = request_as_sent(client, options)
    live = await open_session(client, routed, options, stream=stream)
    encoder = routed.encoder()
    if not stream:
        kind = {"content-type": "application/json"}
        content = await document(live, encoder)
        response = httpx2.Response(200, request=asked, headers=kind, content=content)
    else:
        events = await EventStream.begin(live, encoder)
        kind = {"content-type": "text/event-stream; charset=utf-8"}
        response = httpx2.Response(200, request=asked, headers=kind, stream=events)
    response.elapsed = timedelta(seconds=anyio.current_time() - began_at)
    source = LiveSource(live)
    options.post_parser = parsed_by(options.post_parser, source)
    return response, source
