"""Leaving an answer: in every way, at every moment; and how long it takes until nothing of it runs.

A scene is a moment: in virtual time, on a simulated model and a server in memory, or for real, on a model and a server
on a socket. A real server plays in a loop of its own, so that all tasks of the application's loop are the
application's or disco's.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.from_thread
import httpx2
import moved_clock
import openai
from faults.in_memory import RESET, MemoryServer, Reply
from promptly import Since
from scripted_server import STREAM_HEAD, WAIT_FOR_CLOSE, ScriptedServer, chunk, piece, scripted_server, sse

from disco import AsyncDisco, DiscoError
from disco.client.chat.answer_stream import DiscoStream
from disco.dispatch import Preset
from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.profiles import DeviceProfile

# 200 ms is the aim; bench_cancel.py prints what it really is.
# The clock is moved there when the moment has come; shorter than any other clock of an answer.
DEADLINE_S = 10.0
CONTEXT_TOKENS = 2048
# A prompt that takes this model seconds to read, on any machine.
LONG = "river " * 1100
SPEEDY = DeviceProfile(
    name="speedy", source="a claim, so that moves are begun", prefill_tps=1e5, decode_tps=1e3
)

_ROLE = sse(chunk(role="assistant"), done=False)
_WORDS = [sse(chunk(f" word{n},"), done=False) for n in range(60)]
_FINISH = sse(chunk(finish="stop"), done=False)
_SLOWLY = [step for word in _WORDS for step in (word, 0.02)]
_HEAD = Reply(before=[math.inf])
_BUSY = Reply([b"{}"], 503, {"content-type": "application/json", "retry-after-ms": "5000"})
# What the server says by the moment; then it is silent.
SAID: dict[str, Reply] = {
    "before headers": _HEAD,
    "before the first token": Reply([_ROLE, math.inf]),
    "race": _HEAD,
    "takeover at once": Reply([b"{}"], 500, {"content-type": "application/json"}),
    "back-off": _BUSY,
    "server writes": Reply([*_WORDS[:3], math.inf]),
    "move": Reply([*_SLOWLY, math.inf]),
    "takeover": Reply([*_WORDS[:3], 0.1, RESET]),
    "held for its pace": Reply([*_WORDS, math.inf]),
    "last token came": Reply([*_WORDS[:3], _FINISH, math.inf]),
}
# Moments at which `create` still waits, and moments at which a stream is being read; those that only a model that is
# loaded or read can show are real, those that no real connection shows for certain are virtual.
WAITING = ("model loads", "prefill", "before headers", "before the first token")
READING = ("server writes", "device writes", "move", "last token came")
VIRTUAL_WAITING = (*WAITING[1:], "race", "takeover at once", "back-off")
VIRTUAL_READING = (*READING, "takeover", "held for its pace")
# Ways to leave a `create` that waits, and further ones for a stream.
BROKEN_OFF = ("scope", "task", "client", "fail_after", "deadline")
LEFT = ("async with", "close", "drop")


def script(moment: str) -> list[Any]:
    """What the server says, for one on a socket."""
    reply = SAID[moment]
    if reply.before:
        return [WAIT_FOR_CLOSE]
    return [
        STREAM_HEAD,
        *(piece(step) if isinstance(step, bytes) else step for step in reply.steps[:-1]),
        WAIT_FOR_CLOSE,
    ]


def device() -> LlamaCppEndpoint:
    return LlamaCppEndpoint(model="smollm2-135m", name="device", context_tokens=CONTEXT_TOKENS, threads=1)


def generates(device: LlamaCppEndpoint) -> bool:
    """Whether the model works, or is asked to."""
    worker = device._worker
    return worker._running is not None or bool(worker._queue)


@dataclass
class Scene:
    """One moment: who answers, and how one knows that it has come.

    Attributes:
        moment: see `WAITING` and `READING`.
        local: the model, where it takes part.
        server: where it takes part.
        texts: chunks with text so far.
    """

    moment: str
    local: Any
    server: Any
    texts: int = 0
    _number: int = field(default_factory=time.monotonic_ns)

    def client(self, **more: Any) -> AsyncDisco:
        server = {} if self.server is None else {"base_url": self.server.base_url, "api_key": "x"}
        policy = "device_only" if self.server is None else "race" if self.moment == "race" else "server_only"
        pace = 10.0 if self.moment in ("move", "held for its pace") else "off"
        preset = Preset(
            dispatch={"policy": policy},
            cost={"exchange_rate": 0.0},
            playback={"pace_tps": pace},
            migration={"enabled": self.moment == "move"},
        )
        settings = {"max_retries": 0, "device_profile": SPEEDY, **server, **more}
        return AsyncDisco(local=self.local, policy=preset, **settings)

    def asked(self, *, stream: bool = True, deadline_s: float | None = None) -> dict[str, Any]:
        # Begins differently each time, so that no prefill is in the cache.
        content = (
            f"{self._number}: {LONG if self.moment in ('prefill', 'move') else 'Tell me about the sea.'}"
        )
        return {
            "model": "m",
            "messages": [{"role": "user", "content": content}],
            "stream": stream,
            "max_tokens": 1000 if self.moment == "device writes" else 100,
            "logit_bias": {"0": -100, "2": -100},  # it never ends by itself
            "extra_body": {"disco": {"deadline_s": deadline_s}} if deadline_s else None,
        }

    def generates(self) -> bool:
        return self.local is not None and generates(self.local)

    def reached(self, stream: DiscoStream | None = None) -> bool:
        if self.moment == "move":
            moves = [] if stream is None else stream._live.session.migrations
            return any(move.outcome == "running" for move in moves) and self.generates()
        if self.moment == "model loads":
            return self.local._worker._thread is not None and self.local._worker.model is None
        if self.moment == "prefill":
            running = self.local._worker._running
            return running is not None and getattr(running, "prompt_tokens", 0) > 0
        if stream is None:
            return self.server.asked.is_set()
        return self.texts >= 3

    def still_runs(self) -> list[str]:
        """What of it, outside the application's own loop, still runs."""
        left = []
        if self.moment != "model loads" and self.generates():
            left.append("a generation")
        if self.moment == "model loads" and self.local._worker._queue:
            left.append("a request for the model")  # loading itself goes on: the next answer needs it
        if self.server is not None and self.server.open:
            left.append("a connection to the server")
        return left

    def since(self) -> Since:
        """A stopwatch, from now."""
        return Since()


