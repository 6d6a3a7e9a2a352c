"""What Ollama and LM Studio would leave out of a request without a word: disco refuses it by name, or leaves it out."""

from __future__ import annotations

import openai
import pytest
from faults.lab import get
from local_servers.desks import collected, endpoint_at
from quirks.lmstudio import LMStudio
from quirks.ollama import Ollama
from quirks.server import KnownText, running
from scripted_server import answer, chunk, scripted_server, sse

from disco import AsyncDisco
from disco.errors import EndpointFailure, FailureKind
from disco.request import Request

pytestmark = [pytest.mark.real, pytest.mark.anyio]

TEXT = "The sea is wide and deep."
ASKED = {"messages": [{"role": "user", "content": "Tell me about the sea."}], "max_tokens": 20}
TOOL = {"type": "function", "function": {"name": "tide", "parameters": {"type": "object", "properties": {}}}}
NAMED = {"type": "function", "function": {"name": "tide"}}


@pytest.fixture
def anyio_backend():
    return "asyncio"


def asking(server):
    return AsyncDisco(local=f"{server.base_url}#{server.models[0]}", policy="private", max_retries=0)


@pytest.mark.parametrize(
    ("kind", "named", "more"),
    [
        (Ollama, "logit_bias", {"logit_bias": {"5": -100}}),
        (Ollama, "tool_choice", {"tools": [TOOL], "tool_choice": "required"}),
        (Ollama, "tool_choice", {"tools": [TOOL], "tool_choice": NAMED}),
        (Ollama, "guided_json", {"extra_body": {"guided_json": {"type": "object"}}}),
        (LMStudio, "logprobs", {"logprobs": True}),
        (LMStudio, "tool_choice", {"tools": [TOOL], "tool_choice": NAMED}),
    ],
)
async def test_a_demand_is_refused_by_its_name(kind, named, more):
    with running(kind(KnownText(TEXT))) as server:
        async with asking(server) as client:
            failed = await get(client, **ASKED, **more)
            assert isinstance(failed.error, openai.BadRequestError)
            assert named in str(failed.error)
            assert failed.error.param in (named, None)
            assert (await get(client, **ASKED)).text == TEXT  # nothing is left of it
    assert len(server.chats) == 1


HINTS = [
    {"reasoning_effort": "low"},
    {"verbosity": "low"},
    {"keep_alive": "1h"},
    {"chat_template_kwargs": {"a": 1}},
]


@pytest.mark.parametrize("hint", HINTS, ids=lambda hint: next(iter(hint)))
async def test_a_hint_is_no_reason_to_refuse(hint):
    with running(Ollama(KnownText(TEXT))) as server:
        async with asking(server) as client:
            assert (await get(client, **ASKED, extra_body=hint)).text == TEXT
    (sent,) = server.chats
    assert not sent.keys() & hint.keys()  # this model does not think, and the rest is not of Ollama's API


async def test_a_model_that_thinks_is_told_how_much():
    with running(Ollama(KnownText(TEXT), able=("completion", "thinking"))) as server:
        async with asking(server) as client:
            await get(client, **ASKED, reasoning_effort="low")
            failed = await get(client, **ASKED, tools=[TOOL])
    assert [body.get("reasoning_effort") for body in server.chats] == ["low"]
    assert "choose another one" in str(failed.error)


async def test_without_a_call_means_without_tools():
    with running(Ollama(KnownText(TEXT))) as server:
        async with asking(server) as client:
            await get(client, **ASKED, tools=[TOOL], tool_choice="none")
            await get(client, **ASKED, tools=[TOOL], tool_choice="auto")
    assert [("tools" in body, "tool_choice" in body) for body in server.chats] == [
        (False, False),
        (True, False),
    ]


async def test_llama_server_would_show_no_tools_to_a_model_without_a_place_for_them():
    listed = answer(b'{"object":"list","data":[{"id":"m","owned_by":"llamacpp"}]}')
    props = answer(b'{"chat_template":"{{ messages }}","chat_template_caps":{"supports_tools":false}}')
    text = answer(sse(chunk("Salt."), chunk(finish="stop")), content_type="text/event-stream")
    async with (
        scripted_server(listed, props, text) as server,
        endpoint_at(f"{server.base_url}#m") as endpoint,
    ):
        request = Request(ASKED["messages"], model="m", params={"tools": [TOOL]})
        with pytest.raises(EndpointFailure) as caught:
            await collected(endpoint.open(request))
        assert caught.value.kind is FailureKind.UNSERVED
        assert caught.value.error.param == "tools"
        request = Request(ASKED["messages"], model="m", params={"tools": [TOOL], "tool_choice": "none"})
        assert (await collected(endpoint.open(request)))[1] == "Salt."
        assert "tools" not in server.requests[-1][2]
