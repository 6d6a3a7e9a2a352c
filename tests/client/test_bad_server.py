"""A server that misbehaves on purpose, fault by fault: alone as with the SDK, with a device the answer survives."""

from __future__ import annotations

import openai
import pytest
from defects.asking import client, create, preset, tried
from defects.asking import device as simulated
from faults.in_memory import RESET, MemoryServer, Reply
from faulty_answers import BEGIN, BEGUN, FAULTS, FINE, KEY, WHOLE, ask, asking, device, quick_client
from scripted_server import chunk, scripted_server, sse

from disco.errors import UnreadableAnswerError

pytestmark = pytest.mark.anyio

LOOPS = ("asyncio", "trio")
# Asked for in every way and on both loops: in mid-stream, before the first text, a refusal. Others whole and streamed.
TELLING = ("an error object in mid-stream", "a body that is cut off", "a web page", "429", "401")
CASES = [
    pytest.param(fault, loop, id=f"{fault.name}-{loop}")
    for number, fault in enumerate(FAULTS)
    for loop in (LOOPS if fault.name in TELLING else LOOPS[number % 2 :][:1])
]
SAME = ("status_code", "code", "param", "type", "body", "message", "request_id")
IN_MEMORY = {"policy": preset("server_only")}


def ways(fault) -> tuple[str, ...]:
    return ("stream", "whole", "raw", "events") if fault.name in TELLING else ("stream", "whole")


@pytest.mark.real
@pytest.mark.parametrize("fault", FINE, ids=lambda fault: fault.name)
async def test_oddities_are_no_faults(fault):
    async with scripted_server(fault.script) as server:
        for local, way in ((None, "stream"), (device(), "stream"), (device(), "whole")):
            async with asking(server, local) as one:
                text, route = await ask(one, way)
            assert (text, route.finish_reason) == (WHOLE, "stop")
            assert [t.failure for t in route.attempts] == [None]


# The SDK's own generators are left open by an exception, which trio remarks on.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <async_generator:pytest.PytestUnraisableExceptionWarning",
    "ignore:Async generator 'openai:ResourceWarning",
    "ignore:Async generator 'httpx2:ResourceWarning",
)
@pytest.mark.real
@pytest.mark.parametrize(("fault", "anyio_backend"), CASES)
async def test_alone_it_is_what_the_plain_sdk_makes_of_it_and_with_a_device_the_answer_survives(fault):
    async with scripted_server(fault.script) as server:
        for way in ways(fault):
            if way != "events":  # alone, those are asked for on another path of the API
                async with openai.AsyncOpenAI(
                    base_url=server.base_url, api_key="other", max_retries=0, http_client=quick_client()
                ) as plain:
                    theirs, text = await outcome(plain, way)
                async with asking(server) as one:
                    mine, same = await outcome(one, way)
                unreadable = isinstance(theirs, ValueError)  # Python's own error
                assert (type(mine), same) == (UnreadableAnswerError if unreadable else type(theirs), text)
                shown = [str(getattr(mine, name, None)).replace("[key]", KEY) for name in SAME]
                assert shown == [str(getattr(theirs, name, None)) for name in SAME]
                told = f"{mine} {mine!r} {getattr(mine, 'body', None)}"
                assert (BEGUN in told, KEY in told) == (False, False)
                if isinstance(mine, openai.OpenAIError):
                    assert mine.partial_text == (fault.said if way != "whole" else "")
                    assert mine.route.finish_reason is None
                    assert [name for name, _ in tried(mine)] == ["server"]
            async with asking(server, device()) as one:
                text, route = await ask(one, way)
            assert text == WHOLE
            if route is not None:
                made = [(t.endpoint, t.failure) for t in route.attempts]
                assert made == [("server", fault.failure), ("device", None)]
                # Without a reader nobody has seen the beginning; it is still what the answer goes on from.
                writers = ["server", "device"] if fault.said else ["device"]
                assert ([p.endpoint for p in route.segments], route.seamless) == (writers, True)


async def outcome(client, way):
    """The error that comes of asking, if one does; and else what was answered."""
    try:
        return None, (await ask(client, way))[0]
    except Exception as error:  # noqa: BLE001
        return error, None


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = sse(chunk(tool_calls=[{"index": 0, "id": "c", "function": {"name": "f"}}]), done=False)


@pytest.mark.parametrize(
    ("asked", "beginning"),
    [
        ({"logprobs": True}, BEGIN),
        ({"response_format": {"type": "json_object"}}, BEGIN),
        ({"tools": [WEATHER]}, BEGIN),
        ({}, BEGIN + sse(chunk(reasoning_content="Hm."), done=False)),
        ({"tools": [WEATHER]}, BEGIN + CALL),
    ],
    ids=["logprobs", "structured output", "tools", "after a thought", "in a tool call"],
)
async def test_what_means_something_only_as_a_whole_is_begun_anew_or_given_up(asked, beginning):
    """Nobody goes on from its middle: shown, it is lost; not shown yet, another one writes all of it."""
    able = simulated(answer=WHOLE, decode_tps=1000.0, features=None)
    async with client(MemoryServer(Reply([beginning, 0.05, RESET])), local=able, **IN_MEMORY) as one:
        whole = await create(one, **asked)
        assert whole.choices[0].message.content == WHOLE
        assert [p.endpoint for p in whole.route.segments] == ["device"]
        with pytest.raises(openai.APIConnectionError) as caught:
            async with await create(one, stream=True, **asked) as chunks:
                _ = [each async for each in chunks]
    assert [name for name, _ in tried(caught.value)] == ["server"]
    assert caught.value.partial_text == BEGUN