class VirtualScene(Scene):
    """The same in virtual time, where the moments that last no time on a real machine last as well."""

    def client(self) -> AsyncDisco:
        more = {} if self.server is None else {"http_client": httpx2.AsyncClient(transport=self.server)}
        return super().client(continuation="flags", max_retries=self.moment == "back-off", **more)

    def generates(self) -> bool:
        return self.local is not None and self.local.busy > 0

    def reached(self, stream: DiscoStream | None = None) -> bool:
        match self.moment:
            case "prefill" | "takeover at once":
                return self.generates()
            case "race":
                return self.generates() and self.server.open > 0
            case "back-off":
                return bool(self.server.requests) and not self.server.open
            case "before headers" | "before the first token":
                return self.server.open > 0
        return super().reached(stream)

    def since(self) -> Since:
        return Since(clock=anyio.current_time)  # shorter than any bound of disco's, to the second


@contextlib.asynccontextmanager
async def scene(moment: str, shared: LlamaCppEndpoint) -> AsyncIterator[Scene]:
    """Set a real moment up; `shared` is a loaded model."""
    with contextlib.ExitStack() as stack:
        server: ScriptedServer | None = None
        if moment in SAID:
            portal = stack.enter_context(anyio.from_thread.start_blocking_portal("asyncio"))
            server = stack.enter_context(portal.wrap_async_context_manager(scripted_server(script(moment))))
        local = shared if moment in ("prefill", "device writes", "move") else None
        if moment == "model loads":
            local = device()
        try:
            yield Scene(moment, local, server)
        finally:
            if local is not shared and local is not None:
                await local.aclose()


def virtual_scene(moment: str) -> VirtualScene:
    """Set a moment up in virtual time; the device reads on where it is to be caught reading."""
    ttft_s = 0.1 if moment == "device writes" else 5.0 if moment == "move" else 1000.0
    profile = SimulatedProfile(
        ttft_s=ttft_s, decode_tps=50.0, answer_tokens=5_000, features=frozenset({"logit_bias"})
    )
    alone = moment in ("prefill", "device writes")
    helps = moment in ("race", "takeover at once", "takeover", "move")
    local = SimulatedEndpoint("device", profile, place="device") if alone or helps else None
    return VirtualScene(moment, local, None if alone else MemoryServer(SAID[moment]))


