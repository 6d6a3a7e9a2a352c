"""What the device reads again from turn to turn of a conversation, with and without divided answers.

SmolLM2 in this process, and llama.cpp's own server behind a proxy that makes it answer after `--ttft` seconds; its
cache is WARMED with each prompt first, outside every figure, as a server on the same few cores reads no faster than
the device. One thread each. Each turn brings a part of a page of docs, and a question about it. Each way holds the
whole conversation with itself, and begins with a cold device. The plan gets a claimed device speed, so that it divides
answers on any machine.

Prints, for each turn: the length of the device's prompt, how many tokens of it the device had in its cache, that as a
share of what its cache could have held of the turn before (prompt and answer), the tokens that it read, and how the
answer was made.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import anyio
import openai
from helpers import tests_path  # noqa: F401 - finds the servers of the tests
from helpers.measuring import Columns, options
from servers import native_llama_server

from disco import AsyncDisco
from disco.dispatch import Preset
from disco.endpoints.continuation import Continuation
from disco.endpoints.host import HostEndpoint
from disco.profiles import DeviceProfile, QuantileTable, ServerProfile
from disco.session.records.route_record import RouteRecord
from disco.testing import shape

PAGE = Path(__file__).parents[3] / "docs" / "concepts" / "failover.md"
QUESTIONS = (
    "Explain in your own words what this text is about.",
    "Which part of it matters most to a reader who is in a hurry?",
    "What does the text leave open?",
    "Name one example that would make it clearer.",
)


def ways(pace_tps: float, refine: str) -> dict[str, dict[str, Any]]:
    playback = {"playback": {"pace_tps": pace_tps}}
    found: dict[str, dict[str, Any]] = {
        "device": {"dispatch": {"policy": "device_only"}, **playback},
        "race and move": {"dispatch": {"policy": "race"}, **playback},
        "assist": {"dispatch": {"policy": "assist"}, **playback},
    }
    if refine != "off":
        found["assist, refined"] = {**found["assist"], "assist": {"refine": refine}}
    return found


async def main(
    turns: int, words: int, ttft: float, answer: int, pace: float, claimed: float, refine: str
) -> None:
    device = HostEndpoint(model="smollm2-135m", name="device", context_tokens=4096, threads=1)
    known = ServerProfile(
        name="shaped",
        source="this benchmark's proxy",
        licence="none",
        rows=1,
        ttft_s=QuantileTable(levels=(0.0, 1.0), values=(ttft, ttft + 0.1), mean=ttft + 0.05),
        tpot_s=QuantileTable(levels=(0.0, 1.0), values=(0.008, 0.012), mean=0.01),
    )
    believed = DeviceProfile(name="claimed", source="this benchmark", prefill_tps=claimed, decode_tps=25.0)
    table = Columns(
        "way <16 | turn >4 | prompt >6 | cached >6 | of last turn % >13.1f | read >6 | server tokens >13 | "
        "TTFT s >7.3f | how <12"
    )
    pieces = PAGE.read_text().split()
    texts = [" ".join(pieces[words * n : words * (n + 1)]) for n in range(turns)]
    try:
        with native_llama_server(context_tokens=4096) as server:
            port = int(server.base_url.split(":")[2].split("/")[0])
            async with shape(port, ttft, seed=7) as proxy:
                for name, preset in ways(pace, refine).items():
                    client = AsyncDisco(
                        local=device,
                        base_url=proxy.base_url,
                        api_key="none",
                        policy=Preset(name=name, **preset),
                        price=(0.15, 0.60),
                        device_profile=believed,
                        server_profile=known,
                        continuation=Continuation(method="completions", template=str(server.gguf)),
                    )
                    async with client:
                        before = 0
                        await forget(device)
                        for turn, route in enumerate(await converse(client, server, texts, answer)):
                            before = row(table, name, turn + 1, route, before)
    finally:
        await device.aclose()


async def forget(device: HostEndpoint) -> None:
    """Let the device read something else, so that it begins cold."""
    async with AsyncDisco(policy="private", local=device, base_url=None, api_key=None) as client:
        await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Say something else."}], max_tokens=1
        )


async def converse(client: AsyncDisco, server: Any, texts: list[str], answer: int) -> list[RouteRecord]:
    """Hold one conversation, and return its records."""
    routes: list[RouteRecord] = []
    messages: list[Any] = []
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as direct:
        for text, question in zip(texts, QUESTIONS, strict=False):
            messages.append({"role": "user", "content": f"{text}\n\n{question}"})
            await direct.chat.completions.create(model="smollm2-135m", messages=messages, max_tokens=1)
            stream = await client.chat.completions.create(
                model="smollm2-135m", messages=messages, max_tokens=answer, temperature=0.0, stream=True
            )
            said = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
            messages.append({"role": "assistant", "content": said})
            routes.append(stream.route)
    return routes


def row(table: Columns, name: str, turn: int, route: RouteRecord, before: int) -> int:
    """Print a turn; return how many tokens of the conversation the device could have in its cache after it."""
    ours = [a for a in route.attempts if a.place == "device"]
    first = ours[0] if ours else None
    read = sum(a.prompt_tokens - a.cached_tokens for a in ours)
    how = "" if route.assist is None else route.assist.why or route.assist.outcome
    table.row(
        name,
        turn,
        0 if first is None else first.prompt_tokens,
        0 if first is None else first.cached_tokens,
        100 * first.cached_tokens / before if first is not None and before else float("nan"),
        read,
        sum(a.completion_tokens for a in route.attempts if a.place == "server"),
        route.released[0][0],
        how,
    )
    return max((a.prompt_tokens + a.completion_tokens for a in ours), default=0)


if __name__ == "__main__":
    given = options(
        __doc__,
        turns=(4, "of a conversation, at most 4"),
        words=(250, "of the page in each turn"),
        ttft=(0.3, "seconds that the proxy holds a request"),
        answer=(144, "most tokens of an answer"),
        pace=(10.0, "slowest pace, tokens/s"),
        claimed=(150.0, "prompt tokens/s of the device in the plan"),
        refine=("off", "also hold the conversation with this refiner: lexical"),
    )
    sys.exit(
        anyio.run(
            main,
            given.turns,
            given.words,
            given.ttft,
            given.answer,
            given.pace,
            given.claimed,
            given.refine,
        )
    )
