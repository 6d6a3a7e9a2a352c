"""What no endpoint could answer is refused by the clients themselves, whoever would have answered."""

from __future__ import annotations

import openai
import pytest
from defects.asking import MemoryServer, client, create, device, preset, question, spoken
from faults.in_memory import anyio_backend  # noqa: F401 - a fixture

from disco import Disco

CALLING = [*question(), {"role": "assistant", "tool_calls": 5}]
WRONG = [
    ({"stream_options": 5}, "stream_options"),
    ({"tools": 5}, "tools"),
    ({"messages": CALLING}, "messages[1].tool_calls"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": True}, "temperature"),
]
FINE = {"temperature": 2.5, "frequency_penalty": -3, "top_p": 0, "stop": ["x"], "stream_options": None}


@pytest.mark.anyio
async def test_wherever_it_would_be_answered():
    server = MemoryServer(spoken(["Salt."]))
    made = [client(server), client(server, local=device()), client(local=device(), policy="private")]
    for one in made:
        chats = one.chat.completions
        for wrong, param in WRONG:
            for ask in (chats.create, chats.with_raw_response.create):
                for streams in (False, True):
                    with pytest.raises(openai.BadRequestError) as caught:
                        await ask(**{"model": "m", "messages": question(), **wrong}, stream=streams)
                    assert (caught.value.status_code, caught.value.param) == (400, param)
        await one.close()
    assert server.requests == []


def test_the_synchronous_client_and_responses_too_but_not_what_only_some_servers_refuse():
    with Disco(local=device(), policy=preset("device_only")) as one:
        for wrong, param in WRONG:
            with pytest.raises(openai.BadRequestError) as caught:
                create(one, **wrong)
            assert caught.value.param == param
        for wrong in ({"max_output_tokens": 0}, {"temperature": -1}):
            with pytest.raises(openai.BadRequestError) as caught:
                one.responses.create(model="m", input="Hi", **wrong)
            assert caught.value.param == next(iter(wrong))
        assert create(one, max_tokens=2, **FINE).choices
