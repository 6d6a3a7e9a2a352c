"""How fast the model on this machine writes one answer, and eight at once, beside llama.cpp's own passes.

    python tests/benchmarks/bench_host_speed.py [--model smollm2-135m] [--threads 1] [--tokens 64] [--at-once 8] [--cpu]

Raw: `llama_decode` with one row, and with a row of each of eight sequences, behind as long a prompt; nothing is chosen,
written or passed on. The engine: answers as the session reads them. Each figure is the best of the repeats. On a busy
machine `--cpu` counts processor time in the place of time: with one thread both are the same on an idle one.
"""

from __future__ import annotations

import argparse
import time

import anyio

from disco.endpoints.llamacpp import EngineEndpoint, resolve_model
from disco.endpoints.llamacpp.model.sequences import Rows, SequenceModel
from disco.endpoints.llamacpp.model.stop_flag import StopFlag
from disco.request import Request

clock = time.perf_counter  # or processor time: see --cpu
QUESTION = "Tell me a long story about a mill by the river, and the miller's three sons. "
DEPTH = 32


def raw_tps(options: argparse.Namespace, rows: int) -> float:
    """Tokens per second of passes with one row of each of so many sequences."""
    sizes = {"context_tokens": 512, "threads": options.threads, "batch_tokens": 64, "gpu_layers": -1}
    model = SequenceModel(
        resolve_model(options.model), slots=options.at_once, keep_loading=lambda: True, **sizes
    )
    try:
        model.begin(StopFlag())
        model.reserve()
        best = 0.0
        for _ in range(options.repeats):
            for slot in range(rows):
                model.cut(slot, 0)
                model.compute([Rows(slot, 0, [7] * DEPTH, DEPTH - 1)])
            began_at = clock()
            for place in range(options.tokens):
                model.compute([Rows(slot, DEPTH + place, [9]) for slot in range(rows)])
                model.synchronise()
            best = max(best, rows * options.tokens / (clock() - began_at))
    finally:
        model.close()
    return best


async def written(endpoint: EngineEndpoint, number: int, tokens: int) -> list[tuple[float, int]]:
    """Write one answer; return when its tokens came, and how many at a time."""
    bans = {"logit_bias": {"0": -100, "2": -100}}  # it does not end by itself
    messages = [{"role": "user", "content": f"{QUESTION}Story number {number}."}]
    params = {"max_tokens": tokens, "seed": number, **bans}
    async with endpoint.open(Request(messages, "m", params)) as attempt:
        return [
            (clock(), sum(delta.tokens for delta in event))
            async for event in attempt
            if isinstance(event, list)
        ]


async def engine_tps(endpoint: EngineEndpoint, options: argparse.Namespace, at_once: int) -> float:
    """Tokens per second of answers at the same time, while all of them write."""
    best = 0.0
    for _ in range(options.repeats):
        found: list[list[tuple[float, int]]] = []

        async def one(number: int, found: list[list[tuple[float, int]]] = found) -> None:
            found.append(await written(endpoint, number, options.tokens + DEPTH))

        async with anyio.create_task_group() as group:
            for number in range(at_once):
                group.start_soon(one, number)
        begun, ended = max(came[0][0] for came in found), min(came[-1][0] for came in found)
        tokens = sum(count for came in found for at, count in came if begun < at <= ended)
        best = max(best, tokens / (ended - begun))
    return best


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    if options.cpu:
        global clock  # noqa: PLW0603 - the one setting of this program
        clock = time.process_time
    raw = {rows: raw_tps(options, rows) for rows in (1, options.at_once)}
    endpoint = EngineEndpoint(
        model=options.model, slots=options.at_once, context_tokens=512, threads=options.threads
    )
    try:
        await endpoint.warm_up()
        for number in range(options.at_once):  # what is measured is not the reading
            await written(endpoint, number, 1)
        engine = {count: await engine_tps(endpoint, options, count) for count in (1, options.at_once)}
    finally:
        await endpoint.aclose()
    print("verify curve:", [(rows, round(s * 1e3)) for rows, s in endpoint.engine.facts().verify_s])
    for name, found in (("llama_decode", raw), ("engine", engine)):
        one, all_ = found.values()
        print(
            f"{name:14}{one:8.1f} tokens/s alone {all_:8.1f} with {options.at_once} at once: {all_ / one:.2f} times"
        )
    gain = (engine[options.at_once] / engine[1]) / (raw[options.at_once] / raw[1])
    print(f"the engine has {gain:.2f} of the gain, and {engine[1] / raw[1]:.2f} of the speed of one")


if __name__ == "__main__":
    anyio.run(main)
