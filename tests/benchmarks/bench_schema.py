"""How much slower an answer is under a JSON schema, on the real SmolLM2-135M: tokens per second, with and without.

`python tests/benchmarks/bench_schema.py`. The first answer under a schema also makes the table of the vocabulary, which
is printed apart.
"""

from __future__ import annotations

import statistics
import time

import anyio

from disco.endpoints.host import HostEndpoint
from disco.events import Delta
from disco.request import Request

RUNS, TOKENS = 5, 60
STORY = {
    "type": "object",
    "properties": {"story": {"type": "string", "minLength": 1000}},
    "required": ["story"],
}
FORM = {"type": "json_schema", "json_schema": {"name": "story", "schema": STORY}}


async def timed(endpoint: HostEndpoint, **params: object) -> tuple[float, float]:
    """Seconds to the first token, and tokens per second behind it."""
    messages = [{"role": "user", "content": "Tell a long story."}]
    began_at, times = time.perf_counter(), []
    async for event in endpoint.open(Request(messages, "m", {"max_tokens": TOKENS, "seed": 1, **params})):
        times += (
            [time.perf_counter() for one in event if isinstance(one, Delta)]
            if isinstance(event, list)
            else []
        )
    return times[0] - began_at, (len(times) - 1) / (times[-1] - times[0])


async def main() -> None:
    endpoint = HostEndpoint(context_tokens=512)
    await endpoint.warm_up()
    await timed(endpoint)
    first_s, _ = await timed(endpoint, response_format=FORM)
    free, held = [], []
    for _ in range(RUNS):  # in turns: the machine may be busy
        free.append(await timed(endpoint))
        held.append(await timed(endpoint, response_format=FORM))
    for name, runs in (("free text", free), ("under a schema", held)):
        ttft_s, tps = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"{name:15} TTFT {ttft_s * 1e3:6.0f} ms   {tps:6.1f} tokens/s")
    print(f"the first answer under a schema: TTFT {first_s * 1e3:.0f} ms")
    await endpoint.aclose()


if __name__ == "__main__":
    anyio.run(main)
