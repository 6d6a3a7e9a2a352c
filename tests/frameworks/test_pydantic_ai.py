"""pydantic-ai's two OpenAI models do the same with AsyncDisco as with the SDK's own client."""

from __future__ import annotations

import pytest
from weather_server import SENTENCE

from tests.frameworks.asked import ASKED, PARIS, Place, get_weather

pydantic_ai = pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed: make test-frameworks")

# Not before it is known to be there.
from pydantic_ai import Agent, ModelSettings, NativeOutput  # noqa: E402
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel  # noqa: E402
from pydantic_ai.providers.openai import OpenAIProvider  # noqa: E402

pytestmark = pytest.mark.anyio


def chat_on(client):
    return OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client))


async def streamed(agent: Agent) -> tuple[list[str], object]:
    async with agent.run_stream(ASKED) as result:
        return [text async for text in result.stream_text(delta=True, debounce_by=None)], result


async def test_a_stream_and_a_tool_call_with_its_result(server, client):
    texts, result = await streamed(Agent(chat_on(client)))
    assert "".join(texts) == SENTENCE
    assert len(texts) > 1
    assert (result.usage.input_tokens, result.usage.output_tokens) == (20, 5)
    agent = Agent(chat_on(client), tools=[get_weather])
    run = await agent.run(ASKED)
    assert run.output == SENTENCE
    assert (run.usage.requests, run.usage.tool_calls) == (2, 1)
    assert "".join((await streamed(agent))[0]) == SENTENCE
    assert server.bodies[2]["messages"][-1]["content"] == "Sunny in Paris"


async def test_typed_output_by_tool_and_by_schema(client):
    for wanted in (Place, NativeOutput(Place)):
        agent = Agent(chat_on(client), output_type=wanted)
        assert (await agent.run(ASKED)).output == PARIS
        async with agent.run_stream(ASKED) as result:
            assert await result.get_output() == PARIS


async def test_the_responses_api(client):
    model = OpenAIResponsesModel("m", provider=OpenAIProvider(openai_client=client))
    agent = Agent(model, tools=[get_weather])
    assert (await agent.run(ASKED)).output == SENTENCE
    assert "".join((await streamed(agent))[0]) == SENTENCE
    assert (await Agent(model, output_type=Place).run(ASKED)).output == PARIS


async def test_options_of_a_request_and_the_route(with_device):
    client, routes = with_device
    # `max_retries` makes pydantic-ai work on a copy of the client.
    here = ModelSettings(extra_body={"disco": {"local_only": True}}, max_retries=1)
    agent = Agent(chat_on(client))
    assert (await agent.run(ASKED)).output == SENTENCE
    assert (await agent.run(ASKED, model_settings=here)).output == "From here."
    assert [route.winner for route in routes] == ["server", "device"]
