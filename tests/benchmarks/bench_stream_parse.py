"""CPU per chunk and warm time to first token: disco's server attempt, the SDK's typed stream, raw lines.

Run as a script. A server in a process of its own streams 2,000 chat chunks per request; all clients read
from the same server, interleaved, in the same process. Absolute figures differ from machine to machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection

import httpx2
import openai

from disco.endpoints.openai_api import OpenAIEndpoint
from disco.request import Request
from disco.session.events import Ended

CHUNKS = 2000
MESSAGES = [{"role": "user", "content": "Say something long."}]


def _event(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    body = {
        "id": "chatcmpl-AbCdEfGhIjKlMnOpQrStUvWxYz",
        "object": "chat.completion.chunk",
        "created": 1753000000,
        "model": "some-model-2026-01-01",
        "service_tier": "default",
        "system_fingerprint": "fp_0123456789",
        "choices": [choice],
        "usage": None,
    }
    data = b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


async def _serve(port_to: Connection, per_piece: int) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    events = [_event({"role": "assistant", "content": ""})]
    events += [_event({"content": f" word{n % 100}"}) for n in range(CHUNKS)]
    done = b"data: [DONE]\n\n"
    events += [_event({}, "stop"), b"%x\r\n%s\r\n0\r\n\r\n" % (len(done), done)]

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                lengths = [x for x in request.lower().split(b"\r\n") if x.startswith(b"content-length:")]
                await reader.readexactly(int(lengths[0].split(b":")[1]))
                writer.write(head + events[0])
                for start in range(1, len(events), per_piece):
                    writer.write(b"".join(events[start : start + per_piece]))
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port_to.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


def _server_process(port_to: Connection, per_piece: int) -> None:
    asyncio.run(_serve(port_to, per_piece))


async def _disco(client: openai.AsyncOpenAI, endpoint: OpenAIEndpoint) -> tuple[int, float]:
    seen, first_at = 0, 0.0
    async with endpoint.open(Request(messages=MESSAGES, model="m")) as attempt:
        async for batch in attempt:
            if isinstance(batch, Ended):
                break
            for delta in batch:
                if delta.text:
                    first_at = first_at or time.perf_counter()
                    seen += 1
    return seen, first_at


async def _typed(client: openai.AsyncOpenAI, endpoint: OpenAIEndpoint) -> tuple[int, float]:
    seen, first_at = 0, 0.0
    stream = await client.chat.completions.create(messages=MESSAGES, model="m", stream=True)
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            first_at = first_at or time.perf_counter()
            seen += 1
    return seen, first_at


async def _raw_lines(client: openai.AsyncOpenAI, endpoint: OpenAIEndpoint) -> tuple[int, float]:
    seen, first_at = 0, 0.0
    raw = client.chat.completions.with_streaming_response
    async with raw.create(messages=MESSAGES, model="m", stream=True) as response:
        async for line in response.iter_lines():
            if line.startswith("data: {") and '"content":" ' in line:
                first_at = first_at or time.perf_counter()
                seen += 1
    return seen, first_at


async def _bare_bytes(client: openai.AsyncOpenAI, endpoint: OpenAIEndpoint) -> tuple[int, float]:
    """The transport alone, the floor of anything built on it."""
    first_at, data = 0.0, 0
    body = {"messages": MESSAGES, "model": "m", "stream": True}
    response = await client.post(
        "/chat/completions",
        body=body,
        cast_to=httpx2.Response,
        stream=True,
        stream_cls=openai.AsyncStream[object],
    )
    pieces = 0
    async for piece in response.aiter_bytes():
        pieces += 1
        if pieces > 1:
            first_at = first_at or time.perf_counter()
        data += len(piece)
    await response.aclose()
    return CHUNKS, first_at


CLIENTS: dict[str, Callable[..., Awaitable[tuple[int, float]]]] = {
    "disco attempt": _disco,
    "openai typed stream": _typed,
    "openai raw lines": _raw_lines,
    "bytes, not parsed": _bare_bytes,
}


async def measure(base_url: str, rounds: int) -> dict[str, tuple[float, float]]:
    """Median CPU per chunk and warm TTFT, both in microseconds, by client."""
    cpu: dict[str, list[float]] = {name: [] for name in CLIENTS}
    ttft: dict[str, list[float]] = {name: [] for name in CLIENTS}
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        endpoint = OpenAIEndpoint(client=client)
        for turn in range(rounds + 1):
            for name, read in CLIENTS.items():
                cpu_at, at = time.process_time(), time.perf_counter()
                seen, first_at = await read(client, endpoint)
                if seen != CHUNKS:
                    raise RuntimeError(f"{name} read {seen} chunks of {CHUNKS}")
                if turn:  # the first round warms up
                    cpu[name].append((time.process_time() - cpu_at) / CHUNKS * 1e6)
                    ttft[name].append((first_at - at) * 1e6)
    return {name: (statistics.median(cpu[name]), statistics.median(ttft[name])) for name in CLIENTS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--per-write", type=int, default=16, help="events the server writes at a time")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    port_from, port_to = context.Pipe(duplex=False)
    server = context.Process(target=_server_process, args=(port_to, options.per_write), daemon=True)
    server.start()
    try:
        results = asyncio.run(measure(f"http://127.0.0.1:{port_from.recv()}/v1", options.rounds))
    finally:
        server.terminate()
        server.join(5)
    print(f"{CHUNKS} chunks a request, {options.rounds} rounds, medians")
    print(f"{'client':<22}{'CPU per chunk, µs':>20}{'warm TTFT, µs':>16}")
    for name, (cpu, ttft) in results.items():
        print(f"{name:<22}{cpu:>20.1f}{ttft:>16.0f}")


if __name__ == "__main__":
    main()
