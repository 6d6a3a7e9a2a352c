"""What a client costs: CPU per chunk, time to first token, the time of a whole request; or, with --calls, its calls.

Compare the ratios and the paired differences, not the absolute figures: the clients ask one server by turns. Whole:
`create(stream=False)`, a short answer.

- "disco" is `AsyncDisco` with a server alone, and "disco, sync" `Disco`: a request takes the SDK's own way to the
  server, and the route record is written beside it. The targets are theirs.
- "disco, with a local model": a second endpoint could answer, so that every request goes through a session. The server
  answers all of them. "…, paced" holds the text to a reader's pace of 12 tokens/s for as long as the preset lets it.
- "openai, raw lines": the SDK's stream before it makes objects of it.
- litellm runs in a process of its own, under the interpreter that `--litellm-python` or LITELLM_PYTHON names (its pins
  and this SDK's exclude each other), and is left out without one. Its figures are those of its process.

--calls counts calls of Python functions instead, which other work on the machine does not change.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from statistics import median
from typing import Any

import openai
from helpers.call_counts import calls_of
from helpers.litellm_process import LITELLM, PYTHON, Ask, litellm_at
from helpers.measuring import Columns, added, by_turns, met, options, percentile, ratio, unpaced
from helpers.prepared_server import NOT_FOUND, STREAM_HEAD, document, event, piece, serving

from disco import AsyncDisco, Disco
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

OF_SDK = 0.25  # most CPU per chunk, of the SDK's typed stream
ADDED_MS, TIMES = 0.1, 1.1  # most that a whole request takes more than the SDK's: one of the two
LONG, SHORT = 2000, 16  # content chunks of an answer
MESSAGES: Any = [{"role": "user", "content": "Say something long."}]
TYPED, RAW, SYNC = "openai, typed stream", "openai, raw lines", "openai, sync"
ALONE, ALONE_SYNC = "disco", "disco, sync"
BESIDE = {ALONE_SYNC: SYNC, SYNC: SYNC}  # which of the SDK's clients another is compared with; else TYPED


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
        prepared_answers = streamed if body is not None and body.get("stream") else wholes
        # Other addresses, which a probe of how the server continues asks, are not there.
        for data in prepared_answers.get((body or {}).get("model"), [NOT_FOUND]):
            yield data

    return answer


Client = openai.AsyncOpenAI | openai.OpenAI


Seen = list[tuple[float, str]]
"""When each piece of text had come, and the text."""


async def _typed(client: Client, model: str) -> Seen:
    now = time.perf_counter
    if isinstance(client, openai.OpenAI):
        chunks = client.chat.completions.create(messages=MESSAGES, model=model, stream=True)
        return [
            (now(), text) for chunk in chunks if chunk.choices and (text := chunk.choices[0].delta.content)
        ]
    stream = await client.chat.completions.create(messages=MESSAGES, model=model, stream=True)
    return [
        (now(), text) async for chunk in stream if chunk.choices and (text := chunk.choices[0].delta.content)
    ]


async def _raw_lines(client: openai.AsyncOpenAI, model: str) -> Seen:
    now, raw = time.perf_counter, client.chat.completions.with_streaming_response
    async with raw.create(messages=MESSAGES, model=model, stream=True) as response:
        return [(now(), line) async for line in response.iter_lines() if '"content":" ' in line]


@asynccontextmanager
async def clients(base_url: str) -> AsyncIterator[dict[str, Client]]:
    """All clients by name, each with a connection of its own; the SDK first."""
    settings: Any = {"base_url": base_url, "api_key": "none"}
    price = (0.15, 0.6)
    # The server writes the whole answer: what a migration costs is in bench_migration.py.
    paced = Preset(
        dispatch={"policy": "server_only"}, playback={"pace_tps": 12.0}, migration={"enabled": False}
    )
    device = SimulatedEndpoint(profile=SimulatedProfile(), name="device", place="device")
    behind: Any = {"local": device, "price": price, **settings}
    async with AsyncExitStack() as stack:
        stack.push_async_callback(device.aclose)
        # A server alone takes the preset that a user has who names none.
        made: dict[str, Client] = {
            TYPED: openai.AsyncOpenAI(**settings, max_retries=0),
            ALONE: AsyncDisco(price=price, **settings),
            "disco, with a local model": AsyncDisco(policy=unpaced(), **behind),
            "disco, local model, paced": AsyncDisco(policy=paced, **behind),
            SYNC: openai.OpenAI(**settings, max_retries=0),
            ALONE_SYNC: Disco(price=price, **settings),
        }
        for client in made.values():
            if isinstance(client, openai.OpenAI):
                stack.callback(client.close)
            else:
                stack.push_async_callback(client.close)
        yield made


async def _timed(read: Callable[[str], Awaitable[Seen]], model: str, chunks: int) -> tuple[float, float]:
    """Microseconds of this process per chunk, and from the call to the first one."""
    at, cpu_at = time.perf_counter(), time.process_time()
    seen = await read(model)
    cpu_s = time.process_time() - cpu_at
    # A paced client may join chunks or divide them, so words are counted.
    _check("".join(text for _, text in seen).count(" word"), chunks)
    return cpu_s / chunks * 1e6, (seen[0][0] - at) * 1e6


def _check(words: int, chunks: int) -> None:
    if words != chunks:
        raise RuntimeError(f"{words} words came of {chunks}")


async def _whole(client: Client) -> str:
    """The text of a request without streaming."""
    asked: Any = {"messages": MESSAGES, "model": "short"}
    if isinstance(client, openai.OpenAI):
        answer = client.chat.completions.create(**asked)
    else:
        answer = await client.chat.completions.create(**asked)
    text = answer.choices[0].message.content or ""
    _check(text.count(" word"), SHORT)
    return text


async def _whole_request(client: Client) -> tuple[float, float]:
    """Microseconds of a request without streaming, and of this process's CPU for it."""
    at, cpu_at = time.perf_counter(), time.process_time()
    await _whole(client)
    return (time.perf_counter() - at) * 1e6, (time.process_time() - cpu_at) * 1e6


