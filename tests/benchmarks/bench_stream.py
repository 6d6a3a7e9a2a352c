"""What the client costs: CPU per chunk, warm time to first token, and the time of a whole request.

Run `python tests/benchmarks/bench_stream.py`. A server in a process of its own gives prepared bytes, so that
what is measured is the client. `AsyncDisco` and the bare SDK take turns on the same server in one process;
compare the ratios and the paired differences, not the absolute figures. Nothing here decides by time: it prints.

- CPU per chunk: `time.process_time` of this process over whole streams of 2,000 chunks, per chunk.
- Warm TTFT: from the call of `create()` to the first chunk with content.
- Added TTFT: median of the differences to the SDK's typed stream in the same turn.
- Whole request: `create(stream=False)` of a short answer, which disco reads as a stream and puts together; wall time,
  CPU of this process, and the median of what disco adds in the same turn.

Targets: CPU per chunk at most 0.25 of the SDK's typed stream; at most 0.3 ms added to a whole request. Other ways of
reading a stream, and litellm beside them: `bench_helpers.py`.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import openai
from helpers.measuring import STREAM_HEAD, document, event, met, piece, serving, shuffled, unpaced
from helpers.measuring import options as command_line

from disco import AsyncDisco
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

OF_SDK, ADDED_MS = 0.25, 0.3
LONG, SHORT = 2000, 16  # content chunks of an answer
MESSAGES: Any = [{"role": "user", "content": "Say something long."}]
TYPED, RAW = "openai, typed stream", "openai, raw lines"

# ---------------------------------------------------------------------------------------- the server


def _event(delta: dict[str, str], finish: str | None = None) -> bytes:
    """A chunk with the fields and the length that OpenAI's own have."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return event({**_envelope("chat.completion.chunk"), "choices": [choice], "usage": None})


def _envelope(kind: str) -> dict[str, object]:
    return {
        "id": "chatcmpl-AbCdEfGhIjKlMnOpQrStUvWxYz",
        "object": kind,
        "created": 1753000000,
        "model": "some-model-2026-01-01",
        "service_tier": "default",
        "system_fingerprint": "fp_0123456789",
    }


def _stream(chunks: int, per_write: int) -> list[bytes]:
    """What the server writes, one piece a write: headers and role chunk, content, finish, usage, [DONE]."""
    content = [_event({"content": f" word{n % 100}"}) for n in range(chunks)]
    tail = _event({}, "stop")
    tail += event({**_envelope("chat.completion.chunk"), "choices": [], "usage": _usage(chunks)})
    tail += event(None) + piece(b"")
    writes = [b"".join(content[start : start + per_write]) for start in range(0, chunks, per_write)]
    return [STREAM_HEAD + _event({"role": "assistant", "content": ""}), *writes, tail]


def _usage(chunks: int) -> dict[str, int]:
    return {"prompt_tokens": 12, "completion_tokens": chunks, "total_tokens": 12 + chunks}


def _whole(chunks: int) -> bytes:
    text = "".join(f" word{n % 100}" for n in range(chunks))
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return document({**_envelope("chat.completion"), "choices": [choice], "usage": _usage(chunks)})


