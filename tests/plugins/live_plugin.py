"""Run by `test_example_package.py` in a process that has the example package: its policy and its endpoint, live.

Prints one JSON object for each answer, and replays its own recording. The arguments: a preset file, and the command of
a model.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from disco import AsyncDisco, RouteLog
from disco.cli import main as disco_command

QUESTION = "Why is the sea salty? Answer in one sentence."


async def tell(client: AsyncDisco, case: str, question: str = QUESTION) -> None:
    messages: Any = [{"role": "user", "content": question}]
    stream = await client.chat.completions.create(
        model="gpt-4o-mini", messages=messages, stream=True, max_tokens=12, temperature=0.0
    )
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
    route = stream.route
    started_s = {a.endpoint: a.started_s for a in route.attempts}
    print(
        json.dumps({"case": case, "text": text, "winner": route.winner, "started_s": started_s}), flush=True
    )


async def answers(preset: str, command: str) -> None:
    with RouteLog("routes.jsonl") as log:
        async with AsyncDisco(
            local="smollm2-135m", preset=preset, continuation="none", on_route=log
        ) as client:
            await client.warm_up()
            await tell(client, "short")
            await tell(client, "long", "The sea is salty. " * 60 + QUESTION)
    async with AsyncDisco(local=command, preset="private") as client:
        await tell(client, "command")


if __name__ == "__main__":
    asyncio.run(answers(*sys.argv[1:]))
    # Two answers are too few to measure both sides, so shipped profiles stand for them.
    replay = ["replay", "routes.jsonl", "--device", "xiaomi14-qwen1.5-0.5b", "--server", "gpt-4o-mini-2024"]
    replay += ["--policy", "first_word_by:target_s=0.6", "--policy", "server_only"]
    assert disco_command([*replay, "--json", "vectorised.json"]) == 0
    assert disco_command([*replay, "--json", "events.json", "--events"]) == 0
    assert disco_command(["plugins"]) == 0
