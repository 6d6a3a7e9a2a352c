"""Every error of a request has the text before it and the route record, and every answer has its route record."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from typing import Any

import httpx2
import openai
import pytest
from compat.compat_cases import SEA, entered, got, items
from pydantic import BaseModel
from sdk_parity.side_by_side import (
    BASE,
    CHAT,
    SAID,
    Body,
    Server,
    answering,
    behind,
    chat_events,
    document,
    events,
    http_client,
    response_events,
    whole_chat,
)

import disco
from disco import AsyncAzureDisco, AsyncDisco, AzureDisco, Disco

pytestmark = pytest.mark.anyio

RESPONSE: dict[str, Any] = {"model": "m", "input": "The sea?"}
KINDS = {"async": AsyncDisco, "sync": Disco}
AZURE = {"async azure": AsyncAzureDisco, "sync azure": AzureDisco}


@pytest.fixture
def anyio_backend():
    return "asyncio"  # as applications of the openai package


class Sea(BaseModel):
    wide: bool


def client_of(kind: type, *answers: Any, alone: bool = True, **settings: Any) -> Any:
    """A client with a server in memory: `alone`, so that it answers the SDK's own way, or with a device behind it."""
    where = {"base_url": BASE}
    if issubclass(kind, openai.AzureOpenAI | openai.AsyncAzureOpenAI):
        where = {"azure_endpoint": "http://server.test", "api_version": "1"}
    made = {"api_key": "k", "http_client": http_client(kind, Server(*answers or (saying,))), "max_retries": 0}
    return kind(**{**where, **made, **({} if alone else behind()), **settings})


async def all_of(result: Any) -> Any:
    """What a call gives: its result, or what is left of its stream or manager once it was read to its end."""
    value = await got(result)
    if isinstance(value, openai.Stream | openai.AsyncStream):
        await items(value)
    return value


async def helped(manager: Any, final: str) -> tuple[Any, Any]:
    """A helper's stream, read to its end, and the whole answer that it gives."""
    async with entered(manager) as stream:
        await items(stream)
        return stream, await got(getattr(stream, final)())


async def read_raw(manager: Any, *, parsed: bool) -> tuple[Any, Any]:
    async with entered(manager) as raw:
        if parsed:
            return raw, await all_of(raw.parse())
        await items(raw.iter_bytes())
        return raw, raw


SEA_SAYS = json.dumps({"wide": True})


def told() -> list[dict[str, Any]]:
    """A stream of the Responses API with all that the SDK's helper needs."""
    begun, text, ended = response_events()
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress", "content": []}
    part = {"type": "output_text", "text": "", "annotations": []}
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    done = {"type": "response.output_text.done", "text": SAID, "logprobs": [], **at}
    made = [
        begun,
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", "part": part, **at},
        text,
        done,
        ended,
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(made)]


def saying(request: httpx2.Request) -> httpx2.Response:
    """Answers as `answering`."""
    if request.url.path.endswith("/responses") and json.loads(request.content).get("stream"):
        return events(*told(), named=True)
    return answering(request)


def says_json(request: httpx2.Request) -> httpx2.Response:
    """Answers as `saying`, with the JSON that `Sea` is made of."""
    response = saying(request)
    body = b"".join(response.stream.left)  # type: ignore[attr-defined] # its own `Body`
    asked = json.loads(request.content)
    if asked.get("stream") and request.url.path.endswith("/chat/completions"):
        chunks = chat_events(usage=False)
        del chunks[2:-1]
        chunks[1]["choices"][0]["delta"]["content"] = SEA_SAYS
        return events(*chunks)
    body = body.replace(json.dumps(SAID).encode(), json.dumps(SEA_SAYS).encode())
    return httpx2.Response(200, headers=response.headers, stream=Body([body]))


