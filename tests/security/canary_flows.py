"""A program that does everything an application does with disco, good and bad, and writes down all it can see of it.

Run as a process of its own by test_canary.py, which then searches everything it wrote. Writes into its working folder.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import json
import logging
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import openai
from canaries import ANSWER, HEADER, KEY, MESSAGES, PASSWORD, PROMPT, SYSTEM, TOOL
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from scripted_server import (
    RESET,
    STREAM_HEAD,
    ScriptedServer,
    answer,
    chunk,
    piece,
    scripted_server,
    sse,
    stream,
    usage,
)

from disco import AsyncDisco, Backup, Disco, RouteLog
from disco.dispatch import Preset
from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.endpoints.openai_api import OpenAIEndpoint
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import EndpointFailure, FailureKind
from disco.request import Request

WORDS = [chunk(word + " ") for word in ANSWER.split()]
GOOD = stream(sse(*WORDS, chunk(finish="stop"), usage(20, 10)))
SLOW = [STREAM_HEAD, *(step for word in WORDS * 20 for step in (piece(sse(word, done=False)), 0.01))]
TOOL_TEXT: str = TOOL["function"]["description"]
SILENT_S = 30.0
QUOTE = f"You sent {PROMPT} after {SYSTEM}, with {TOOL_TEXT} by {KEY} and {HEADER}."


def refusal(status: str, code: str, message: str = QUOTE) -> list[Any]:
    error = {"message": message, "type": "invalid_request_error", "code": code, "param": None}
    return answer(json.dumps({"error": error}).encode(), status=status)


# What a server answers, by what goes wrong. All of them quote all they were sent.
FAILURES: dict[str, list[Any]] = {
    "401": refusal("401 Unauthorized", "invalid_api_key"),
    "401 as text": answer(QUOTE.encode(), status="401 Unauthorized", content_type="text/plain"),
    "429": refusal("429 Too Many Requests", "rate_limit_exceeded"),
    "400": refusal("400 Bad Request", "invalid_value"),
    "422 of another shape": answer(json.dumps({"detail": [{"msg": QUOTE}]}).encode(), status="422 No"),
    "context": refusal(
        "400 Bad Request", "context_length_exceeded", f"maximum context length exceeded: {QUOTE}"
    ),
    "500": answer(f"<html>{QUOTE}</html>".encode(), status="500 Oops", content_type="text/html"),
    "web page": answer(f"<html>{QUOTE}</html>".encode(), content_type="text/html"),
    "one document": answer(json.dumps({"note": QUOTE}).encode()),
    "reset": [STREAM_HEAD, piece(sse(*WORDS[:4], done=False)), RESET],
    "incomplete": stream(sse(*WORDS[:4])),
    "garbage": stream(sse(WORDS[0], done=False), f"data: {{{QUOTE}\n\n".encode()),
    "wrong types": stream(sse(WORDS[0], {**WORDS[1], "choices": [{"delta": {"content": {"x": QUOTE}}}]})),
    "error in stream": stream(sse(*WORDS[:4], {"error": {"message": QUOTE, "code": "x"}})),
    "odd reason": stream(sse(*WORDS, chunk(finish=PROMPT))),
    "silence": [SILENT_S],
    "silence in mid-answer": [STREAM_HEAD, piece(sse(*WORDS[:4], done=False)), SILENT_S],
}


def device(**profile: Any) -> SimulatedEndpoint:
    made = SimulatedProfile(**{"answer": ANSWER * 3, "gap_s": 0.001, **profile})
    return SimulatedEndpoint("device", made, place="device")


TEXT_ITSELF = ("Delta", "Release", "DiscoStream", "SimulatedProfile")
# The SDK's own attributes hold what its client was given.
SDKS = {"api_key", "_custom_headers", "_custom_query", "_base_url"}


class Printed(dict):
    """By type, whether its objects are disco's to print. A dict, for this is asked of every object there is."""

    def __missing__(self, kind: type) -> bool:
        self[kind] = str(kind.__module__).startswith("disco") and kind.__name__ not in TEXT_ITSELF
        return self[kind]