def _responses(chunks: int, per_write: int) -> list[bytes]:
    """The same answer as the Responses API streams it."""
    words = [f" word{n % 100}" for n in range(chunks)]
    part: dict[str, object] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    item: dict[str, object] = {"id": "msg_0123456789", "type": "message", "role": "assistant", "content": []}
    answer: dict[str, object] = {
        "id": "resp_0123456789",
        "object": "response",
        "created_at": 1753000000,
        "model": "some-model",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "status": "in_progress",
    }
    here: dict[str, object] = {"item_id": "msg_0123456789", "output_index": 0, "content_index": 0}
    full = {**part, "text": "".join(words)}
    whole = {**item, "status": "completed", "content": [full]}
    usage = {
        "input_tokens": 12,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": chunks,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 12 + chunks,
    }
    ended = {**answer, "status": "completed", "output": [whole], "usage": usage}
    events: list[dict[str, object]] = [
        {"type": "response.created", "response": answer},
        {"type": "response.in_progress", "response": answer},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress"}},
        {"type": "response.content_part.added", **here, "part": part},
        *({"type": "response.output_text.delta", **here, "delta": word, "logprobs": []} for word in words),
        {"type": "response.output_text.done", **here, "text": full["text"], "logprobs": []},
        {"type": "response.content_part.done", **here, "part": full},
        {"type": "response.output_item.done", "output_index": 0, "item": whole},
        {"type": "response.completed", "response": ended},
    ]
    wire = [
        event({**body, "sequence_number": number}, str(body["type"])) for number, body in enumerate(events)
    ]
    writes = [b"".join(wire[start : start + per_write]) for start in range(0, len(wire), per_write)]
    return [STREAM_HEAD, *writes, piece(b"")]


def prepared(per_write: int) -> Callable[[bytes, Any], AsyncIterator[bytes]]:
    """A server's answers, so many chunks a write."""
    streams = {"long": _stream(LONG, per_write), "short": _stream(SHORT, per_write)}
    responses = {"long": _responses(LONG, per_write)}
    wholes = {"long": [_whole(LONG)], "short": [_whole(SHORT)]}

    async def answer(head: bytes, body: Any) -> AsyncIterator[bytes]:
        streamed = responses if b"/responses " in head else streams
        for data in (streamed if body.get("stream") else wholes)[body["model"]]:
            yield data

    return answer


# ---------------------------------------------------------------------------------------- the clients

Read = Callable[[str], Awaitable[tuple[int, float]]]
"""Reads one stream of an answer ("long" or "short"); gives (content chunks, time of the first)."""


def _typed(client: openai.AsyncOpenAI) -> Read:
    async def read(model: str) -> tuple[int, float]:
        seen, first_at = 0, 0.0
        stream = await client.chat.completions.create(messages=MESSAGES, model=model, stream=True)
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                if not seen:
                    first_at = time.perf_counter()
                seen += 1
        return seen, first_at

    return read


def _raw_lines(client: openai.AsyncOpenAI) -> Read:
    async def read(model: str) -> tuple[int, float]:
        seen, first_at = 0, 0.0
        raw = client.chat.completions.with_streaming_response
        async with raw.create(messages=MESSAGES, model=model, stream=True) as response:
            async for line in response.iter_lines():
                if '"content":" ' in line:
                    if not seen:
                        first_at = time.perf_counter()
                    seen += 1
        return seen, first_at

    return read


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


def _readers(made: dict[str, openai.AsyncOpenAI]) -> dict[str, Read]:
    readers = {name: _typed(client) for name, client in made.items()}
    return {TYPED: readers.pop(TYPED), RAW: _raw_lines(made[TYPED]), **readers}


# ---------------------------------------------------------------------------------------- measuring


async def cpu_per_chunk(made: dict[str, openai.AsyncOpenAI], rounds: int) -> dict[str, list[float]]:
    """Microseconds of this process per content chunk, by client and round."""
    readers = _readers(made)
    out: dict[str, list[float]] = {name: [] for name in readers}
    for turn in range(rounds + 2):  # the first two warm up
        for name, read in shuffled(readers):
            cpu_at = time.process_time()
            seen, _ = await read("long")
            cpu_s = time.process_time() - cpu_at
            if seen != LONG:
                raise RuntimeError(f"{name} read {seen} chunks of {LONG}")
            if turn > 1:
                out[name].append(cpu_s / LONG * 1e6)
    return out


