"""CPU per chunk through every way the SDK has of reading a stream: `openai`, disco, and `litellm` beside them.

Each way is measured with a server alone (the SDK's own way to the server) and with a local model behind (a session,
in which the server answers). With a server alone `/responses` is the server's, so that its events are built by the SDK
as ever: the target there is 1.1 of the SDK's.

litellm runs in a process of its own, under the interpreter that `--litellm-python` or LITELLM_PYTHON names (its pins
and this SDK's exclude each other), and is left out without one.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import statistics
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import openai
from bench_stream import LONG, MESSAGES, prepared
from helpers.litellm_process import LITELLM, PYTHON, Ask, litellm_at
from helpers.measuring import Columns, by_turns, met, options, ratio, unpaced
from helpers.prepared_server import serving

from disco import AsyncDisco, Disco
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile

OF_SDK, OF_LITELLM, RESPONSES_OF_SDK = 0.25, 0.06, 1.1
ASKED: Any = {"messages": MESSAGES, "model": "long"}
SDK, ALONE, SESSION = "openai", "server alone", "session"

Client = Any


async def _now(result: Any) -> Any:
    """Of either kind of client."""
    return await result if inspect.isawaitable(result) else result


def _content(chunk: Any) -> bool:
    return bool(chunk.choices and chunk.choices[0].delta.content)


def _delta(event: Any) -> bool:
    return event.type in ("content.delta", "response.output_text.delta") and bool(event.delta)


def _create(client: Client) -> Any:
    return client.chat.completions.create(**ASKED, stream=True)


def _events(client: Client) -> Any:
    return client.chat.completions.stream(**ASKED)


def _raw(client: Client) -> Any:
    return client.chat.completions.with_raw_response.create(**ASKED, stream=True)


def _streaming(client: Client) -> Any:
    return client.chat.completions.with_streaming_response.create(**ASKED, stream=True)


def _responses(client: Client) -> Any:
    return client.responses.create(model="long", input="Say something long.", stream=True)


ASYNC = {
    "create(stream=True)": (_create, _content),
    ".stream(), all events": (_events, _delta),
    "with_raw_response, parsed": (_raw, _content),
    "with_streaming_response, parsed": (_streaming, _content),
    "responses.create(stream=True)": (_responses, _delta),
}
SYNC = {
    "sync create(stream=True)": (_create, _content),
    "sync .stream(), all events": (_events, _delta),
    "sync with_raw_response, parsed": (_raw, _content),
    "sync responses.create": (_responses, _delta),
}


async def _read(client: Client, way: str) -> int:
    """How many chunks with content, or events with a text, come."""
    make, counts = (ASYNC | SYNC)[way]
    async with AsyncExitStack() as stack:
        stream = await _now(make(client))
        if hasattr(stream, "__aenter__"):
            stream = await stack.enter_async_context(stream)
        elif hasattr(stream, "__enter__"):
            stream = stack.enter_context(stream)
        if hasattr(stream, "parse"):
            stream = await _now(stream.parse())
        if hasattr(stream, "__aiter__"):
            return sum([counts(each) async for each in stream])
        return sum([counts(each) for each in stream])


Spans = dict[tuple[str, str], list[float]]
"""CPU seconds of each stream, by way of reading and by client."""


def _check(name: str, seen: int) -> None:
    if seen != LONG:
        raise RuntimeError(f"{name} read {seen} chunks of {LONG}")


def _litellm_s(ask: Ask) -> float:
    answer = ask("long", stream=True)
    _check(LITELLM, answer["chunks"])
    return float(answer["cpu_s"])


async def _cpu_s(client: Client, way: str) -> float:
    gc.collect()
    cpu_at = time.process_time()
    seen = await _read(client, way)
    cpu_s = time.process_time() - cpu_at
    _check(way, seen)
    return cpu_s


async def measure(base_url: str, rounds: int, litellm: Ask | None) -> Spans:
    """All ways of reading, in random order, in each round; the first round warms up."""
    settings: Any = {"base_url": base_url, "api_key": "none", "max_retries": 0}
    own: Any = {"price": (0.15, 0.6), **settings}
    async with AsyncExitStack() as stack:
        behind = [SimulatedEndpoint("device", SimulatedProfile(), place="device") for _ in range(2)]
        for device in behind:
            stack.push_async_callback(device.aclose)
        session, session_sync = ({"local": device, "policy": unpaced(), **own} for device in behind)
        kinds: dict[str, tuple[Any, Any]] = {
            SDK: (openai.AsyncOpenAI(**settings), openai.OpenAI(**settings)),
            ALONE: (AsyncDisco(**own), Disco(**own)),
            SESSION: (AsyncDisco(**session), Disco(**session_sync)),
        }
        ways: dict[tuple[str, str], Callable[[], Any]] = {}
        for kind, (client, sync_client) in kinds.items():
            await stack.enter_async_context(client)
            stack.enter_context(sync_client)
            ways |= {(way, kind): partial(_cpu_s, client, way) for way in ASYNC}
            ways |= {(way, kind): partial(_cpu_s, sync_client, way) for way in SYNC}
        if litellm is not None:
            ways[LITELLM, LITELLM] = partial(_litellm_s, litellm)
        return await by_turns(ways, rounds)


def show(spans: Spans) -> None:
    """Two rows for each way of reading."""
    table = Columns(
        "way of reading <34 | disco with <14 | openai >9.1f | disco >9.1f | of openai >11.3f | target >8.2f | "
        " >8 | of litellm >12.3f | <= 0.06 >9"
    )
    beside = spans.get((LITELLM, LITELLM))
    for way in (*ASYNC, *SYNC):
        sdk = spans[way, SDK]
        for kind in (ALONE, SESSION):
            ours = spans[way, kind]
            target = RESPONSES_OF_SDK if kind == ALONE and "responses" in way else OF_SDK
            row = [way, kind, _us(sdk), _us(ours), ratio(ours, sdk), target, met(ratio(ours, sdk), target)]
            row += (
                ["–", "–"] if beside is None else [ratio(ours, beside), met(ratio(ours, beside), OF_LITELLM)]
            )
            table.row(*row)
    if beside is not None:
        table.row(LITELLM, "", _us(beside))


def _us(spans: list[float]) -> float:
    return statistics.median(spans) / LONG * 1e6


def main() -> None:
    given = options(
        __doc__,
        rounds=(7, "streams per client and way of reading"),
        per_write=(1, "chunks the server writes at a time"),
        litellm_python=PYTHON,
    )
    head = (
        f"{LONG} chunks a stream, {given.per_write} a write; medians of {given.rounds} streams; CPU µs/chunk"
        f"; openai {openai.__version__}"
    )
    with (
        serving(prepared, given.per_write) as base_url,
        litellm_at(given.litellm_python, base_url) as (version, litellm),
    ):
        print(head + (f", litellm {version}" if version else ""))
        show(asyncio.run(measure(base_url, given.rounds, litellm)))


if __name__ == "__main__":
    main()