class Journal:
    """Everything an application could print: objects, exceptions, log lines, spans, metrics, records."""

    def __init__(self) -> None:
        self.spans, self.points = InMemorySpanExporter(), InMemoryMetricReader()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        trace.set_tracer_provider(provider)
        metrics.set_meter_provider(MeterProvider(metric_readers=[self.points]))
        logging.basicConfig(stream=sys.stderr, level=logging.DEBUG)
        lines = logging.FileHandler("log.jsonl")
        lines.format = lambda record: json.dumps(vars(record), default=repr)  # type: ignore[method-assign]
        logging.getLogger().addHandler(lines)
        self.reprs = Path("reprs.txt").open("a")  # noqa: SIM115
        self.seen: set[str] = set()
        self.printed = Printed()
        self.failed: dict[str, str] = {}
        self.routes: list[Any] = []

    def objects(self) -> None:
        """The repr of everything of disco's that is alive. Pieces of an answer on their way are what they are."""
        printed = self.printed
        # Of what was there before `main`, nothing is among them.
        for thing in [thing for thing in gc.get_objects() if printed[type(thing)]]:
            self.write(f"{type(thing).__qualname__}: {thing!r} {thing!s}")
            if type(thing) in (AsyncDisco, Disco):
                self.write(repr({name: value for name, value in vars(thing).items() if name not in SDKS}))

    def write(self, line: str) -> None:
        if line not in self.seen:
            self.seen.add(line)
            self.reprs.write(line + "\n")

    def error(self, name: str, error: BaseException) -> None:
        """As printed, as logged, and everything it hangs on."""
        self.failed[name] = type(error).__name__
        traceback.print_exception(error)
        logging.getLogger("application").error("%s failed: %s", name, error, exc_info=error)
        at: BaseException | None = error
        while at is not None:
            self.write(f"{name}: {at!r} {at!s} {at.args!r} {getattr(at, '__notes__', '')}")
            self.write(f"{getattr(at, 'message', '')} {getattr(at, 'route', '')!r}")
            at = at.__cause__ or at.__context__

    def route(self, route: Any) -> None:
        self.routes.append(route)
        self.write(f"{route!r} {route!s} {route.to_json()}")

    def finish(self) -> None:
        """All that has been collected, into files."""
        Path("spans.json").write_text(
            json.dumps([json.loads(span.to_json()) for span in self.spans.get_finished_spans()])
        )
        data = self.points.get_metrics_data()
        Path("metrics.json").write_text("" if data is None else data.to_json())
        self.reprs.close()
        switched = sum(t.outcome == "switched" for route in self.routes for t in route.migrations)
        told = {"failed": self.failed, "routes": len(self.routes), "switched": switched}
        told["reprs"] = len(self.seen)
        Path("summary.json").write_text(json.dumps(told))


async def attempt(journal: Journal, name: str, call: Callable[[], Awaitable[Any]]) -> None:
    """One call, its answer read to the end, with a look around in the middle."""
    try:
        result = await call()
        if hasattr(result, "__aiter__"):
            journal.write(f"{result!r} {result!s}")
            async for number, _ in aenumerate(result):
                if number == 2:
                    journal.objects()
                if name == "moving" and result.writer == "device":
                    await result.close()
                    break
            journal.write(f"{getattr(result, 'route', '')!r} {getattr(result, 'response', '')!r}")
    except Exception as error:  # noqa: BLE001
        journal.error(name, error)


async def aenumerate(stream: Any) -> Any:
    number = 0
    async for item in stream:
        yield number, item
        number += 1


def ways(client: AsyncDisco, script: list[Any] = GOOD) -> dict[str, Callable[[], Awaitable[Any]]]:
    """How a chat is asked for of a server that plays `script`."""
    timeout = 0.2 if SILENT_S in script else 30.0  # what comes is not to depend on how fast this machine is
    given: dict[str, Any] = {
        "model": "m",
        "extra_headers": {"X-Api-Key": HEADER},
        "user": PROMPT,
        "timeout": timeout,
        "metadata": {"note": TOOL_TEXT},
    }
    chat = functools.partial(client.chat.completions.create, messages=MESSAGES, **given)
    raw = functools.partial(client.chat.completions.with_raw_response.create, messages=MESSAGES, **given)
    return {
        "whole": chat,
        "stream": functools.partial(chat, stream=True),
        "tools": functools.partial(chat, tools=[TOOL]),
        "raw": raw,
        "response": functools.partial(client.responses.create, input=PROMPT, instructions=SYSTEM, **given),
        "passed on": functools.partial(
            client.embeddings.create,
            input=[PROMPT, SYSTEM, TOOL_TEXT],
            model="m",
            timeout=timeout,
            extra_headers={"X-Api-Key": HEADER},
        ),
    }


