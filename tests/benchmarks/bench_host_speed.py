"""How fast a host of a local model is: its start, the first token, one answer, and eight at once.

    python tests/benchmarks/bench_host_speed.py [--model smollm2-135m] [--threads 1] [--tokens 64] [--at-once 8]

Raw is what llama.cpp can do: `llama_decode` with one row, and with a row of each of eight sequences, behind as long a
prompt; nothing is chosen, written or passed on. The hosts are the engine and llama-server, each in its process, as a
client reads them. The ways are measured by turns, and each figure is the best of its turns. "Of the gain" is how many
times faster eight at once are than one, beside how many times raw passes are.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial

import anyio
import anyio.to_thread

from disco.endpoints.host import HostEndpoint
from disco.endpoints.llamacpp import resolve_model
from disco.endpoints.llamacpp.model.sequences import Rows, SequenceModel
from disco.endpoints.llamacpp.model.stop_flag import StopFlag
from disco.request import Request

QUESTION = "Tell me a long story about a mill by the river, and the miller's three sons. "
DEPTH = 32  # tokens of the prompt, about
CONTEXT = 512


def raw_tps(options: argparse.Namespace, rows: int) -> float:
    """Tokens per second of passes with one row of each of so many sequences."""
    sizes = {"context_tokens": CONTEXT, "threads": options.threads, "batch_tokens": 64, "gpu_layers": -1}
    model = SequenceModel(
        resolve_model(options.model), slots=options.at_once, keep_loading=lambda: True, **sizes
    )
    try:
        model.begin(StopFlag())
        for slot in range(rows):
            model.cut(slot, 0)
            model.compute([Rows(slot, 0, [7] * DEPTH, DEPTH - 1)])
        began_at = time.perf_counter()
        for place in range(options.tokens):
            model.compute([Rows(slot, DEPTH + place, [9]) for slot in range(rows)])
            model.synchronise()
        return float(rows * options.tokens / (time.perf_counter() - began_at))
    finally:
        model.close()


async def written(endpoint: HostEndpoint, number: int, tokens: int) -> list[tuple[float, int]]:
    """Write one answer; return when its tokens came after it was asked for, and how many at a time."""
    bans = {"logit_bias": {"0": -100, "2": -100}}  # it does not end by itself
    messages = [{"role": "user", "content": f"{QUESTION}Story number {number}."}]
    params = {"max_tokens": tokens, "seed": number, "temperature": 0.8, **bans}
    async with endpoint.open(Request(messages, "m", params)) as attempt:
        return [
            (time.perf_counter(), sum(delta.tokens for delta in event))
            async for event in attempt
            if isinstance(event, list)
        ]


async def host_tps(endpoint: HostEndpoint, options: argparse.Namespace, at_once: int) -> float:
    """Tokens per second of answers at the same time, while all of them write."""
    found: list[list[tuple[float, int]]] = []

    async def one(number: int) -> None:
        found.append(await written(endpoint, number, options.tokens + DEPTH))

    async with anyio.create_task_group() as group:
        for number in range(at_once):
            group.start_soon(one, number)
    begun, ended = max(came[0][0] for came in found), min(came[-1][0] for came in found)
    tokens = sum(count for came in found for at, count in came if begun < at <= ended)
    return tokens / (ended - begun)


async def first_token_s(endpoint: HostEndpoint, options: argparse.Namespace) -> float:
    """Seconds to the first token of an answer whose prompt was read before, all but its end."""
    began_at = time.perf_counter()
    return (await written(endpoint, options.at_once, 1))[0][0] - began_at


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    hosts = {
        program: HostEndpoint(
            model=options.model,
            runtime=program,
            slots=options.at_once,
            context_tokens=CONTEXT,
            threads=options.threads,
        )
        for program in ("engine", "llama-server")
    }
    ready_s, first_s = {}, {}
    tps: dict[tuple[str, int], list[float]] = {}
    try:
        for name, endpoint in hosts.items():
            began_at = time.perf_counter()
            await endpoint.warm_up()
            ready_s[name] = time.perf_counter() - began_at
            for number in range(options.at_once):  # what is measured is not the reading
                await written(endpoint, number, 1)
            first_s[name] = min([await first_token_s(endpoint, options) for _ in range(9)])
        for turn in range(options.repeats):
            for count in (1, options.at_once):
                print(f"turn {turn + 1} of {options.repeats}, {count} at once", file=sys.stderr)
                raw: Callable[[], float] = partial(raw_tps, options, count)
                tps.setdefault(("llama_decode", count), []).append(await anyio.to_thread.run_sync(raw))
                for name, endpoint in hosts.items():
                    tps.setdefault((name, count), []).append(await host_tps(endpoint, options, count))
    finally:
        for endpoint in hosts.values():
            await endpoint.aclose()
    best = {way: max(values) for way, values in tps.items()}
    raw_gain = best["llama_decode", options.at_once] / best["llama_decode", 1]
    print(
        f"| | ready, s | first token, ms | tokens/s | {options.at_once} at once | gain | of the gain | of raw |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in ("llama_decode", *hosts):
        one, many = best[name, 1], best[name, options.at_once]
        start = f"{ready_s[name]:.2f} | {first_s[name] * 1e3:.0f}" if name in hosts else "– | –"
        print(
            f"| {name} | {start} | {one:.1f} | {many:.1f} | {many / one:.2f} | "
            f"{many / one / raw_gain:.2f} | {one / best['llama_decode', 1]:.2f} |"
        )


if __name__ == "__main__":
    anyio.run(main)