def _litellm_stream(ask: Ask, model: str, chunks: int) -> tuple[float, float]:
    """As `_timed`."""
    answer = ask(model, stream=True)
    _check(answer["chunks"], chunks)
    return answer["cpu_s"] / chunks * 1e6, answer["first_s"] * 1e6


def _litellm_whole(ask: Ask) -> tuple[float, float]:
    """As `_whole_request`."""
    answer = ask("short", stream=False)
    _check(answer["text"].count(" word"), SHORT)
    return answer["took_s"] * 1e6, answer["cpu_s"] * 1e6


Figures = dict[str, list[tuple[float, ...]]]
"""By client: each figure's values, turn by turn."""


async def measure(base_url: str, rounds: int, requests: int, litellm: Ask | None) -> None:
    """Print one table, and whether the targets are met."""
    found: list[Figures] = []
    async with clients(base_url) as made:
        sdk: Any = made[TYPED]
        readers: dict[str, Any] = {TYPED: partial(_typed, sdk), RAW: partial(_raw_lines, sdk)}
        readers |= {name: partial(_typed, client) for name, client in made.items()}
        long: dict[str, Any] = {name: partial(_timed, read, "long", LONG) for name, read in readers.items()}
        short: dict[str, Any] = {
            name: partial(_timed, read, "short", SHORT) for name, read in readers.items()
        }
        whole: dict[str, Any] = {name: partial(_whole_request, client) for name, client in made.items()}
        if litellm is not None:
            long[LITELLM] = partial(_litellm_stream, litellm, "long", LONG)
            short[LITELLM] = partial(_litellm_stream, litellm, "short", SHORT)
            whole[LITELLM] = partial(_litellm_whole, litellm)
        for ways, turns, warm_up in ((long, rounds, 2), (short, requests, 20), (whole, requests, 20)):
            gc.collect()
            runs = await by_turns(ways, turns, warm_up)
            found.append({name: list(zip(*figures, strict=True)) for name, figures in runs.items()})
    show(*found)
    for name in (ALONE, ALONE_SYNC):
        targets(name, *found)


