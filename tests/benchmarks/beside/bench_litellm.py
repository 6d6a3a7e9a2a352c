"""What a reader gets where the first of two servers fails: the SDK, litellm.Router, disco; and what each costs.

The first server stands behind a proxy that breaks its answers; the second one is healthy, and is the Router's fallback
and disco's backup. Each answer has a new client with its default settings, except that all of them wait for 2 s of
silence, and that litellm's retries are off where a fallback is there. litellm is asked in three ways: as it comes; with
`enable_mid_stream_fallback_continuation`; and with the deployments declared to continue an assistant's message, too
(`model_info: supports_assistant_prefill`).

- What breaks: the connection in mid-answer, its end without a finish reason, silence, an error event; a wrong key, a
  server that begins late.
- What is written when the connection breaks: text, text with tools offered, a tool call, JSON under a schema.
- What the second server does with a half-written answer: it repeats and continues it, continues it by vLLM's two flags
  only, refuses such messages (but does what it is told), starts anew. And a real one: llama-server with SmolLM2-135M.

litellm runs under the interpreter that `--litellm-python` or LITELLM_PYTHON names, or this one; without litellm there,
its columns are left out, by name. `--costs` measures instead, by turns: the time to the first text from a server that
answers at once (clients that are kept; the ratio to the SDK is the median of the turns), and importing and making a
client in a fresh interpreter.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import helpers.tests_path  # noqa: F401
import openai
from faults.proxy_server.fault import Fault, Kind, Moment, refusal
from faults.proxy_server.proxy import FaultProxy, fault_proxy
from helpers.measuring import by_turns, options, ratio
from helpers.prepared_server import STREAM_HEAD, Answer, event, piece, serving
from plain_server import TEXT, PlainServer, served
from router_answers import read
from scripted_server import chunk, sse
from servers import native_llama_server

from disco import AsyncDisco, Backup, Timeouts
from disco.endpoints.simulation.simulated_text import tokenise

SILENCE_S, CUT = 2.0, 20
PRICE = (0.15, 0.6)
TABLE = '{"rooms": [' + ", ".join(f'"room{number}"' for number in range(40)) + "]}"
CALL = '{"city": "' + " ".join(f"name{number}" for number in range(40)) + '"}'
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "rooms", "schema": {"type": "object"}}}
FAULTS = {
    "the connection breaks": Fault(Kind.CLOSE, Moment.MIDDLE, tokens=CUT),
    "ends without a finish reason": Fault(Kind.END, Moment.MIDDLE, tokens=CUT),
    "falls silent": Fault(Kind.STALL, Moment.MIDDLE, tokens=CUT),
    "an error event": Fault(
        Kind.ERROR, Moment.MIDDLE, tokens=CUT, body=b'{"error": {"message": "Overloaded.", "code": null}}'
    ),
    "wrong key (401)": refusal(401, "invalid_api_key"),
    "begins after 6 s": Fault(Kind.DELAY, Moment.HEAD, seconds=6.0),
}
BREAKS = FAULTS["the connection breaks"]
BREAKS_BYTES = Fault(Kind.CLOSE, Moment.MIDDLE, after_bytes=4000)


class ToolServer(PlainServer):
    """Calls the tool that it is offered, whatever was written before."""

    def pieces(self, body: Any) -> list[bytes] | int:
        told: dict[str, Any] = {"index": 0, "id": "call_1", "type": "function"}
        events = [chunk(tool_calls=[told | {"function": {"name": "look_up", "arguments": ""}}])]
        for word in CALL.split(" "):
            arguments = word if word == CALL.split(" ")[0] else f" {word}"
            events.append(chunk(tool_calls=[{"index": 0, "function": {"arguments": arguments}}]))
        return [*(sse(event, done=False) for event in events), sse(chunk(finish="tool_calls"))]


@dataclass(frozen=True)
class Case:
    """One line of the table. `whole`: the answer without a fault; None: that of the real server."""

    name: str
    second: str
    fault: Fault
    more: dict[str, Any]
    whole: str | None = TEXT


def cases() -> list[Case]:
    text = [Case(f"text: {name}", "echoes", fault, {}) for name, fault in FAULTS.items()]
    kinds = {
        "flags": "continues by two flags",
        "obeys": "refuses, but obeys",
        "restarts": "starts anew",
        "same again": "starts the same anew",
    }
    return [
        *text,
        Case("text, tools offered: breaks", "echoes", BREAKS, {"tools": [TOOL]}),
        Case("JSON by a schema: breaks", "echoes", BREAKS, {"response_format": SCHEMA}, TABLE),
        Case("a tool call: breaks", "calls", BREAKS_BYTES, {"tools": [TOOL]}, CALL),
        *(Case(f"text: breaks; second {said}", kind, BREAKS, {}) for kind, said in kinds.items()),
        Case("text: breaks; second is llama-server", "real", BREAKS, {}, None),
    ]


@contextlib.contextmanager
def servers(case: Case) -> Iterator[tuple[FaultProxy, str]]:
    """A first server behind a proxy, and the second one's base_url."""
    if case.second == "real":
        with native_llama_server(slots=2) as real, fault_proxy(real.base_url) as proxy:
            yield proxy, real.base_url
        return
    kind: Any = case.second
    made: Callable[..., PlainServer] = ToolServer if kind == "calls" else PlainServer
    text = case.whole or ""
    with (
        served(made("restarts", text)) as url,
        fault_proxy(url) as proxy,
        served(made("restarts" if kind == "calls" else kind, text)) as second,
    ):
        yield proxy, second


