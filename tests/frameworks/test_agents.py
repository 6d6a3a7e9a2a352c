"""The OpenAI Agents SDK does the same with AsyncDisco as with the SDK's own client, on either API."""

from __future__ import annotations

import pytest
from weather_server import SENTENCE

from tests.frameworks.asked import ASKED, get_weather

agents = pytest.importorskip("agents", reason="the OpenAI Agents SDK is not installed: make test-frameworks")

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _no_traces():
    agents.set_tracing_disabled(disabled=True)


def guide(client, api=agents.OpenAIChatCompletionsModel, *, tools=False, **settings):
    return agents.Agent(
        name="guide",
        model=api(model="m", openai_client=client),
        tools=[agents.function_tool(get_weather)] if tools else [],
        model_settings=agents.ModelSettings(**settings),
    )


async def streamed(agent):
    """The text deltas, the names of what the run did, and the run."""
    run = agents.Runner.run_streamed(agent, ASKED)
    texts, steps = [], []
    async for event in run.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            texts.append(event.data.delta)
        elif event.type == "run_item_stream_event":
            steps.append(event.name)
    return texts, steps, run


async def test_a_stream_and_a_tool_call_with_its_result(server, client):
    texts, _, run = await streamed(guide(client, include_usage=True))
    assert "".join(texts) == run.final_output == SENTENCE
    assert len(texts) > 1
    assert run.context_wrapper.usage.total_tokens == 25
    agent = guide(client, tools=True)
    assert (await agents.Runner.run(agent, ASKED)).final_output == SENTENCE
    _, steps, run = await streamed(agent)
    assert steps == ["tool_called", "tool_output", "message_output_created"]
    assert run.final_output == SENTENCE
    assert server.bodies[2]["messages"][-1]["content"] == "Sunny in Paris"


async def test_the_responses_api(client):
    agent = guide(client, agents.OpenAIResponsesModel, tools=True)
    assert (await agents.Runner.run(agent, ASKED)).final_output == SENTENCE
    texts, steps, run = await streamed(agent)
    assert steps == ["tool_called", "tool_output", "message_output_created"]
    assert "".join(texts) == run.final_output == SENTENCE


async def test_options_of_a_request_and_the_route(with_device):
    client, routes = with_device
    assert (await agents.Runner.run(guide(client), ASKED)).final_output == SENTENCE
    here = guide(client, extra_body={"disco": {"local_only": True}})
    assert (await agents.Runner.run(here, ASKED)).final_output == "From here."
    assert [route.winner for route in routes] == ["server", "device"]