def show(long: Figures, short: Figures, whole: Figures) -> None:
    """Print one row for each client."""
    table = Columns(
        "client <27 | CPU/chunk >10.2f | ratio >7.2f | TTFT >9.0f | added >+8.0f | p90 >8.0f | "
        "whole >9.0f | added >+8.0f | ratio >7.2f | its CPU >9.0f | added >+8.0f"
    )
    for name, (cpu, _) in long.items():
        sdk = BESIDE.get(name, TYPED)
        first, sdk_first = short[name][1], short[sdk][1]
        row: list[object] = [name, median(cpu), ratio(cpu, long[sdk][0]), median(first)]
        row += [median(added(first, sdk_first)), percentile(first, 0.9)]
        if name in whole:
            (took, its_cpu), (sdk_took, sdk_cpu) = whole[name], whole[sdk]
            row += [median(took), median(added(took, sdk_took)), ratio(took, sdk_took)]
            row += [median(its_cpu), median(added(its_cpu, sdk_cpu))]
        table.row(*row)


def targets(name: str, long: Figures, short: Figures, whole: Figures) -> None:
    """Print whether a client with a server alone costs no more than the SDK's."""
    sdk = BESIDE.get(name, TYPED)
    share = ratio(long[name][0], long[sdk][0])
    more_ms = median(added(whole[name][0], whole[sdk][0])) / 1e3
    times, of_cpu = (ratio(mine, other) for mine, other in zip(whole[name], whole[sdk], strict=True))
    either = "met" if more_ms <= ADDED_MS or times <= TIMES else "missed"
    print(f"target, {name}: CPU/chunk at most {OF_SDK} of the SDK's: {share:.3f}, {met(share, OF_SDK)}")
    print(
        f"target, {name}: a whole request at most {ADDED_MS} ms more than the SDK's ({more_ms:+.2f}, "
        f"{met(more_ms, ADDED_MS)}) or {TIMES} times ({times:.2f}, {met(times, TIMES)}): {either}; "
        f"its CPU: {of_cpu:.2f} times"
    )


async def count(base_url: str, requests: int) -> None:
    """Print the calls of a request, in the thread that asks."""
    print(f"\ncalls of functions for a request, libraries included; {SHORT} chunks; medians of {requests}")
    table = Columns(
        "client <27 | whole >8.0f | of SDK >8.2f | C calls >9.0f | "
        "stream >9.0f | of SDK >8.2f | C calls >9.0f"
    )
    found: dict[str, list[float]] = {}
    async with clients(base_url) as made:
        for name, client in made.items():
            asked: list[Callable[[], Any]] = [partial(_whole, client), partial(_typed, client, "short")]
            found[name] = [calls for ask in asked for calls in await calls_of(ask, requests)]
            whole, whole_c, stream, stream_c = found[name]
            sdk = found[BESIDE.get(name, TYPED)]
            table.row(name, whole, whole / sdk[0], whole_c, stream, stream / sdk[2], stream_c)


def main() -> None:
    given = options(
        __doc__,
        rounds=(15, "long streams per client"),
        requests=(200, "short requests per client and kind"),
        per_write=([16, 1], "chunks the server writes at a time"),
        litellm_python=PYTHON,
        calls=(False, "count calls of functions instead, of so many requests"),
    )
    if given.calls:
        with serving(prepared, SHORT) as base_url:
            asyncio.run(count(base_url, given.requests))
        return
    for per_write in given.per_write:
        with (
            serving(prepared, per_write) as base_url,
            litellm_at(given.litellm_python, base_url) as (version, litellm),
        ):
            beside = f"; openai {openai.__version__}" + (f", litellm {version}" if version else "")
            print(
                f"\n{LONG} chunks a stream, {per_write} a write; medians of {given.rounds} streams, "
                f"{given.requests} requests; µs; ratio and added: to the SDK's client of the same kind in the same "
                f"turn{beside}"
            )
            asyncio.run(measure(base_url, given.rounds, given.requests, litellm))


if __name__ == "__main__":
    main()