def tasks() -> set[Any]:
    """All tasks of the running loop, but for the one that calls."""
    try:
        return asyncio.all_tasks() - {asyncio.current_task()}
    except RuntimeError:
        import trio

        waiting, found = [trio.lowlevel.current_root_task()], set()
        while waiting:
            task = waiting.pop()
            found.add(task)
            waiting.extend(child for nursery in task.child_nurseries for child in nursery.child_tasks)
        return found - {trio.lowlevel.current_task()}


async def until(what: Callable[[], object], limit_s: float = 120.0) -> None:
    with anyio.fail_after(limit_s):
        while not what():  # noqa: ASYNC110 - other threads' state
            await anyio.sleep(0.001)


def soon(what) -> None:
    """Wait until `what()` holds, in a thread without an event loop."""
    since = Since()
    while not what():
        since.check()
        time.sleep(0.001)


async def quiet_s(scene: Scene, before: set[Any], left: Since, *, hosts: int) -> float:
    """Seconds from leaving until nothing ran any more but the client's own task; fails if that is not soon."""

    def running() -> list[str]:
        new = tasks() - before
        return [*scene.still_runs(), *(["tasks: " + ", ".join(map(repr, new))] if len(new) > hosts else [])]

    while still := running():
        left.check(what=f"still running: {still}")
        await anyio.sleep(0.001)
    return left.elapsed_s


def deadline_of(way: str) -> float | None:
    return DEADLINE_S if way == "deadline" else None


async def break_off(scene: Scene, way: str, *, stream: bool = True) -> float:
    """Leave a `create` that waits; how long it took until nothing ran."""
    before = tasks()
    async with scene.client() as client:
        asked = scene.asked(stream=stream, deadline_s=deadline_of(way))

        async def create() -> None:
            try:
                with anyio.fail_after(DEADLINE_S if way == "fail_after" else math.inf):
                    await client.chat.completions.create(**asked)
            except TimeoutError:
                assert way == "fail_after"
            except (openai.APITimeoutError, openai.InternalServerError):  # or what nothing has made up for
                assert way == "deadline"
            except DiscoError as error:
                if way != "client" or "closed" not in str(error):
                    raise
            else:
                raise AssertionError("it was answered")

        if way == "task":  # as an asyncio application does it
            task = asyncio.create_task(create())
            await until(scene.reached)
            left = scene.since()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        else:
            async with anyio.create_task_group() as group:
                group.start_soon(create)
                await until(scene.reached)
                if way in ("fail_after", "deadline"):
                    moved_clock.skip(DEADLINE_S)
                left = scene.since()
                if way == "scope":
                    group.cancel_scope.cancel()
                elif way == "client":
                    await client.close()
        return await quiet_s(scene, before, left, hosts=way != "client")


async def leave(scene: Scene, way: str) -> float:
    """Leave a stream that is being read; how long it took until nothing ran."""
    before = tasks()
    client = scene.client()
    stream = await client.chat.completions.create(**scene.asked(deadline_s=deadline_of(way)))

    async def read() -> None:
        """To the moment; a read that is broken off at it goes on for ever."""
        async for part in stream:
            scene.texts += bool(part.choices and part.choices[0].delta.content)
            if scene.reached(stream):
                return
        raise AssertionError(f"the moment never came: {scene.texts} pieces of text, then the end")

    async def read_on() -> None:
        async for _ in stream:
            pass

    await read()
    if scene.moment == "takeover":  # nothing more comes to read then
        await until(scene.generates)
    if way in ("fail_after", "deadline"):
        with contextlib.suppress(TimeoutError, openai.APIConnectionError):
            with anyio.fail_after(DEADLINE_S if way == "fail_after" else math.inf):
                moved_clock.skip(DEADLINE_S)
                left = scene.since()
                await read_on()
    elif way == "task":
        task = asyncio.create_task(read_on())
        await asyncio.sleep(0.01)
        left = scene.since()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    else:
        left = scene.since()
        if way == "async with":
            async with stream:
                pass
        elif way == "close":
            await stream.close()
        elif way == "scope":
            with anyio.CancelScope() as scope:
                scope.cancel()
                await read_on()
        elif way == "client":
            await client.close()
            assert {one.outcome for one in stream.route.attempts} <= {
                "cancelled",
                "handed_over",
                "lost",
                "failed",
            }
    if way == "drop":
        gc.disable()  # what lies in a circle would only be found by the collector
        try:
            del stream, read, read_on
            return await quiet_s(scene, before, left, hosts=1)
        finally:
            gc.enable()
            await client.close()
    took_s = await quiet_s(scene, before, left, hosts=way != "client")
    await client.close()
    return took_s
