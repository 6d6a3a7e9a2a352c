"""What a model in a thread costs its host: event-loop delay, decoding speed, and how fast it stops.

Loop delay is by how much a sleep of 5 ms in the event loop overshoots. Decoding speed is measured against
`Llama.generate` of llama-cpp-python with each token spelled, in a thread of its own, on the same prompt.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from itertools import chain
from typing import Any

import anyio
import anyio.to_thread
import llama_cpp
import numpy as np
from helpers.measuring import Columns, by_turns, options

from disco.endpoints.llamacpp import EngineEndpoint, resolve_model
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


async def generate(endpoint: EngineEndpoint, request: Request) -> float:
    """Tokens per second between the first and the last token."""
    tokens, first_at = 0, 0.0
    async with endpoint.open(request) as attempt:
        async for event in attempt:
            if not isinstance(event, list):
                continue
            if not tokens:
                first_at = time.perf_counter()
            tokens += sum(delta.tokens for delta in event)
    return (tokens - 1) / (time.perf_counter() - first_at)


async def while_generating(endpoint: EngineEndpoint, seconds_s: float) -> list[float]:
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
    endpoints = {count: EngineEndpoint(context_tokens=CONTEXT_TOKENS, threads=count) for count in threads}
    ways = {"  idle": lambda: overshoots_ms(seconds_s)}
    for count, endpoint in endpoints.items():
        way = partial(while_generating, endpoint, seconds_s)
        ways[f"  generating, {count} llama.cpp thread(s)"] = way
    for title, runs in (await by_turns(ways, rounds, 0)).items():
        late = list(chain(*runs))
        table.row(title, *np.percentile(late, [50, 99]), max(late), len(late))
    for endpoint in endpoints.values():
        await endpoint.aclose()


def bare_loop(llama: llama_cpp.Llama, ids: list[int], tokens: int) -> float:
    first_at, written = 0.0, b""
    for count, token in enumerate(llama.generate(ids, temp=0.0)):
        written += llama.detokenize([token])
        if count == 0:
            first_at = time.perf_counter()
        if count == tokens - 1:
            break
    return (tokens - 1) / (time.perf_counter() - first_at)


async def decoding_speed(tokens: int, rounds: int) -> None:
    endpoint = EngineEndpoint(context_tokens=CONTEXT_TOKENS, threads=1)
    await endpoint.warm_up()
    threads: Any = {"n_threads": 1, "n_threads_batch": 1}
    path = str(resolve_model("smollm2-135m"))
    llama = llama_cpp.Llama(path, n_ctx=CONTEXT_TOKENS, n_batch=64, **threads, verbose=False)
    ids = llama.tokenize(QUESTION.encode(), add_bos=False)
    ways = {
        "Llama.generate": partial(anyio.to_thread.run_sync, bare_loop, llama, ids, tokens),
        "endpoint": lambda: generate(endpoint, ask(QUESTION, tokens)),
        "endpoint, end tokens banned": lambda: generate(endpoint, endless(QUESTION, tokens)),
    }
    speeds = await by_turns(ways, rounds, 0)
    print(f"\nDecoding, 1 thread, {tokens} tokens, {rounds} interleaved rounds (tokens/s)")
    base = statistics.median(speeds["Llama.generate"])
    for name, values in speeds.items():
        middle = statistics.median(values)
        print(f"  {name:<34} median {middle:7.1f}  best {max(values):7.1f}  of bare {middle / base:5.2f}")
    llama.close()
    await endpoint.aclose()


async def stopping(rounds: int) -> None:
    endpoint = EngineEndpoint(context_tokens=CONTEXT_TOKENS, threads=1)
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
        tokens=(64, "decoded per round"),
    )
    await loop_delay(given.threads, given.seconds, given.rounds)
    await decoding_speed(given.tokens, given.rounds)
    await stopping(10)


if __name__ == "__main__":
    anyio.run(main)
