"""What the client costs: CPU per chunk, warm time to first token, and the time of a whole request.

Compare the ratios and the paired differences, not the absolute figures. Whole: `create(stream=False)`, a short answer.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from statistics import median
from typing import Any

import openai
from helpers.measuring import Columns, added, by_turns, met, options, percentile, ratio, unpaced
from helpers.prepared_server import STREAM_HEAD, document, event, piece, serving

from disco import AsyncDisco
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

OF_SDK, ADDED_MS = 0.25, 0.3
LONG, SHORT = 2000, 16  # content chunks of an answer
MESSAGES: Any = [{"role": "user", "content": "Say something long."}]
TYPED, RAW = "openai, typed stream", "openai, raw lines"


def _envelope(kind: str, **more: object) -> dict[str, object]:
    """The fields and the length that OpenAI's own have."""
    return {
        "id": "chatcmpl-AbCdEfGhIjKlMnOpQrStUvWxYz",
        "object": kind,
        "created": 1753000000,
        "model": "some-model-2026-01-01",
        "service_tier": "default",
        "system_fingerprint": "fp_0123456789",
        **more,
    }


def chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return event(_envelope("chat.completion.chunk", choices=[choice], usage=None))


def _words(chunks: int) -> list[str]:
    return [f" word{n % 100}" for n in range(chunks)]


def _usage(chunks: int, of: str = "prompt", to: str = "completion") -> dict[str, object]:
    return {f"{of}_tokens": 12, f"{to}_tokens": chunks, "total_tokens": 12 + chunks}


def _joined(wire: list[bytes], per_write: int) -> list[bytes]:
    return [b"".join(wire[start : start + per_write]) for start in range(0, len(wire), per_write)]


def _stream(chunks: int, per_write: int) -> list[bytes]:
    """What the server writes, one piece a write: headers and role chunk, content, finish, usage, [DONE]."""
    content = _joined([chunk({"content": word}) for word in _words(chunks)], per_write)
    usage = event(_envelope("chat.completion.chunk", choices=[], usage=_usage(chunks)))
    tail = chunk({}, "stop") + usage + event(None) + piece(b"")
    return [STREAM_HEAD + chunk({"role": "assistant", "content": ""}), *content, tail]


