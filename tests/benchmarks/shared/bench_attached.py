"""What it costs to ask a model in another process, and what it saves: attached and own, by turns.

First answer: from the making of a client to its first content, which for an own model includes loading it. Then, with a
warm model and a prompt that is in its cache: time to first token, and tokens/s. Medians. Prints a table for
docs/how-to/attach.md; never fails by time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path

from bench_memory import SERVE, started

from disco import AsyncDisco

ASKED = {
    "model": "m",
    "messages": [{"role": "user", "content": "Tell me about the sea."}],
    "max_tokens": 64,
    "logit_bias": {"0": -100, "2": -100},  # no early end
    "temperature": 0,
    "extra_body": {"disco": {"pace_tps": "off"}},
}


async def asked(client: AsyncDisco, began_at: float) -> tuple[float, float]:
    """Seconds from `began_at` to the first content, and tokens/s after that."""
    first_at, tokens = 0.0, 0
    async for chunk in await client.chat.completions.create(**ASKED, stream=True):
        if chunk.choices and chunk.choices[0].delta.content:
            first_at = first_at or time.perf_counter()
            tokens += 1
    return first_at - began_at, (tokens - 1) / (time.perf_counter() - first_at)


async def turn(model: str, *, attach: bool) -> tuple[float, float, float]:
    """Seconds to the first answer's first content; then TTFT in seconds and tokens/s of a second answer."""
    began_at = time.perf_counter()
    async with AsyncDisco(local=model, preset="private", attach=attach) as client:
        cold_s, _ = await asked(client, began_at)
        warm_s, tps = await asked(client, time.perf_counter())
        return cold_s, warm_s, tps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--turns", type=int, default=9)
    given = parser.parse_args()
    rows: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"DISCO_ATTACH": str(Path(folder) / "serve"), "DISCO_STATE": "off"}
        options = ("serve", "--port", "0", "--preset", "private", "--local", given.model)
        with started(SERVE, *options, folder=os.environ["DISCO_ATTACH"]):
            for number in range(given.turns):
                for attach in (number % 2 == 0, number % 2 == 1):
                    rows[attach].append(asyncio.run(turn(given.model, attach=attach)))
    print("| | first answer, s | TTFT, ms | tokens/s |\n|---|---|---|---|")
    for attach, name in ((False, "own"), (True, "attached")):
        cold_s, warm_s, tps = (statistics.median(column) for column in zip(*rows[attach], strict=True))
        print(f"| {name} | {cold_s:.2f} | {1000 * warm_s:.0f} | {tps:.0f} |")


if __name__ == "__main__":
    main()
