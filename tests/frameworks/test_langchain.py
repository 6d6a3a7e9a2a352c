"""LangChain's ChatOpenAI does the same with AsyncDisco and Disco as with the SDK's own clients."""

from __future__ import annotations

import pytest
from weather_server import SENTENCE

from tests.frameworks.asked import ASKED, PARIS, Place, get_weather

langchain_openai = pytest.importorskip(
    "langchain_openai", reason="LangChain is not installed: make test-frameworks"
)

pytestmark = pytest.mark.anyio

CALL = {"name": "get_weather", "args": {"city": "Paris"}, "id": "call_1", "type": "tool_call"}


def model_on(client, **more):
    return langchain_openai.ChatOpenAI(
        model="m", async_client=client.chat.completions, root_async_client=client, **more
    )


async def whole(stream):
    """The sum of a stream's chunks, and how many had text."""
    total, texts = None, 0
    async for chunk in stream:
        total = chunk if total is None else total + chunk
        texts += bool(chunk.text)
    return total, texts


async def test_a_stream_with_usage_and_headers(client):
    model = model_on(client, stream_usage=True, include_response_headers=True)
    answer, texts = await whole(model.astream(ASKED))
    assert answer.text == SENTENCE
    assert texts > 1
    assert answer.usage_metadata["total_tokens"] == 25
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.response_metadata["headers"]["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_tool_call_and_its_result(server, client, streamed):
    model = model_on(client).bind_tools([get_weather])
    said = [("user", ASKED)]
    answer = (await whole(model.astream(said)))[0] if streamed else await model.ainvoke(said)
    assert answer.tool_calls == [CALL]
    result = {"role": "tool", "tool_call_id": "call_1", "content": get_weather("Paris")}
    assert (await model.ainvoke([*said, answer, result])).text == SENTENCE
    assert [message["role"] for message in server.bodies[1]["messages"]] == ["user", "assistant", "tool"]


# LangChain dumps the parsed object as what it is not, with the plain client as well.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_structured_output_by_schema_and_by_tool_and_as_it_is_written(client):
    for method in ("json_schema", "function_calling"):
        model = model_on(client).with_structured_output(Place, method=method)
        assert await model.ainvoke(ASKED) == PARIS
    model = model_on(client).with_structured_output(Place)
    assert [place async for place in model.astream(ASKED)][-1] == PARIS


async def test_the_responses_api(client):
    model = model_on(client, use_responses_api=True)
    assert (await whole(model.astream(ASKED)))[0].text == SENTENCE
    assert (await model.ainvoke(ASKED)).text == SENTENCE
    tools = model.bind_tools([get_weather])
    for answer in (await tools.ainvoke(ASKED), (await whole(tools.astream(ASKED)))[0]):
        (call,) = answer.tool_calls
        assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})


async def test_options_of_a_request_and_the_route(with_device):
    client, routes = with_device
    assert (await model_on(client).ainvoke(ASKED)).text == SENTENCE
    here = model_on(client, extra_body={"disco": {"local_only": True}})
    assert (await here.ainvoke(ASKED)).text == "From here."
    assert (await whole(here.astream(ASKED)))[0].text == "From here."
    assert [route.winner for route in routes] == ["server", "device", "device"]


def test_the_synchronous_client(sync_client):
    model = langchain_openai.ChatOpenAI(
        model="m", client=sync_client.chat.completions, root_client=sync_client, api_key="unused"
    )
    assert "".join(chunk.text for chunk in model.stream(ASKED)) == SENTENCE
    tools = model.bind_tools([get_weather])
    assert tools.invoke(ASKED).tool_calls == [CALL]
    assert model.with_structured_output(Place).invoke(ASKED) == PARIS
