"""Records how real servers write: the gaps between the chunks of healthy answers, calm and under load.

llama-server (from the `xllamacpp` wheel, two slots) and llama-cpp-python's server, both with SmolLM2-135M on one
thread. Beside the answer that is measured there is nothing ("calm"), another answer ("shared"), or one client after
another with long prompts ("busy": each prompt is read while the measured answer has to wait). One line of JSON for each
server and load: the times to the first chunk and the gaps, in ms, of each answer. Numbers only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1]))

import helpers.tests_path  # noqa: F401
import httpx2
from helpers.fault_schedule import PROMPTS
from helpers.measuring import options, percentile
from helpers.python_server import python_server
from servers import LlamaServer, native_llama_server

LOADS = ("calm", "shared", "busy")
LIMITS = (12, 24, 48, 96)  # tokens of an answer
LONG_WORDS = (200, 900)  # of a competitor's prompt, from and to
REST_S = (0.2, 3.0)  # between a competitor's requests


async def chunks(client: httpx2.AsyncClient, server: LlamaServer, prompt: str, limit: int) -> list[float]:
    """The times of an answer's chunks with text, s since the request."""
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": limit,
        "stream": True,
    }
    times, began = [], time.monotonic()
    async with client.stream("POST", f"{server.base_url}/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line[6:]).get("choices")
                if choices and choices[0].get("delta", {}).get("content"):
                    times.append(time.monotonic() - began)
    return times


async def compete(client: httpx2.AsyncClient, server: LlamaServer, load: str, rng: random.Random) -> None:
    """Ask for answers until cancelled."""
    while load != "calm":
        prompt, limit = rng.choice(PROMPTS), 96
        if load == "busy":
            prompt, limit = " ".join(["Some words about the sea."] * (rng.randint(*LONG_WORDS) // 5)), 24
        with contextlib.suppress(httpx2.HTTPError):
            await chunks(client, server, prompt, limit)
        await asyncio.sleep(rng.uniform(*REST_S) if load == "busy" else rng.uniform(0, 0.5))


@contextlib.asynccontextmanager
async def competitor(server: LlamaServer, load: str, rng: random.Random) -> AsyncIterator[None]:
    """The load, while the block runs."""
    async with httpx2.AsyncClient(timeout=120.0) as client:
        task = asyncio.create_task(compete(client, server, load, rng))
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def record(server: LlamaServer, load: str, for_s: float, rng: random.Random) -> list[list[float]]:
    """Answers one after another: of each, the time to its first chunk and its gaps, ms."""
    answers, until = [], time.monotonic() + for_s
    async with competitor(server, load, rng), httpx2.AsyncClient(timeout=120.0) as client:
        while time.monotonic() < until:
            times = await chunks(client, server, rng.choice(PROMPTS), rng.choice(LIMITS))
            if len(times) > 1:
                answers.append([round(1e3 * (b - a), 1) for a, b in zip([0.0, *times], times, strict=False)])
            await asyncio.sleep(rng.uniform(0.0, 0.2))
    return answers


async def main() -> None:
    given: Any = options(
        __doc__,
        out=("gaps.jsonl", "file to append to"),
        seconds=(60.0, "for each server and load"),
        loads=(list(LOADS), "calm, shared, busy"),
        servers=(["llama-server", "llama-cpp-python"], ""),
        seed=1,
    )
    makers = {"llama-server": lambda: native_llama_server(slots=2), "llama-cpp-python": python_server}
    for name in given.servers:
        with makers[name]() as server:
            for load in given.loads:
                rng = random.Random(given.seed)
                await record(server, load, 2.0, rng)
                answers = await record(server, load, given.seconds, rng)
                longest = [max(gaps[1:]) for gaps in answers]
                with Path(given.out).open("a") as file:  # noqa: ASYNC230 - nothing else runs
                    file.write(json.dumps({"server": name, "load": load, "answers": answers}) + "\n")
                every = [gap for gaps in answers for gap in gaps[1:]]
                print(
                    f"{name:<17} {load:<7} {len(answers):>4} answers; gaps ms: P50 {percentile(every, 0.5):.0f}, "
                    f"P99 {percentile(every, 0.99):.0f}; longest of an answer: P50 {percentile(longest, 0.5):.0f}, "
                    f"P90 {percentile(longest, 0.9):.0f}, P99 {percentile(longest, 0.99):.0f}, "
                    f"max {max(longest):.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    asyncio.run(main())
