"""CPU per chunk through every way the SDK has of reading a stream: `openai`, disco, and `litellm` beside them.

litellm runs in a process of its own, under the interpreter that `--litellm-python` or LITELLM_PYTHON names (its pins
and this SDK's exclude each other), and is left out without one.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import partial
from typing import Any

import openai
from bench_stream import LONG, MESSAGES, prepared
from helpers.measuring import Columns, by_turns, met, options, ratio, unpaced
from helpers.prepared_server import serving

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

Client = Any


async def _now(result: Any) -> Any:
    """Of either kind of client."""
    return await result if inspect.isawaitable(result) else result


def _content(chunk: Any) -> bool:
    return bool(chunk.choices and chunk.choices[0].delta.content)


def _delta(event: Any) -> bool:
    return event.type in ("content.delta", "response.output_text.delta") and bool(event.delta)


def _create(client: Client) -> Any:
    return client.chat.completions.create(**ASKED, stream=True)


def _events(client: Client) -> Any:
    return client.chat.completions.stream(**ASKED)


def _raw(client: Client) -> Any:
    return client.chat.completions.with_raw_response.create(**ASKED, stream=True)


def _streaming(client: Client) -> Any:
    return client.chat.completions.with_streaming_response.create(**ASKED, stream=True)


def _responses(client: Client) -> Any:
    return client.responses.create(model="long", input="Say something long.", stream=True)


ASYNC = {
    "create(stream=True)": (_create, _content),
    ".stream(), all events": (_events, _delta),
    "with_raw_response, parsed": (_raw, _content),
    "with_streaming_response, parsed": (_streaming, _content),
    "responses.create(stream=True)": (_responses, _delta),
}
SYNC = {
    "sync create(stream=True)": (_create, _content),
    "sync .stream(), all events": (_events, _delta),
    "sync with_raw_response, parsed": (_raw, _content),
    "sync responses.create": (_responses, _delta),
}


async def _read(client: Client, way: str) -> int:
    """How many chunks with content, or events with a text, come."""
    make, counts = (ASYNC | SYNC)[way]
    async with AsyncExitStack() as stack:
        stream = await _now(make(client))
        if hasattr(stream, "__aenter__"):
            stream = await stack.enter_async_context(stream)
        elif hasattr(stream, "__enter__"):
            stream = stack.enter_context(stream)
        if hasattr(stream, "parse"):
            stream = await _now(stream.parse())
        if hasattr(stream, "__aiter__"):
            return sum([counts(each) async for each in stream])
        return sum([counts(each) for each in stream])


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


async def _cpu_s(client: Client, way: str) -> float:
    gc.collect()
    cpu_at = time.process_time()
    seen = await _read(client, way)
    cpu_s = time.process_time() - cpu_at
    _check(way, seen)
    return cpu_s


async def measure(base_url: str, rounds: int, litellm: Callable[[], float] | None) -> Spans:
    """All ways of reading, in random order, in each round; the first round warms up."""
    settings: Any = {"base_url": base_url, "api_key": "none", "max_retries": 0}
    own: Any = {"policy": unpaced(), "price": (0.15, 0.6), **settings}
    with openai.OpenAI(**settings) as sdk_sync, Disco(**own) as ours_sync:
        async with openai.AsyncOpenAI(**settings) as sdk, AsyncDisco(**own) as ours:
            ways: dict[tuple[str, str], Callable[[], Any]] = {}
            for kinds, theirs, mine in ((ASYNC, sdk, ours), (SYNC, sdk_sync, ours_sync)):
                ways |= {(way, "openai"): partial(_cpu_s, theirs, way) for way in kinds}
                ways |= {(way, "disco"): partial(_cpu_s, mine, way) for way in kinds}
            if litellm is not None:
                ways[LITELLM, LITELLM] = litellm
            return await by_turns(ways, rounds)


def show(spans: Spans) -> None:
    """One row for each way of reading."""
    table = Columns(
        " <34 | openai >9.1f | disco >9.1f | of openai >11.3f | <= 0.25 >9 | of litellm >12.3f | <= 0.06 >9"
    )
    beside = spans.get((LITELLM, LITELLM))
    for way in (*ASYNC, *SYNC):
        sdk, ours = spans[way, "openai"], spans[way, "disco"]
        row = [way, _us(sdk), _us(ours)]
        for other, target in ((sdk, OF_SDK), (beside, OF_LITELLM)):
            row += ["–", "–"] if other is None else [ratio(ours, other), met(ratio(ours, other), target)]
        table.row(*row)
    if beside is not None:
        table.row(LITELLM, _us(beside))


def _us(spans: list[float]) -> float:
    return statistics.median(spans) / LONG * 1e6


def main() -> None:
    given = options(
        __doc__,
        rounds=(7, "streams per client and way of reading"),
        per_write=(1, "chunks the server writes at a time"),
        litellm_python=(os.environ.get("LITELLM_PYTHON"), "interpreter of an environment with litellm"),
    )
    head = (
        f"{LONG} chunks a stream, {given.per_write} a write; medians of {given.rounds} streams; CPU µs/chunk"
    )
    with ExitStack() as stack:
        base_url, read = stack.enter_context(serving(prepared, given.per_write)), None
        if given.litellm_python is None:
            print("litellm is left out: --litellm-python names an interpreter with it.", file=sys.stderr)
        else:
            version, read = stack.enter_context(litellm_at(given.litellm_python, base_url))
            head += f"; openai {openai.__version__}, litellm {version}"
        print(head)
        show(asyncio.run(measure(base_url, given.rounds, read)))


if __name__ == "__main__":
    main()
