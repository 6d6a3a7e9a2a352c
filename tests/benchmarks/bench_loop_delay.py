"""What a local model in its host process costs the application's event loop, and how fast an answer of it stops.

Loop delay is by how much a sleep of 5 ms in the event loop overshoots.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from itertools import chain
from typing import Any

import anyio
import numpy as np
from helpers.measuring import Columns, by_turns, options

from disco.endpoints.host import HostEndpoint
from disco.request import Request

CONTEXT_TOKENS = 2048
SLEEP_S = 0.005
QUESTION = "Write a long story about a river, a mill and the people who live there."


def ask(content: str, max_tokens: int, **more: Any) -> Request:
    params = {"temperature": 0, "max_tokens": max_tokens, **more}
    return Request([{"role": "user", "content": content}], "local", params)


# The end-of-turn tokens are banned so that every run is as long as asked for.
endless = partial(ask, logit_bias={"0": -100, "2": -100})


async def overshoots_ms(seconds_s: float) -> list[float]:
    late = []
    until = time.perf_counter() + seconds_s
    while (began_at := time.perf_counter()) < until:
        await anyio.sleep(SLEEP_S)
        late.append((time.perf_counter() - began_at - SLEEP_S) * 1e3)
    return late


async def while_generating(endpoint: HostEndpoint, seconds_s: float) -> list[float]:
    async with endpoint.open(endless(QUESTION, 2000)) as attempt, anyio.create_task_group() as group:
        await anext(attempt)

        async def consume() -> None:
            async for _ in attempt:
                pass

        group.start_soon(consume)
        late = await overshoots_ms(seconds_s)
        await attempt.aclose()
    return late


async def loop_delay(threads: list[int], seconds_s: float, rounds: int) -> None:
    print("\nLoop delay, overshoot of a 5 ms sleep (ms)")
    table = Columns(" 36 | P50 >9.2f | P99 >9.2f | max >9.2f | samples >9")
    endpoints = {count: HostEndpoint(context_tokens=CONTEXT_TOKENS, threads=count) for count in threads}
    ways = {"  idle": lambda: overshoots_ms(seconds_s)}
    for count, endpoint in endpoints.items():
        way = partial(while_generating, endpoint, seconds_s)
        ways[f"  generating, {count} llama.cpp thread(s)"] = way
    for title, runs in (await by_turns(ways, rounds, 0)).items():
        late = list(chain(*runs))
        table.row(title, *np.percentile(late, [50, 99]), max(late), len(late))
    for endpoint in endpoints.values():
        await endpoint.aclose()


async def stopping(rounds: int) -> None:
    endpoint = HostEndpoint(context_tokens=CONTEXT_TOKENS, threads=1)
    await endpoint.warm_up()
    print(f"\nStopping: from aclose() to its return, {rounds} times (ms)")
    table = Columns(" 36 | P50 >9.2f | max >9.2f")
    for title, content in (("decoding", QUESTION), ("prefilling 1,500 tokens", "river " * 1500)):
        took = []
        for number in range(rounds):
            attempt = endpoint.open(endless(f"{number} {content}", 1000))
            if content is QUESTION:
                await anext(attempt)
            with anyio.move_on_after(0.2 + 0.037 * number):
                while True:
                    await anext(attempt)
            began_at = time.perf_counter()
            await attempt.aclose()
            took.append((time.perf_counter() - began_at) * 1e3)
            if content is not QUESTION and attempt.usage.completion_tokens:
                raise SystemExit("the prompt is too short for this machine")
        table.row(f"  {title}", statistics.median(took), max(took))
    await endpoint.aclose()


async def main() -> None:
    given = options(
        __doc__,
        threads=([1, 2], "llama.cpp threads to compare"),
        seconds=(3.0, "of loop delay per round"),
        rounds=3,
    )
    await loop_delay(given.threads, given.seconds, given.rounds)
    await stopping(10)


if __name__ == "__main__":
    anyio.run(main)
