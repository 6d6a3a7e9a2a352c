"""CPU per chunk through every way the SDK has of reading a stream: `openai`, disco, and `litellm` beside them.

Run `python tests/benchmarks/bench_helpers.py --litellm-python PATH`. A server in a process of its own gives prepared
bytes, so that what is measured is the client: `time.process_time` of the client's process over whole streams of 2,000
chunks, per chunk. SDK and disco take turns in one process. litellm needs an environment of its own (its pins and this
SDK's exclude each other): it runs in a process of its own under the interpreter that `--litellm-python` or the
environment variable LITELLM_PYTHON names, takes its turns in the same rounds, and is left out without one.

Targets: disco at most 0.25 of the SDK through the same helper, and at most 0.06 of `litellm.acompletion`. Nothing here
decides by time: it prints.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import openai
from bench_stream import LONG, MESSAGES, prepared
from helpers.measuring import met, serving, unpaced
from helpers.measuring import options as command_line

from disco import AsyncDisco, Disco

OF_SDK, OF_LITELLM = 0.25, 0.06
LITELLM = "litellm.acompletion"
ASKED: Any = {"messages": MESSAGES, "model": "long"}

# Runs under the other interpreter; one line in, one stream read, its CPU seconds and chunks out.
LITELLM_PROGRAM = """
import asyncio, sys, time
from importlib.metadata import version
import litellm

async def read():
    seen = 0
    stream = await litellm.acompletion(
        model="openai/long", api_base=sys.argv[1], api_key="none", stream=True, max_retries=0,
        messages=[{"role": "user", "content": "Say something long."}],
    )
    async for chunk in stream:
        seen += bool(chunk.choices and chunk.choices[0].delta.content)
    return seen

async def main():
    print(version("litellm"), flush=True)
    while sys.stdin.readline():
        at = time.process_time()
        seen = await read()
        print(time.process_time() - at, seen, flush=True)

