"""A program that does everything an application does with disco, good and bad, and writes down all it can see of it.

Run as a process of its own by test_canary.py, which then searches everything it wrote. Writes into its working folder.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import json
import logging
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from canaries import ANSWER, HEADER, KEY, MESSAGES, PASSWORD, PROMPT, SYSTEM, TOOL, TOOL_TEXT
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from scripted_server import RESET, STREAM_HEAD, answer, chunk, piece, scripted_server, sse, stream, usage

from disco import AsyncDisco, Backup, RouteLog
from disco.dispatch import Preset
from disco.endpoints.llamacpp import EngineEndpoint
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import FailureKind

WORDS = [chunk(word + " ") for word in ANSWER.split()]
GOOD = stream(sse(*WORDS, chunk(finish="stop"), usage(20, 10)))
SLOW = [STREAM_HEAD, *(step for word in WORDS * 20 for step in (piece(sse(word, done=False)), 0.01))]
SILENT_S = 30.0
QUOTE = f"You sent {PROMPT} after {SYSTEM}, with {TOOL_TEXT} by {KEY} and {HEADER}."


def refusal(status: str, code: str, message: str = QUOTE) -> list[Any]:
    error = {"message": message, "type": "invalid_request_error", "code": code, "param": None}
    return answer(json.dumps({"error": error}).encode(), status=status)


# What a server answers, by what goes wrong. All of them quote all they were sent.
FAILURES: dict[str, list[Any]] = {
    "401": refusal("401 Unauthorized", "invalid_api_key"),
    "429": refusal("429 Too Many Requests", "rate_limit_exceeded"),
    "400": refusal("400 Bad Request", "invalid_value"),
    "context": refusal("400 No", "context_length_exceeded", f"maximum context length exceeded: {QUOTE}"),
    "500": answer(f"<html>{QUOTE}</html>".encode(), status="500 Oops", content_type="text/html"),
    "web page": answer(f"<html>{QUOTE}</html>".encode(), content_type="text/html"),
    "reset": [STREAM_HEAD, piece(sse(*WORDS[:4], done=False)), RESET],
    "incomplete": stream(sse(*WORDS[:4], done=False)),
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


# Pieces of an answer on their way are what they are.
TEXT_ITSELF = ("Delta", "Release", "DiscoStream", "SimulatedProfile")


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
        self.failed: set[str] = set()
        self.routes: list[Any] = []

    def objects(self) -> None:
        """The repr of everything of disco's that has come to be since `main` began."""
        for thing in [thing for thing in gc.get_objects() if str(type(thing).__module__).startswith("disco")]:
            if type(thing).__name__ not in TEXT_ITSELF:
                self.write(f"{type(thing).__qualname__}: {thing!r} {thing!s}")

    def write(self, line: str) -> None:
        if line not in self.seen:
            self.seen.add(line)
            self.reprs.write(line + "\n")

    def error(self, name: str, error: BaseException) -> None:
        """As printed, as logged, and everything it hangs on."""
        self.failed.add(type(error).__name__)
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
        spans = [json.loads(span.to_json()) for span in self.spans.get_finished_spans()]
        Path("spans.json").write_text(json.dumps(spans))
        data = self.points.get_metrics_data()
        Path("metrics.json").write_text("" if data is None else data.to_json())
        self.reprs.close()
        switched = sum(t.outcome == "switched" for route in self.routes for t in route.migrations)
        told = {"failed": sorted(self.failed), "routes": len(self.routes), "switched": switched}
        Path("summary.json").write_text(json.dumps(told))


async def attempt(journal: Journal, name: str, call: Callable[[], Awaitable[Any]]) -> None:
    """One call, its answer read to the end, with a look around in the middle."""
    try:
        result = await call()
        if hasattr(result, "__aiter__"):
            journal.write(f"{result!r} {result!s}")
            number = 0
            async for _ in result:
                number += 1
                if number == 3:
                    journal.objects()
                if name == "moving" and result.writer == "device":
                    await result.close()
                    break
        journal.write(f"{getattr(result, 'route', '')!r} {getattr(result, 'response', '')!r}")
    except Exception as error:  # noqa: BLE001
        journal.error(name, error)


def ways(client: AsyncDisco, script: Any = ()) -> dict[str, Callable[[], Any]]:
    """How a chat is asked for of a server."""
    timeout = 0.2 if SILENT_S in script else 60.0  # what comes is not to depend on how fast this machine is
    fixed: dict[str, Any] = {"model": "m", "extra_headers": {"X-Api-Key": HEADER}, "timeout": timeout}
    given = {**fixed, "user": PROMPT, "metadata": {"note": TOOL_TEXT}}
    chat = functools.partial(client.chat.completions.create, messages=MESSAGES, **given)
    raw = client.chat.completions.with_raw_response.create
    return {
        "whole": chat,
        "stream": functools.partial(chat, stream=True),
        "tools": functools.partial(chat, tools=[TOOL]),
        "tools, streamed": functools.partial(chat, tools=[TOOL], stream=True),
        "raw": functools.partial(raw, messages=MESSAGES, **given),
        "response": functools.partial(client.responses.create, input=PROMPT, instructions=SYSTEM, **given),
        "passed on": functools.partial(client.embeddings.create, input=[PROMPT, SYSTEM, TOOL_TEXT], **fixed),
    }