def whole(chunks: int) -> bytes:
    message = {"role": "assistant", "content": "".join(_words(chunks)), "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return document(_envelope("chat.completion", choices=[choice], usage=_usage(chunks)))


def _responses(chunks: int, per_write: int) -> list[bytes]:
    """The same answer as the Responses API streams it."""
    part: dict[str, object] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    item: dict[str, object] = {"id": "msg_0123456789", "type": "message", "role": "assistant", "content": []}
    answer: dict[str, object] = {"id": "resp_0123456789", "object": "response", "created_at": 1753000000}
    answer |= {"model": "some-model", "output": [], "parallel_tool_calls": True, "tool_choice": "auto"}
    answer |= {"tools": [], "status": "in_progress"}
    here: dict[str, object] = {"item_id": "msg_0123456789", "output_index": 0, "content_index": 0}
    full = {**part, "text": "".join(_words(chunks))}
    done = {**item, "status": "completed", "content": [full]}
    usage = _usage(chunks, "input", "output")
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    ended = {**answer, "status": "completed", "output": [done], "usage": usage}
    deltas = [{**here, "delta": word, "logprobs": []} for word in _words(chunks)]
    events: list[tuple[str, dict[str, object]]] = [
        ("created", {"response": answer}),
        ("in_progress", {"response": answer}),
        ("output_item.added", {"output_index": 0, "item": {**item, "status": "in_progress"}}),
        ("content_part.added", {**here, "part": part}),
        *(("output_text.delta", delta) for delta in deltas),
        ("output_text.done", {**here, "text": full["text"], "logprobs": []}),
        ("content_part.done", {**here, "part": full}),
        ("output_item.done", {"output_index": 0, "item": done}),
        ("completed", {"response": ended}),
    ]
    named = [
        {"type": f"response.{kind}", **body, "sequence_number": n} for n, (kind, body) in enumerate(events)
    ]
    return [STREAM_HEAD, *_joined([event(body, str(body["type"])) for body in named], per_write), piece(b"")]


def prepared(per_write: int) -> Callable[[bytes, Any], AsyncIterator[bytes]]:
    """A server's answers, so many chunks a write."""
    streams = {"long": _stream(LONG, per_write), "short": _stream(SHORT, per_write)}
    responses = {"long": _responses(LONG, per_write)}
    wholes = {"long": [whole(LONG)], "short": [whole(SHORT)]}

    async def answer(head: bytes, body: Any) -> AsyncIterator[bytes]:
        streamed = responses if b"/responses " in head else streams
        for data in (streamed if body.get("stream") else wholes)[body["model"]]:
            yield data

    return answer


Client = openai.AsyncOpenAI


async def _typed(client: Client, model: str) -> list[float]:
    """When each chunk with content had come."""
    stream = await client.chat.completions.create(messages=MESSAGES, model=model, stream=True)
    return [time.perf_counter() async for chunk in stream if chunk.choices and chunk.choices[0].delta.content]


async def _raw_lines(client: Client, model: str) -> list[float]:
    raw = client.chat.completions.with_streaming_response
    async with raw.create(messages=MESSAGES, model=model, stream=True) as response:
        return [time.perf_counter() async for line in response.iter_lines() if '"content":" ' in line]


@asynccontextmanager
async def clients(base_url: str) -> AsyncIterator[dict[str, openai.AsyncOpenAI]]:
    """All clients by name, each with a connection of its own; the SDK first."""
    settings: Any = {"base_url": base_url, "api_key": "none"}
    price = (0.15, 0.6)
    paced = Preset(dispatch={"policy": "server_only"}, playback={"pace_tps": 12.0})
    device = SimulatedEndpoint(profile=SimulatedProfile(), name="device", place="device")
    made: dict[str, openai.AsyncOpenAI] = {
        TYPED: openai.AsyncOpenAI(**settings, max_retries=0),
        "disco": AsyncDisco(policy=unpaced(), price=price, **settings),
        "disco, with a local model": AsyncDisco(local=device, policy=unpaced(), price=price, **settings),
        "disco, paced": AsyncDisco(policy=paced, price=price, **settings),
    }
    try:
        yield made
    finally:
        for client in made.values():
            await client.close()
        await device.aclose()


async def _timed(
    read: Callable[[str], Awaitable[list[float]]], model: str, chunks: int
) -> tuple[float, float]:
    """Microseconds of this process per chunk, and from the call to the first one."""
    at, cpu_at = time.perf_counter(), time.process_time()
    seen = await read(model)
    cpu_s = time.process_time() - cpu_at
    if len(seen) != chunks:
        raise RuntimeError(f"{len(seen)} chunks came of {chunks}")
    return cpu_s / chunks * 1e6, (seen[0] - at) * 1e6


async def _whole_request(client: Client) -> tuple[float, float]:
    """Microseconds of a request without streaming, and of this process's CPU for it."""
    at, cpu_at = time.perf_counter(), time.process_time()
    answer = await client.chat.completions.create(messages=MESSAGES, model="short")
    took_s, cpu_s = time.perf_counter() - at, time.process_time() - cpu_at
    if not (answer.choices[0].message.content or "").endswith(f" word{SHORT - 1}"):
        raise RuntimeError("a part of the answer is lost")
    return took_s * 1e6, cpu_s * 1e6


async def measure(base_url: str, rounds: int, requests: int) -> None:
    found = []
    async with clients(base_url) as made:
        readers = {TYPED: partial(_typed, made[TYPED]), RAW: partial(_raw_lines, made[TYPED])}
        readers |= {name: partial(_typed, client) for name, client in made.items()}
        long = {name: partial(_timed, read, "long", LONG) for name, read in readers.items()}
        short = {name: partial(_timed, read, "short", SHORT) for name, read in readers.items()}
        asked = {name: partial(_whole_request, client) for name, client in made.items()}
        for ways, turns, warm_up in ((long, rounds, 2), (short, requests, 20), (asked, requests, 20)):
            gc.collect()
            runs = await by_turns(ways, turns, warm_up)
            found.append({name: list(zip(*figures, strict=True)) for name, figures in runs.items()})
    cpu, first = ({name: figures[n] for name, figures in found[n].items()} for n in (0, 1))
    table = Columns(
        "client <27 | CPU/chunk >10.2f | ratio >7.2f | TTFT >9.0f | added >+8.0f | p90 >8.0f | "
        "whole >9.0f | added >+8.0f | its CPU >9.0f | added >+8.0f"
    )
    for name, spans in cpu.items():
        row = [name, median(spans), ratio(spans, cpu[TYPED]), median(first[name])]
        row += [median(added(first[name], first[TYPED])), percentile(first[name], 0.9)]
        for mine, other in zip(found[2].get(name, ()), found[2][TYPED], strict=False):
            row += [median(mine), median(added(mine, other))]
        table.row(*row)
    share, added_ms = (
        ratio(cpu["disco"], cpu[TYPED]),
        median(added(found[2]["disco"][0], found[2][TYPED][0])) / 1e3,
    )
    print(f"target: CPU/chunk at most {OF_SDK} of the SDK's typed stream: {share:.3f}, {met(share, OF_SDK)}")
    print(
        f"target: at most {ADDED_MS} ms added to a whole request: {added_ms:.2f}, {met(added_ms, ADDED_MS)}"
    )


def main() -> None:
    given = options(
        __doc__,
        rounds=(15, "long streams per client"),
        requests=(200, "short requests per client and kind"),
        per_write=([16, 1], "chunks the server writes at a time"),
    )
    for per_write in given.per_write:
        print(
            f"\n{LONG} chunks a stream, {per_write} a write; medians of {given.rounds} streams, "
            f"{given.requests} requests; µs; ratio and added: to the SDK's typed stream in the same turn"
        )
        with serving(prepared, per_write) as base_url:
            asyncio.run(measure(base_url, given.rounds, given.requests))


if __name__ == "__main__":
    main()