CHATS = {
    "whole": lambda c: all_of(c.chat.completions.create(**CHAT)),
    "streamed": lambda c: all_of(c.chat.completions.create(**CHAT, stream=True)),
    "parsed": lambda c: all_of(c.chat.completions.parse(**CHAT, response_format=Sea)),
    "helper": lambda c: helped(
        c.chat.completions.stream(**CHAT, response_format=Sea), "get_final_completion"
    ),
    "raw": lambda c: all_of(c.chat.completions.with_raw_response.create(**CHAT)),
    "raw, streamed": lambda c: read_raw(
        c.chat.completions.with_streaming_response.create(**CHAT, stream=True), parsed=True
    ),
    "raw, bytes": lambda c: read_raw(c.chat.completions.with_streaming_response.create(**CHAT), parsed=False),
}
RESPONSES = {
    "whole": lambda c: all_of(c.responses.create(**RESPONSE)),
    "streamed": lambda c: all_of(c.responses.create(**RESPONSE, stream=True)),
    "parsed": lambda c: all_of(c.responses.parse(**RESPONSE, text_format=Sea)),
    "helper": lambda c: helped(c.responses.stream(**RESPONSE, text_format=Sea), "get_final_response"),
    "raw": lambda c: all_of(c.responses.with_raw_response.create(**RESPONSE)),
    "raw, streamed": lambda c: read_raw(
        c.responses.with_streaming_response.create(**RESPONSE, stream=True), parsed=True
    ),
    "raw, bytes": lambda c: read_raw(c.responses.with_streaming_response.create(**RESPONSE), parsed=False),
}
# Without a class to parse into: the SDK parses half a text, too.
TEXTS = {
    "chat, helper": lambda c: helped(c.chat.completions.stream(**CHAT), "get_final_completion"),
    "responses, helper": lambda c: helped(c.responses.stream(**RESPONSE), "get_final_response"),
}
WAYS = {**{f"chat, {n}": w for n, w in CHATS.items()}, **{f"responses, {n}": w for n, w in RESPONSES.items()}}


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "routed"])
@pytest.mark.parametrize("kind", [*KINDS.values(), *AZURE.values()], ids=[*KINDS, *AZURE])
@pytest.mark.parametrize("way", WAYS)
async def test_every_answer_has_its_route_however_it_was_asked_for(way, kind, alone):
    if kind in AZURE.values() and way.startswith("responses") and "raw" in way:
        pytest.skip("as the others")
    async with entered(client_of(kind, says_json, alone=alone)) as client:
        made = await WAYS[way](client)
        for one in made if isinstance(made, tuple) else (made,):
            assert disco.route_of(one) is one.route
            assert (one.route.winner, one.route.finish_reason) == ("server", "stop")
        if way in ("chat, raw", "responses, raw"):
            assert disco.route_of(made.parse()).winner == "server"


def dumped(model: BaseModel) -> tuple[Any, ...]:
    """What it is written as, and which warnings pydantic has of it: the SDK's own models give some."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        return model.model_dump(), model.model_dump_json(), [str(w.message) for w in said]


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "routed"])
@pytest.mark.parametrize("way", ["chat, parsed", "responses, whole", "responses, parsed"])
async def test_a_route_changes_nothing_of_the_object_that_has_it(way, alone):
    """As the SDK's own: equal, copied, pickled and written like it."""
    async with entered(client_of(Disco, says_json, alone=alone)) as client:
        ours = await WAYS[way](client)
    if not alone:  # an answer that was put together has an identity of its own
        assert "route" not in dumped(ours)[1]
        return
    plain = openai.OpenAI(
        base_url=BASE, api_key="k", http_client=http_client(openai.OpenAI, Server(says_json))
    )
    sdks = await WAYS[way](plain)
    assert ours == sdks
    (*written, warned), (*expected, known) = dumped(ours), dumped(sdks)
    assert written == expected
    assert set(warned) <= set(known)
    if way != "chat, parsed":  # there the SDK's class is one that pydantic makes up
        assert sdks == ours
        assert isinstance(ours, type(sdks))
        assert pickle.loads(pickle.dumps(ours)).route.to_json() == ours.route.to_json()
    assert copy.deepcopy(ours).route is ours.route


# ---------------------------------------------------------------------- errors


def refusing(status: int) -> Any:
    return lambda _: document({"error": {"message": "No.", "code": None}}, status)


def breaking_off(request: httpx2.Request) -> httpx2.Response:
    """A stream that ends after its first words, as a lost connection does."""

    class Broken(Body):
        def __iter__(self):
            yield from super().__iter__()
            raise httpx2.ReadError("lost")

    is_chat = request.url.path.endswith("/chat/completions")
    bodies = chat_events(usage=False)[:3] if is_chat else told()[:4]
    data = [
        (b"" if is_chat else f"event: {b['type']}\n".encode()) + b"data: " + json.dumps(b).encode() + b"\n\n"
        for b in bodies
    ]
    return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=Broken(data))


def cut_short(request: httpx2.Request) -> httpx2.Response:
    """An answer that `max_tokens` has cut, which the SDK's `parse` refuses."""
    if json.loads(request.content).get("stream"):
        chunks = chat_events(usage=False)
        chunks[-1]["choices"][0]["finish_reason"] = "length"
        return events(*chunks)
    body = whole_chat()
    body["choices"][0]["finish_reason"] = "length"
    return document(body)