async def ttft(made: dict[str, openai.AsyncOpenAI], requests: int) -> dict[str, list[float]]:
    """Microseconds from `create()` to the first content, by client and turn."""
    readers = _readers(made)
    out: dict[str, list[float]] = {name: [] for name in readers}
    for turn in range(requests + 20):
        for name, read in shuffled(readers):
            at = time.perf_counter()
            seen, first_at = await read("short")
            if seen != SHORT:
                raise RuntimeError(f"{name} read {seen} chunks of {SHORT}")
            if turn >= 20:
                out[name].append((first_at - at) * 1e6)
    return out


Spans = dict[str, list[float]]


async def whole_request(made: dict[str, openai.AsyncOpenAI], requests: int) -> tuple[Spans, Spans]:
    """Microseconds of a request without streaming, and of this process's CPU for it, by client and turn."""
    out: Spans = {name: [] for name in made}
    cpu: Spans = {name: [] for name in made}
    for turn in range(requests + 20):
        for name, client in shuffled(made):
            at, cpu_at = time.perf_counter(), time.process_time()
            answer = await client.chat.completions.create(messages=MESSAGES, model="short")
            took_s, cpu_s = time.perf_counter() - at, time.process_time() - cpu_at
            if not (answer.choices[0].message.content or "").endswith(f" word{SHORT - 1}"):
                raise RuntimeError(f"{name} lost a part of the answer")
            if turn >= 20:
                out[name].append(took_s * 1e6)
                cpu[name].append(cpu_s * 1e6)
    return out, cpu


async def measure(base_url: str, rounds: int, requests: int) -> None:
    """Run all three and print one table."""
    async with clients(base_url) as made:
        gc.collect()
        cpu = await cpu_per_chunk(made, rounds)
        gc.collect()
        first = await ttft(made, requests)
        gc.collect()
        whole, whole_cpu = await whole_request(made, requests)
    print(
        f"{'client':<27}{'CPU/chunk':>10}{'ratio':>7}{'TTFT':>9}{'added':>8}{'p90':>8}"
        f"{'whole':>9}{'added':>8}{'its CPU':>9}{'added':>8}"
    )
    for name, spans in cpu.items():
        added = sorted(mine - sdk for mine, sdk in zip(first[name], first[TYPED], strict=True))
        row = f"{name:<27}{statistics.median(spans):>10.2f}{_ratio(spans, cpu[TYPED]):>7.2f}"
        row += f"{statistics.median(first[name]):>9.0f}{statistics.median(added):>+8.0f}"
        row += f"{sorted(first[name])[int(0.9 * requests)]:>8.0f}"
        if name in whole:
            for of, width in ((whole, 9), (whole_cpu, 9)):
                row += f"{statistics.median(of[name]):>{width}.0f}{_added(of[name], of[TYPED]):>+8.0f}"
        print(row)
    ratio, added_ms = _ratio(cpu["disco"], cpu[TYPED]), _added(whole["disco"], whole[TYPED]) / 1e3
    print(f"target: CPU/chunk at most {OF_SDK} of the SDK's typed stream: {ratio:.3f}, {met(ratio, OF_SDK)}")
    print(
        f"target: at most {ADDED_MS} ms added to a whole request: {added_ms:.2f}, {met(added_ms, ADDED_MS)}"
    )


def _added(mine: list[float], other: list[float]) -> float:
    return statistics.median(a - b for a, b in zip(mine, other, strict=True))


def _ratio(mine: list[float], other: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(mine, other, strict=True))


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="long streams per client")
    parser.add_argument("--requests", type=int, default=200, help="short requests per client and kind")
    parser.add_argument(
        "--per-write", type=int, nargs="*", default=[16, 1], help="chunks the server writes at a time"
    )
    options = parser.parse_args()
    for per_write in options.per_write:
        print(
            f"\n{LONG} chunks a stream, {per_write} a write; medians of {options.rounds} streams, "
            f"{options.requests} requests; µs; ratio and added: to the SDK's typed stream in the same turn"
        )
        with serving(prepared, per_write) as base_url:
            asyncio.run(measure(base_url, options.rounds, options.requests))


if __name__ == "__main__":
    main()