@asynccontextmanager
async def made(script: list[Any], log: RouteLog, journal: Journal, **more: Any) -> AsyncIterator[AsyncDisco]:
    """A client of a server that plays a script."""
    async with scripted_server(script) as server:
        base_url = server.base_url.replace("://", more.pop("user", "://"))
        given = {"policy": "balanced", "continuation": "none", "api_key": KEY, "max_retries": 0}
        given |= {"base_url": base_url, "on_route": [log, journal.route]}
        async with AsyncDisco(**{**given, **more}) as client:
            yield client
            journal.objects()


async def failures(journal: Journal, log: RouteLog) -> None:
    """Every failure, with nobody to take over and with somebody; the ways to ask take turns."""
    race = Preset(dispatch={"policy": "race"}, cost={"exchange_rate": 0.0}, playback={"pace_tps": "off"})
    alone = itertools.cycle(["whole", "raw", "passed on", "response", "whole"])
    both = itertools.cycle(["stream", "tools", "tools, streamed"])
    for name, script in {"good": GOOD, **FAILURES}.items():
        async with made(script, log, journal) as client:
            for way in itertools.islice(alone, 2):
                await attempt(journal, f"{name}, {way}, alone", ways(client, script)[way])
        async with made(script, log, journal, local=device(), policy=race) as client:
            for way in itertools.islice(both, 2):
                await attempt(journal, f"{name}, {way}, both", ways(client, script)[way])


async def migrations(journal: Journal, log: RouteLog) -> None:
    """From the server to the device in mid-answer; and by need, when it dies there."""
    first = {"dispatch": {"policy": "server_only"}, "cost": {"exchange_rate": 0.0}}
    moving = Preset(**first, playback={"pace_tps": 10.0}, migration={"enabled": True})
    more: dict[str, Any] = {"local": device(), "policy": moving, "price": (100.0, 100.0)}
    for script in (SLOW, FAILURES["reset"]):
        async with made(script, log, journal, **more) as client:
            await attempt(journal, "moving", functools.partial(ways(client)["stream"], max_tokens=400))


async def credentials(journal: Journal, log: RouteLog) -> None:
    """Keys that come otherwise than as a string: from a function, as Azure's, as a header, in the URL.

    httpx writes whole URLs into its own log at INFO, so that is switched off from here on.
    """
    logging.getLogger("httpx2").setLevel(logging.WARNING)

    async def provide() -> str:
        return KEY

    other = {"api_key": "placeholder-key"}
    bearer = {"default_headers": {"Authorization": f"Bearer {KEY}"}}
    for more in ({"api_key": provide}, {**other, **bearer}, {**other, "default_query": {"api-key": KEY}}):
        async with made(FAILURES["401"], log, journal, **more) as client:
            for way, call in ways(client).items():
                await attempt(journal, f"{set(more)}, {way}", call)
    # A backup is not sent what was meant for the first server; this one quotes its own key.
    own = refusal("401 Unauthorized", "invalid_api_key", QUOTE.replace(HEADER, "no such header"))
    for script in (own, FAILURES["500"], FAILURES["reset"]):
        async with scripted_server(script) as quoting:
            backups = [Backup(base_url=quoting.base_url, api_key=KEY, model="b")]
            more = {"api_key": "placeholder-key", "backups": backups}
            async with made(FAILURES["500"], log, journal, **more) as client:
                for way in ("whole", "stream", "response"):
                    await attempt(journal, f"backup, {way}", ways(client)[way])
    # A password in base_url.
    basic = QUOTE.replace(KEY, f"user:{PASSWORD}@")
    for script in (GOOD, refusal("401 Unauthorized", "x", basic), FAILURES["reset"], FAILURES["silence"]):
        async with made(script, log, journal, local=device(), user=f"://user:{PASSWORD}@") as client:
            for way in ("whole", "stream", "passed on"):
                await attempt(journal, f"url, {way}", ways(client, script)[way])


async def devices(journal: Journal, log: RouteLog) -> None:
    """The device fails: it crashes, and the real one's template throws the prompt back."""
    template = "{{ raise_exception(messages[0].content ~ messages[1].content) }}"
    small: dict[str, Any] = {"model": "smollm2-135m", "name": "device", "context_tokens": 256, "threads": 1}
    ask = {"messages": MESSAGES, "model": "m", "max_tokens": 8, "user": PROMPT}
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": PROMPT}}}
    long = [{"role": "user", "content": PROMPT * 40}]
    odd: list[dict[str, Any]] = [{"temperature": PROMPT}, {"response_format": schema}, {"messages": long}]
    for name, local, more in (
        ("crash", device(fault=Fault(after_tokens=3, kind=FailureKind.CRASHED)), []),
        ("template", EngineEndpoint(chat_template=template, **small), []),
        ("real", EngineEndpoint(**small), odd),
    ):
        settings: dict[str, Any] = {"policy": "private", "on_route": [log, journal.route], "max_retries": 0}
        async with AsyncDisco(local=local, **settings) as client:
            for asked in ({}, {"stream": True}, *more):
                create = functools.partial(client.chat.completions.create, **{**ask, **asked})
                await attempt(journal, name, create)
        if isinstance(local, EngineEndpoint):
            await local.aclose()


async def main() -> None:
    gc.freeze()
    journal = Journal()
    with RouteLog("routes.jsonl") as log:
        await failures(journal, log)
        await migrations(journal, log)
        await credentials(journal, log)
        await devices(journal, log)
    journal.finish()


if __name__ == "__main__":
    asyncio.run(main())