async def failures(journal: Journal, log: RouteLog) -> None:
    """Every failure, with nobody to take over and with somebody."""
    for name, script in {"good": GOOD, **FAILURES}.items():
        for local in (None, device()):
            async with scripted_server(script) as server, made(server, local, log, journal) as client:
                for way, call in ways(client, script).items():
                    if (local is None) == (way in ("whole", "raw", "response", "passed on")):
                        await attempt(journal, f"{name}, {way}, {'alone' if local is None else 'both'}", call)
                if local is not None:  # then every kind of endpoint is there
                    journal.objects()


def made(server: ScriptedServer, local: Any, log: RouteLog, journal: Journal, **more: Any) -> AsyncDisco:
    race = Preset(dispatch={"policy": "race"}, cost={"exchange_rate": 0.0}, playback={"pace_tps": "off"})
    given: dict[str, Any] = {
        "local": local,
        "policy": race if local is not None else "balanced",
        "continuation": "none",
        "api_key": KEY,
        "base_url": server.base_url,
        "max_retries": 0,
        "on_route": [log, journal.route],
    }
    return AsyncDisco(**{**given, **more})


async def migrations(journal: Journal, log: RouteLog) -> None:
    """From the server to the device in mid-answer; and by need, when it dies there."""
    moving = Preset(
        dispatch={"policy": "server_only"},
        cost={"exchange_rate": 0.0},
        playback={"pace_tps": 10.0},
        migration={"enabled": True},
    )
    for script in (SLOW, FAILURES["reset"]):
        async with (
            scripted_server(script) as server,
            made(server, device(), log, journal, policy=moving, price=(100.0, 100.0)) as client,
        ):
            chat = functools.partial(
                client.chat.completions.create, messages=MESSAGES, model="m", stream=True
            )
            await attempt(journal, "moving", functools.partial(chat, timeout=30, max_tokens=400))


async def credentials(journal: Journal, log: RouteLog) -> None:
    """Keys that come otherwise than as a string: from a function, as Azure's, as a header, in the URL.

    httpx writes whole URLs into its own log at INFO, so that is switched off from here on.
    """
    logging.getLogger("httpx2").setLevel(logging.WARNING)

    async def provide() -> str:
        return KEY

    for name, more in {
        "callable": {"api_key": provide},
        "header": {"default_headers": {"Authorization": f"Bearer {KEY}"}, "api_key": "placeholder-key"},
        "query": {"default_query": {"api-key": KEY}, "api_key": "placeholder-key"},
    }.items():
        async with (
            scripted_server(FAILURES["401"]) as server,
            made(server, None, log, journal, **more) as client,
        ):
            for way, call in ways(client).items():
                await attempt(journal, f"{name}, {way}", call)
            journal.objects()
    # A backup is not sent what was meant for the first server.
    own = refusal("401 Unauthorized", "invalid_api_key", QUOTE.replace(HEADER, "no such header"))
    for script in (own, FAILURES["500"], FAILURES["reset"]):
        await backups(journal, log, script)
    async with scripted_server(FAILURES["401"]) as server:
        azure = openai.AsyncAzureOpenAI(
            api_key=KEY,
            api_version="v1",
            azure_endpoint=server.base_url.removesuffix("/v1"),
            azure_deployment="m",
        )
        endpoint = OpenAIEndpoint(client=azure)
        try:
            more: dict[str, Any] = {"params": {"tools": [TOOL]}, "extra_headers": {"X-Api-Key": HEADER}}
            async for _ in endpoint.open(Request(MESSAGES, "m", **more)):
                pass
        except EndpointFailure as failure:
            journal.error("azure", failure.error)
            journal.error("azure failure", failure)
        await azure.close()


