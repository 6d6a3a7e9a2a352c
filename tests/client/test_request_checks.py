"""What no endpoint could answer is refused by the clients themselves, whoever would have answered."""

from __future__ import annotations

import contextlib

import openai
import pytest
from scripted_server import chunk, scripted_server, sse, stream

from disco import AsyncDisco, Disco
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint

pytestmark = pytest.mark.real

HELLO = [{"role": "user", "content": "Tell me about the sea."}]
WRONG = [
    ({"stream_options": 5}, "stream_options"),
    ({"tools": 5}, "tools"),
    ({"messages": [*HELLO, {"role": "assistant", "tool_calls": 5}]}, "messages[1].tool_calls"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": True}, "temperature"),
]


@contextlib.asynccontextmanager
async def clients():
    """(a client, the requests that its server has seen): with the device alone, the server alone, and both."""
    async with scripted_server(stream(sse(chunk("Salt."), chunk(finish="stop")))) as server:
        device = SimulatedEndpoint("device", place="device")
        reaching = {"api_key": "k", "base_url": server.base_url, "policy": "balanced", "price": (1, 1)}
        made = [AsyncDisco(**reaching), AsyncDisco(local=device, **reaching)]
        yield [*made, AsyncDisco(local=device, policy="private")], server
        for client in made:
            await client.close()


@pytest.mark.anyio
@pytest.mark.parametrize(("wrong", "param"), WRONG, ids=str)
async def test_wherever_it_would_be_answered(wrong, param):
    asked = {"model": "m", "messages": HELLO, **wrong}
    async with clients() as (made, server):
        for client in made:
            chats = client.chat.completions
            for ask in (chats.create, chats.with_raw_response.create):
                for streams in (False, True):
                    with pytest.raises(openai.BadRequestError) as caught:
                        await ask(**asked, stream=streams)
                    assert (caught.value.status_code, caught.value.param) == (400, param)
    assert server.requests == []


def test_the_synchronous_client_and_responses_too():
    with Disco(local=SimulatedEndpoint("device", place="device"), policy="private") as client:
        for wrong, param in WRONG:
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(**{"model": "m", "messages": HELLO, **wrong})
            assert caught.value.param == param
        for wrong, param in (
            ({"max_output_tokens": 0}, "max_output_tokens"),
            ({"temperature": -1}, "temperature"),
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                client.responses.create(model="m", input="Hi", **wrong)
            assert caught.value.param == param


def test_what_only_some_servers_refuse_is_not_refused_here():
    with Disco(local=SimulatedEndpoint("device", place="device"), policy="private") as client:
        more = {
            "temperature": 2.5,
            "frequency_penalty": -3,
            "top_p": 0,
            "stop": ["x"],
            "stream_options": None,
        }
        assert client.chat.completions.create(model="m", messages=HELLO, max_tokens=2, **more).choices