asyncio.run(main())
"""

# ---------------------------------------------------------------------------------------- the ways of reading

Client = Any


async def _create(client: Client) -> int:
    return await _count(await client.chat.completions.create(**ASKED, stream=True))


async def _events(client: Client) -> int:
    async with client.chat.completions.stream(**ASKED) as stream:
        return sum([event.type == "content.delta" and bool(event.delta) async for event in stream])


async def _raw(client: Client) -> int:
    response = await client.chat.completions.with_raw_response.create(**ASKED, stream=True)
    return await _count(response.parse())


async def _streaming(client: Client) -> int:
    ways = client.chat.completions.with_streaming_response
    async with ways.create(**ASKED, stream=True) as response:
        return await _count(await response.parse())


async def _responses(client: Client) -> int:
    stream = await client.responses.create(model="long", input="Say something long.", stream=True)
    return sum([event.type == "response.output_text.delta" async for event in stream])


async def _count(chunks: Any) -> int:
    return sum([bool(chunk.choices and chunk.choices[0].delta.content) async for chunk in chunks])


def _sync_create(client: Client) -> int:
    return _sync_count(client.chat.completions.create(**ASKED, stream=True))


def _sync_events(client: Client) -> int:
    with client.chat.completions.stream(**ASKED) as stream:
        return sum([event.type == "content.delta" and bool(event.delta) for event in stream])


def _sync_raw(client: Client) -> int:
    return _sync_count(client.chat.completions.with_raw_response.create(**ASKED, stream=True).parse())


def _sync_responses(client: Client) -> int:
    stream = client.responses.create(model="long", input="Say something long.", stream=True)
    return sum([event.type == "response.output_text.delta" for event in stream])


def _sync_count(chunks: Any) -> int:
    return sum([bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks])


ASYNC: dict[str, Callable[[Client], Awaitable[int]]] = {
    "create(stream=True)": _create,
    ".stream(), all events": _events,
    "with_raw_response, parsed": _raw,
    "with_streaming_response, parsed": _streaming,
    "responses.create(stream=True)": _responses,
}
SYNC: dict[str, Callable[[Client], int]] = {
    "sync create(stream=True)": _sync_create,
    "sync .stream(), all events": _sync_events,
    "sync with_raw_response, parsed": _sync_raw,
    "sync responses.create": _sync_responses,
}

# ---------------------------------------------------------------------------------------- measuring

Spans = dict[tuple[str, str], list[float]]
"""CPU seconds of each stream, by way of reading and by client."""


@contextmanager
def litellm_at(interpreter: str, base_url: str) -> Iterator[tuple[str, Callable[[], float]]]:
    """litellm's version, and what reads one stream with it and gives the CPU seconds of its process."""
    process = subprocess.Popen(
        [interpreter, "-c", LITELLM_PROGRAM, base_url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"},
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        to, back = process.stdin, process.stdout
        version = back.readline().strip()

        def read() -> float:
            to.write("go\n")
            to.flush()
            cpu_s, seen = back.readline().split()
            _check(LITELLM, int(seen))
            return float(cpu_s)

        try:
            yield version, read
        finally:
            to.close()


def _check(name: str, seen: int) -> None:
    if seen != LONG:
        raise RuntimeError(f"{name} read {seen} chunks of {LONG}")


async def measure(base_url: str, rounds: int, litellm: Callable[[], float] | None) -> Spans:
    """All ways of reading, in random order, in each round; the first round warms up."""
    settings: Any = {"base_url": base_url, "api_key": "none", "max_retries": 0}
    own: Any = {"policy": unpaced(), "price": (0.15, 0.6), **settings}
    spans: Spans = {}
    with openai.OpenAI(**settings) as sdk_sync, Disco(**own) as ours_sync:
        async with openai.AsyncOpenAI(**settings) as sdk, AsyncDisco(**own) as ours:
            turns = [(way, name, c) for way in ASYNC for name, c in (("openai", sdk), ("disco", ours))]
            turns += [
                (way, name, c) for way in SYNC for name, c in (("openai", sdk_sync), ("disco", ours_sync))
            ]
            for turn in range(rounds + 1):
                if litellm is not None:
                    cpu_s = litellm()
                    if turn:
                        spans.setdefault((LITELLM, LITELLM), []).append(cpu_s)
                gc.collect()
                # In a fixed order each would always pay for the garbage of the same neighbour.
                for way, name, client in random.sample(turns, len(turns)):
                    cpu_at = time.process_time()
                    seen = await ASYNC[way](client) if way in ASYNC else SYNC[way](client)
                    cpu_s = time.process_time() - cpu_at
                    _check(f"{name}, {way}", seen)
                    if turn:
                        spans.setdefault((way, name), []).append(cpu_s)
    return spans


def show(spans: Spans) -> None:
    """One row for each way of reading."""
    print(f"{'':<34}{'openai':>9}{'disco':>9}{'of openai':>11}{'<= 0.25':>9}{'of litellm':>12}{'<= 0.06':>9}")
    beside = spans.get((LITELLM, LITELLM))
    for way in (*ASYNC, *SYNC):
        sdk, ours = spans[way, "openai"], spans[way, "disco"]
        ratio = statistics.median(a / b for a, b in zip(ours, sdk, strict=True))
        row = f"{way:<34}{_us(sdk):>9.1f}{_us(ours):>9.1f}{ratio:>11.3f}{met(ratio, OF_SDK):>9}"
        if beside is None:
            row += f"{'–':>12}{'–':>9}"
        else:
            ratio = statistics.median(a / b for a, b in zip(ours, beside, strict=True))
            row += f"{ratio:>12.3f}{met(ratio, OF_LITELLM):>9}"
        print(row)
    if beside is not None:
        print(f"{LITELLM:<34}{_us(beside):>9.1f}")


def _us(spans: list[float]) -> float:
    return statistics.median(spans) / LONG * 1e6


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="streams per client and way of reading")
    parser.add_argument("--per-write", type=int, default=1, help="chunks the server writes at a time")
    parser.add_argument(
        "--litellm-python",
        default=os.environ.get("LITELLM_PYTHON"),
        help="interpreter of an environment with litellm",
    )
    options = parser.parse_args()
    head = f"{LONG} chunks a stream, {options.per_write} a write; medians of {options.rounds} streams; CPU µs/chunk"
    with serving(prepared, options.per_write) as base_url:
        if options.litellm_python is None:
            print(
                "litellm is left out: name an interpreter that has it with --litellm-python.", file=sys.stderr
            )
            print(head)
            show(asyncio.run(measure(base_url, options.rounds, None)))
            return
        with litellm_at(options.litellm_python, base_url) as (version, read):
            print(f"{head}; openai {openai.__version__}, litellm {version}")
            show(asyncio.run(measure(base_url, options.rounds, read)))


if __name__ == "__main__":
    main()