async def backups(journal: Journal, log: RouteLog, script: list[Any]) -> None:
    """The first server is down, and its backup quotes its own key."""
    async with scripted_server(FAILURES["500"]) as down, scripted_server(script) as quoting:
        backup = Backup(base_url=quoting.base_url, api_key=KEY, model="b")
        async with made(down, None, log, journal, api_key="placeholder-key", backups=[backup]) as client:
            for way, call in ways(client).items():
                await attempt(journal, f"backup, {way}", call)
            journal.objects()


async def in_the_url(journal: Journal, log: RouteLog) -> None:
    """A password in base_url."""
    basic = QUOTE.replace(KEY, f"user:{PASSWORD}@")
    for script in (GOOD, refusal("401 Unauthorized", "x", basic), FAILURES["reset"], FAILURES["silence"]):
        async with scripted_server(script) as server:
            with_password = server.base_url.replace("://", f"://user:{PASSWORD}@")
            async with made(
                server, device(), log, journal, base_url=with_password, policy="balanced"
            ) as client:
                for way, call in ways(client, script).items():
                    await attempt(journal, f"url, {way}", call)


def synchronous(journal: Journal, log: RouteLog, base_url: str) -> None:
    """The client for code without an event loop; it also retries."""
    with Disco(api_key=KEY, base_url=base_url, on_route=[log, journal.route], max_retries=0) as client:
        more: dict[str, Any] = {"model": "m", "extra_headers": {"X-Api-Key": HEADER}}
        chat: dict[str, Any] = {"messages": MESSAGES, "tools": [TOOL], **more}
        texts = [PROMPT, SYSTEM, TOOL_TEXT]
        for name, call in {
            "chat": lambda: client.chat.completions.create(**chat),
            "stream": lambda: list(client.chat.completions.create(**chat, stream=True)),
            "raw": lambda: client.chat.completions.with_raw_response.create(**chat),
            "passed on": lambda: client.embeddings.create(input=texts, **more),
            "response": lambda: client.responses.create(
                input=PROMPT, instructions=f"{SYSTEM} {TOOL_TEXT}", **more
            ),
        }.items():
            try:
                call()
            except openai.OpenAIError as error:
                journal.error(f"synchronous, {name}", error)
        journal.objects()


async def devices(journal: Journal, log: RouteLog) -> None:
    """The device fails: it crashes, and the real one's template throws the prompt back."""
    template = "{{ raise_exception(messages[0].content ~ messages[1].content) }}"
    throwing = LlamaCppEndpoint(
        model="smollm2-135m", name="device", chat_template=template, context_tokens=256
    )
    real = LlamaCppEndpoint(model="smollm2-135m", name="device", context_tokens=256, threads=1)
    for name, local in {
        "crash": device(fault=Fault(after_tokens=3, kind=FailureKind.CRASHED)),
        "template": throwing,
        "real": real,
    }.items():
        settings: dict[str, Any] = {"policy": "private", "on_route": [log, journal.route], "max_retries": 0}
        async with AsyncDisco(local=local, **settings) as client:
            create = client.chat.completions.create
            ask = {"messages": MESSAGES, "model": "m", "max_tokens": 8, "user": PROMPT}
            asked = {name: ask, f"{name}, stream": {**ask, "stream": True}}
            if local is real:
                schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": PROMPT}}}
                asked |= {
                    "odd": {**ask, "temperature": PROMPT},
                    "schema": {**ask, "response_format": schema},
                    "long": {**ask, "messages": [{"role": "user", "content": PROMPT * 40}]},
                }
            for what, given in asked.items():
                await attempt(journal, what, functools.partial(create, **given))
        if isinstance(local, LlamaCppEndpoint):
            await local.aclose()


async def main() -> None:
    gc.freeze()
    journal = Journal()
    with RouteLog("routes.jsonl") as log:
        async with AsyncExitStack() as stack:
            quoting = await stack.enter_async_context(scripted_server(FAILURES["400"]))
            await asyncio.to_thread(synchronous, journal, log, quoting.base_url)
        await failures(journal, log)
        await migrations(journal, log)
        await credentials(journal, log)
        await devices(journal, log)
        await in_the_url(journal, log)
    journal.finish()


if __name__ == "__main__":
    asyncio.run(main())