def judged(got: dict[str, Any], whole: str, real: bool) -> str:
    """What the reader has, in a few words."""
    text = got["text"] or got["arguments"]
    of = f"{len(text.split())} of {len(whole.split())} words"
    if got["error"] is not None:
        return f"{got['error']}, {of}"
    if text == whole:
        took = got["first_s"] if got["first_s"] == got["waited_s"] else got["waited_s"]
        return f"exact, wait {took:.2f} s"
    if whole.startswith(text):
        return f"short, as if complete: {of}"
    if text.find(text[:24], 1) > 0 or not real:
        return "BROKEN TEXT"
    return f"goes on in other words, wait {got['waited_s']:.2f} s"


Ask = Callable[[dict[str, Any], dict[str, Any], dict[str, Any]], Awaitable[dict[str, Any]]]
"""The first server, the second one, the request."""


async def by_sdk(first: dict[str, Any], second: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    del second  # it has none
    async with openai.AsyncOpenAI(base_url=first["base_url"], api_key="none", timeout=SILENCE_S) as client:
        return await read(client.chat.completions.create, model=first["model"], **request)


async def by_disco(first: dict[str, Any], second: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    backup = Backup(base_url=second["base_url"], api_key="none", model=second["model"], price=PRICE)
    clocks = Timeouts(first_content_s=SILENCE_S, gap_s=SILENCE_S)
    async with AsyncDisco(
        base_url=first["base_url"], api_key="none", price=PRICE, backups=[backup], timeouts=clocks
    ) as client:
        return await read(client.chat.completions.create, model=first["model"], **request)


class Router:
    """litellm in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, versions: dict[str, str]) -> None:
        self._process, self.versions = process, versions

    async def told(self, **more: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(more).encode() + b"\n")
        got: dict[str, Any] = json.loads(await self._process.stdout.readline())
        return got

    def way(self, *, continues: bool, prefill: bool) -> Ask:
        async def ask(
            first: dict[str, Any], second: dict[str, Any], request: dict[str, Any]
        ) -> dict[str, Any]:
            how = {"continues": continues, "prefill": prefill, "silence_s": SILENCE_S}
            return await self.told(first=first, second=second, request=request, **how)

        return ask


@contextlib.asynccontextmanager
async def router_at(interpreter: str) -> AsyncIterator[Router | None]:
    """Yield litellm's Router; None where the interpreter has none, which is said."""
    program = Path(__file__).with_name("router_program.py")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        interpreter,
        program,
        stdin=pipe,
        stdout=pipe,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment | {"LITELLM_LOG": "CRITICAL"},
        limit=2**20,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    line = await process.stdout.readline()
    if not line:
        print(
            f"litellm is left out: it is not installed for {interpreter} (--litellm-python, LITELLM_PYTHON)"
        )
        await process.wait()
        yield None
        return
    try:
        yield Router(process, json.loads(line))
    finally:
        process.stdin.close()
        await process.wait()


async def breaks(router: Router | None) -> None:
    """Print what a reader gets."""
    ways: dict[str, Ask] = {"openai SDK": by_sdk}
    if router is not None:
        ways["litellm.Router"] = router.way(continues=False, prefill=False)
        ways["… the flag"] = router.way(continues=True, prefill=False)
        ways["… and declared"] = router.way(continues=True, prefill=True)
    ways["disco"] = by_disco
    head, rows = ["case", *ways], []
    for case in cases():
        cells = [case.name]
        with servers(case) as (proxy, second_url):
            first = {"base_url": proxy.base_url, "model": "smollm2-135m"}
            second = {"base_url": second_url, "model": "smollm2-135m"}
            question = "Tell me, at some length, why the sea is salty."
            limit = 60 if case.second == "real" else 400
            request = {"messages": [{"role": "user", "content": question}], "max_tokens": limit, **case.more}
            whole = case.whole
            if whole is None:
                proxy.arm([None])
                whole = str((await by_sdk(first, second, request))["text"])
            for ask in ways.values():
                proxy.arm([case.fault] * 5)
                cells.append(judged(await ask(first, second, request), whole, case.whole is None))
        rows.append(cells)
    widths = [max(len(line[column]) for line in (head, *rows)) for column in range(len(head))]
    for line in (head, ["-" * width for width in widths], *rows):
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        print("| " + " | ".join(cells) + " |")


def prepared() -> Answer:
    """A server that answers at once."""
    events = [*(chunk(word) for word in tokenise(TEXT)), chunk(finish="stop")]
    wire = [STREAM_HEAD, *(event(one) for one in events), event(None), piece(b"")]

    async def answer(head: bytes, body: Any) -> AsyncIterator[bytes]:
        del head, body
        for data in wire:
            yield data

    return answer


async def costs(router: Router | None, interpreter: str, turns: int) -> None:
    """Print times to the first text beside the SDK's, and what an import takes."""
    request: dict[str, Any] = {"messages": [{"role": "user", "content": "Say something."}]}
    with serving(prepared) as url:
        own: dict[str, Any] = {"base_url": url, "api_key": "none", "price": PRICE}
        backup = Backup(base_url=url, api_key="none", model="m", price=PRICE)
        async with (
            openai.AsyncOpenAI(base_url=url, api_key="none") as sdk,
            AsyncDisco(**own) as alone,
            AsyncDisco(**own, backups=[backup]) as backed,
        ):
            clients = {"openai SDK": sdk, "disco": alone, "disco, with a backup": backed}
            ways: dict[str, Callable[[], Awaitable[dict[str, Any]]]] = {
                name: partial(read, client.chat.completions.create, model="m", **request)
                for name, client in clients.items()
            }
            if router is not None:
                server = {"base_url": url, "model": "m"}
                ways["litellm.Router"] = partial(router.told, first=server, request=request, keep=True)
            found = await by_turns(ways, turns, warm_up=10)
    spans = {name: [got["first_s"] for got in gots] for name, gots in found.items()}
    for name, took_s in spans.items():
        of_sdk = ratio(took_s, spans["openai SDK"])
        print(
            f"{name:<22} first text after {1e3 * statistics.median(took_s):5.2f} ms, {of_sdk:4.2f} times the SDK's"
        )

    def took(python: str, statement: str) -> float:
        code = f"import time; at = time.perf_counter(); {statement}; print(time.perf_counter() - at)"
        environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        ran = subprocess.run(
            [python, "-c", code], check=True, capture_output=True, text=True, env=environment
        )
        return float(ran.stdout.splitlines()[-1])

    made = {
        "openai.AsyncOpenAI()": (sys.executable, "import openai; openai.AsyncOpenAI(api_key='x')"),
        "disco.AsyncDisco()": (sys.executable, "import disco; disco.AsyncDisco(api_key='x')"),
    }
    if router is not None:
        made["litellm.Router()"] = (interpreter, "import litellm; litellm.Router()")
    ways = {name: lambda given=given: took(*given) for name, given in made.items()}
    for name, spans in (await by_turns(ways, max(5, turns // 20))).items():
        print(f"{name:<22} imported and made in {statistics.median(spans):5.2f} s")


async def main() -> None:
    given = options(
        __doc__,
        litellm_python=(os.environ.get("LITELLM_PYTHON"), "interpreter of an environment with litellm"),
        costs=False,
        turns=(200, "answers of each client, of --costs"),
    )
    interpreter = given.litellm_python or sys.executable
    async with router_at(interpreter) as router:
        told = router.versions if router is not None else {}
        print(
            ", ".join(
                [f"openai {version('openai')}", *(f"{name} {is_} (its own)" for name, is_ in told.items())]
            )
        )
        await (costs(router, interpreter, given.turns) if given.costs else breaks(router))


if __name__ == "__main__":
    asyncio.run(main())
