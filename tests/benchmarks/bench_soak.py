"""A long life: answers of every kind for minutes on end, and what the process holds meanwhile.

Readers read to the end, leave at random, are cancelled at random, or set a deadline. All but the number of requests
should stay as it is.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import threading
import time
from collections import Counter

import anyio
import helpers.tests_path  # noqa: F401
import openai
import psutil
from helpers.measuring import Columns, options
from servers import model_server

from disco import AsyncDisco
from disco.dispatch import Preset
from disco.endpoints.continuation import Continuation

AT_ONCE = 3
TOPICS = ("the sea", "a river", "mountains", "bread", "old clocks", "the moon", "trains", "salt")


async def one(client: AsyncDisco, model: str, rng: random.Random, ends: Counter[str]) -> None:
    way = rng.choice(("read", "whole", "close", "drop", "cancel", "deadline"))
    content = f"Tell me about {rng.choice(TOPICS)}. " * rng.randint(1, 20)
    messages = [{"role": "user", "content": content}]
    asked = {"model": model, "messages": messages, "max_tokens": rng.randint(1, 40)}
    if way == "deadline":
        asked["extra_body"] = {"disco": {"deadline_s": rng.uniform(0.05, 2.0)}}
    try:
        with anyio.move_on_after(rng.uniform(0.0, 1.5) if way == "cancel" else 600.0) as scope:
            if way == "whole":
                await client.chat.completions.create(**asked)
            else:
                stream = await client.chat.completions.create(**asked, stream=True)
                left = rng.randint(1, 20) if way in ("close", "drop") else 10_000
                async for _ in stream:
                    left -= 1
                    if not left:
                        break
                if way == "close":
                    await stream.close()
        ends["cancelled" if scope.cancelled_caught else way] += 1
    except openai.OpenAIError as error:
        ends[type(error).__name__] += 1


async def soak(minutes: float, seed: int) -> None:
    rng, ends = random.Random(seed), Counter[str]()
    policies = [
        Preset(dispatch={"policy": policy}, cost={"exchange_rate": rate}, playback={"pace_tps": pace})
        for policy, rate, pace in (("race", 0.0, 30.0), ("race", 1e-6, "off"), ("device_only", 0.0, "off"))
    ]
    process = psutil.Process()
    until_at = time.monotonic() + 60 * minutes
    with model_server() as server:
        how = Continuation(method="completions", template=str(server.gguf))
        address = {"base_url": server.base_url, "api_key": "x", "continuation": how}
        clients = [AsyncDisco(local="smollm2-135m", policy=policy, **address) for policy in policies]
        for client in clients:
            await client.warm_up()

        async def work() -> None:
            while time.monotonic() < until_at:
                await one(rng.choice(clients), server.model, rng, ends)

        table = Columns("min >8.1f | requests >10 | RSS MB >9.1f | fds >6 | threads >9 | tasks >7")

        def line() -> None:
            gc.collect()
            at_min = (time.monotonic() - until_at) / 60 + minutes
            holds = (process.memory_info().rss / 2**20, process.num_fds())
            table.row(at_min, ends.total(), *holds, threading.active_count(), len(asyncio.all_tasks()))

        async with anyio.create_task_group() as group:
            for _ in range(AT_ONCE):
                group.start_soon(work)
            while time.monotonic() < until_at:
                line()
                await anyio.sleep(min(60.0, 60 * minutes / 10))
        line()
        for client in clients:
            await client.close()
        print("closed:", end="")
        line()
    print(", ".join(f"{count} {end}" for end, count in ends.most_common()))


if __name__ == "__main__":
    given = options(__doc__, minutes=30.0, seed=0)
    logging.disable(logging.WARNING)
    anyio.run(soak, given.minutes, given.seed)