async def error_of(client: Any, way: Any) -> Any:
    async with entered(client) as opened:
        with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is, it has the evidence
            await way(opened)
    return caught.value


def check(error: Any, *, text: str, asked: bool) -> None:
    found = disco.evidence(error)
    assert (found.partial_text, found.route is not None) == (text, asked)
    assert (error.partial_text, error.route) == (found.partial_text, found.route)
    assert text == "" or text not in f"{error} {error!r} {found!r}"


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "routed"])
@pytest.mark.parametrize("kind", [*KINDS.values(), *AZURE.values()], ids=[*KINDS, *AZURE])
@pytest.mark.parametrize("way", WAYS)
async def test_an_error_of_the_server_has_both(way, kind, alone):
    """400 is the request's fault, so nobody takes over."""
    error = await error_of(client_of(kind, refusing(400), alone=alone), WAYS[way])
    assert type(error) is openai.BadRequestError
    check(error, text="", asked=True)


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "routed"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("way", [way for way in WAYS if "stream" in way or "helper" in way])
async def test_an_error_in_mid_answer_has_the_text_before_it(way, kind, alone):
    routed = {} if alone else {"timeouts": disco.Timeouts()}  # by a session, and nobody can take over
    error = await error_of(client_of(kind, breaking_off, **routed), (WAYS | TEXTS)[way])
    assert isinstance(error, openai.APIConnectionError)
    check(error, text="The sea" if way.startswith("chat") else SAID, asked=True)


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "routed"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("way", ["chat, parsed", "chat, helper"])
async def test_the_sdks_own_verdict_on_a_whole_answer_has_both(way, kind, alone):
    error = await error_of(client_of(kind, cut_short, alone=alone), (WAYS | TEXTS)[way])
    assert type(error) is openai.LengthFinishReasonError
    assert (error.partial_text, error.route.finish_reason) == (SAID, "length")


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "routed"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("way", ["chat, parsed", "chat, helper", "responses, parsed", "responses, helper"])
async def test_an_answer_that_is_not_what_the_class_wants_is_kept(way, kind, alone):
    error = await error_of(client_of(kind, alone=alone), WAYS[way])
    assert isinstance(error, ValueError)
    found = disco.evidence(error)
    if way == "chat, helper":  # the SDK parses what there is at every chunk
        assert SAID.startswith(found.partial_text or "-")
    else:
        assert (found.partial_text, found.route.winner) == (SAID, "server")


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
REFUSED: dict[str, tuple[type[Exception], dict[str, Any], dict[str, Any]]] = {
    "an unknown option": (disco.ConfigurationError, behind(), {"extra_body": {"disco": {"prest": 1}}}),
    "no endpoint": (disco.NoEndpointError, {**behind(), "preset": "private"}, {"tools": TOOLS}),
    "a wrong field": (disco.NoEndpointError, behind(), {"tools": 5}),
    "too long": (disco.ContextLengthError, {**behind(context_tokens=8), "preset": "private"}, {}),
    "no budget": (
        disco.BudgetExceededError,
        {"budget": {"server_tokens": 1, "window_s": 60.0}, "state": False},
        {},
    ),
    "no redaction": (disco.RedactionError, {**behind(), "redact": lambda _: 1 / 0}, {}),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("case", REFUSED)
async def test_a_request_that_is_refused_has_both(case, stream, kind):
    expected, settings, options = REFUSED[case]
    error = await error_of(
        client_of(kind, **settings),
        lambda c: all_of(c.chat.completions.create(**CHAT, stream=stream, **options)),
    )
    assert type(error) is expected, repr(error)
    check(error, text="", asked=error.route is not None)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
async def test_calls_that_are_passed_on_and_errors_of_frameworks_are_understood(kind):
    error = await error_of(
        client_of(kind, refusing(404)), lambda c: all_of(c.embeddings.create(model="m", input="x"))
    )
    check(error, text="", asked=False)
    assert disco.evidence(ValueError("another program's")) == disco.Evidence(None, "")
    error = await error_of(client_of(kind, breaking_off), WAYS["chat, streamed"])
    wrapped = RuntimeError("the framework's own")
    wrapped.__cause__ = error
    assert disco.evidence(wrapped) == disco.evidence(error) != disco.Evidence(None, "")


async def test_what_has_no_route_is_named():
    with pytest.raises(disco.DiscoError, match="no route record of this int"):
        disco.route_of(3)
    async with entered(client_of(Disco)) as client:
        stream = client.chat.completions.create(model="m", messages=SEA, stream=True)
        with pytest.raises(disco.DiscoError, match="Read the stream to its end"):
            disco.route_of(stream)
        stream.close()
