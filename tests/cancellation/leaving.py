"""Leaving an answer: in every way, at every moment; and how long it takes until nothing of it runs.

A scene is a moment: in virtual time, or for real, on a model and a server on a socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.from_thread
import httpx2
import moved_clock
import openai
from faults.in_memory import RESET, MemoryServer, Reply
from promptly import Since
from scripted_server import STREAM_HEAD, WAIT_FOR_CLOSE, chunk, piece, scripted_server, sse

from disco import AsyncDisco, DiscoError
from disco.client.chat.stream_types import DiscoStream
from disco.dispatch import Preset, load_preset
from disco.endpoints.llamacpp import EngineEndpoint
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.profiles import DeviceProfile

# The clock is moved there when the moment has come; shorter than any other clock of an answer.
DEADLINE_S = 10.0
# A prompt that takes this model seconds to read, on any machine.
LONG = "river " * 1100
SPEEDY = DeviceProfile(name="speedy", source="a claim, for moves", prefill_tps=1e5, decode_tps=1e3)

# A device that reads such a prompt for seconds, so that a server writes the answer's beginning.
SLOW = DeviceProfile(name="slow", source="a claim, for divided answers", prefill_tps=500.0, decode_tps=50.0)

_ROLE = sse(chunk(role="assistant"), done=False)
_WORDS = [sse(chunk(f" word{n},"), done=False) for n in range(60)]
_FINISH = sse(chunk(finish="stop"), done=False)
# What the server says by the moment; then it is silent.
SAID: dict[str, Reply] = {
    "before headers": Reply(before=[math.inf]),
    "before the first token": Reply([_ROLE, math.inf]),
    "race": Reply(before=[math.inf]),
    "takeover at once": Reply([b"{}"], 500, {"content-type": "application/json"}),
    "back-off": Reply([b"{}"], 503, {"content-type": "application/json", "retry-after-ms": "5000"}),
    "server writes": Reply([*_WORDS[:3], math.inf]),
    "move": Reply([*(step for word in _WORDS for step in (word, 0.02)), math.inf]),
    "takeover": Reply([*_WORDS[:3], 0.1, RESET]),
    "held for its pace": Reply([*_WORDS, math.inf]),
    "last token came": Reply([*_WORDS[:3], _FINISH, math.inf]),
    "beginning": Reply([*_WORDS[:3], math.inf]),
    "handed down": Reply([*_WORDS[:40], sse(chunk(finish="length"))]),
}
# Moments at which `create` still waits, and moments at which a stream is being read; those that only a model that is
# loaded or read can show are real, those that no real connection shows for certain are virtual.
WAITING = ("model loads", "prefill", "before headers", "before the first token")
READING = ("server writes", "device writes", "move", "last token came")
VIRTUAL_WAITING = (*WAITING[1:], "race", "takeover at once", "back-off")
VIRTUAL_READING = (*READING, "takeover", "held for its pace", "beginning", "handed down")
DIVIDED = ("beginning", "handed down")  # the device reads; the server writes, or has written its part
# Ways to leave a `create` that waits, and further ones for a stream.
BROKEN_OFF = ("scope", "task", "client", "fail_after", "deadline")
LEFT = ("async with", "close", "drop")


def script(moment: str) -> list[Any]:
    """What the server says, for one on a socket."""
    reply = SAID[moment]
    steps = [piece(step) if isinstance(step, bytes) else step for step in reply.steps[:-1]]
    return [*([] if reply.before else [STREAM_HEAD]), *steps, WAIT_FOR_CLOSE]


def device() -> EngineEndpoint:
    """As the shared model is."""
    return EngineEndpoint(model="smollm2-135m", name="device", context_tokens=2048, threads=1)


def generates(device: EngineEndpoint) -> bool:
    """Whether the model works, or is asked to."""
    scheduler = device.engine._thread.scheduler
    return bool(device.engine._unbegun) or (scheduler is not None and scheduler.waiting > 0)


@dataclass
class Scene:
    """One moment: the model and the server, where they take part, and how many chunks with text have come."""

    moment: str
    local: Any
    server: Any
    virtual: bool = False  # where moments that last no time on a real machine last as well
    texts: int = 0
    session: bool = False  # whether a server alone answers through a session; else the SDK's own way

    def client(self) -> AsyncDisco:
        more = {} if self.server is None else {"base_url": self.server.base_url, "api_key": "x"}
        if self.virtual and self.server is not None:
            more |= {"http_client": httpx2.AsyncClient(transport=self.server)}
        if self.session and self.server is not None:
            more |= {"continuation": "flags"}
        policy = "device_only" if self.server is None else "race" if self.moment == "race" else "server_only"
        preset = Preset(
            dispatch={"policy": policy},
            cost={"exchange_rate": 0.0},
            playback={"pace_tps": 10.0 if self.moment in ("move", "held for its pace") else "off"},
            migration={"enabled": self.moment == "move", "order": "make_before_break"},
        )
        retries, profile = int(self.moment == "back-off"), SPEEDY
        if self.moment in DIVIDED:
            preset, profile = load_preset("assist"), SLOW
        return AsyncDisco(
            local=self.local, policy=preset, max_retries=retries, device_profile=profile, **more
        )

    def asked(self, way: str, *, stream: bool = True) -> dict[str, Any]:
        text = LONG if self.moment in ("prefill", "move", *DIVIDED) else "Tell me about the sea."
        # Begins differently each time, so that no prefill is in the cache.
        return {
            "model": "m",
            "messages": [{"role": "user", "content": f"{time.monotonic_ns()}: {text}"}],
            "stream": stream,
            "max_tokens": 1000 if self.moment == "device writes" else 100,
            "logit_bias": {"0": -100, "2": -100},  # it never ends by itself
            "extra_body": {"disco": {"deadline_s": DEADLINE_S}} if way == "deadline" else None,
        }

    def generates(self) -> bool:
        if self.local is None:
            return False
        return self.local.busy > 0 if self.virtual else generates(self.local)

    def reached(self, stream: DiscoStream | None = None) -> bool:
        match self.moment:
            case "beginning" | "handed down":
                if self.texts < 3 or not self.generates():
                    return False
                waits = stream._live.session.assist._waiting is not None
                return waits == (self.moment == "handed down")
            case "move":
                moves = [] if stream is None else stream._live.session.migrations
                return any(move.outcome == "running" for move in moves) and self.generates()
            case "model loads":
                return self.local.engine.loading_since is not None
            case "prefill" if not self.virtual:
                jobs = tuple(self.local.engine._thread.scheduler._jobs)
                return any(job.prompt_tokens for job in jobs)
            case "prefill" | "takeover at once":
                return self.generates()
            case "race":
                return self.generates() and self.server.open > 0
            case "back-off":
                return bool(self.server.requests) and not self.server.open
            case "before headers" | "before the first token":
                return bool(self.server.requests) and self.server.open > 0
        return self.texts >= 3

    def still_runs(self) -> list[str]:
        """What of it, outside the application's own loop, still runs."""
        loads = self.moment == "model loads"  # which goes on: the next answer needs it
        works = bool(self.local.engine._unbegun) if loads else self.generates()
        connected = self.server is not None and self.server.open > 0
        return ["the model works"] * works + ["a connection to the server"] * connected

    def since(self) -> Since:
        """In virtual time shorter than any bound of disco's, to the second."""
        return Since(clock=anyio.current_time) if self.virtual else Since()


@contextlib.asynccontextmanager
async def scene(moment: str, shared: EngineEndpoint, *, session: bool = False) -> AsyncIterator[Scene]:
    """Set a real moment up; `shared` is a loaded model, `session` as in `Scene`."""
    local = shared if moment in ("prefill", "device writes", "move") else None
    if moment == "model loads":
        local = device()
    async with contextlib.AsyncExitStack() as stack:
        if local is not shared and local is not None:
            stack.push_async_callback(local.aclose)
        server = None
        if moment in SAID:
            portal = stack.enter_context(anyio.from_thread.start_blocking_portal("asyncio"))
            server = stack.enter_context(portal.wrap_async_context_manager(scripted_server(script(moment))))
        yield Scene(moment, local, server, session=session)


def virtual_scene(moment: str) -> Scene:
    """Set a moment up in virtual time; the device reads on where it is to be caught reading."""
    ttft_s = 0.1 if moment == "device writes" else 5.0 if moment == "move" else 1000.0
    profile = SimulatedProfile(
        ttft_s=ttft_s, decode_tps=50.0, answer_tokens=5_000, features=frozenset({"logit_bias"})
    )
    alone = moment in ("prefill", "device writes")
    helps = moment in ("race", "takeover at once", "takeover", "move", *DIVIDED)
    local = SimulatedEndpoint("device", profile, place="device") if alone or helps else None
    return Scene(moment, local, None if alone else MemoryServer(SAID[moment]), virtual=True, session=True)


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


async def _broken_off(
    scene: Scene, way: str, client: AsyncDisco, going: Callable[[], Any], reached: Callable[[], bool]
) -> Since:
    """Do what is `going` on and leave it, once the moment has come."""

    async def go() -> None:
        try:
            with anyio.fail_after(DEADLINE_S if way == "fail_after" else math.inf):
                await going()
        except TimeoutError:
            assert way == "fail_after"
        except (openai.APIConnectionError, openai.InternalServerError):  # or what nothing has made up for
            assert way == "deadline"
        except DiscoError as error:
            if way != "client" or "closed" not in str(error):
                raise

    if way == "task":  # as an asyncio application does it
        task = asyncio.create_task(go())
        await until(reached)
        left = scene.since()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return left
    async with anyio.create_task_group() as group:
        group.start_soon(go)
        await until(reached)
        if way in ("fail_after", "deadline"):
            moved_clock.skip(DEADLINE_S)
        left = scene.since()
        if way == "scope":
            group.cancel_scope.cancel()
        elif way == "client":
            await client.close()
    return left


async def break_off(scene: Scene, way: str, *, stream: bool = True) -> float:
    """Leave a `create` that waits; how long it took until nothing ran."""
    before = tasks()
    async with scene.client() as client:

        async def create() -> None:
            await client.chat.completions.create(**scene.asked(way, stream=stream))
            raise AssertionError("it was answered")

        left = await _broken_off(scene, way, client, create, scene.reached)
        return await quiet_s(scene, before, left, hosts=way != "client")


async def leave(scene: Scene, way: str) -> float:
    """Leave a stream that is being read; how long it took until nothing ran."""
    before = tasks()
    client = scene.client()
    stream = await client.chat.completions.create(**scene.asked(way))
    async for part in stream:
        scene.texts += bool(part.choices and part.choices[0].delta.content)
        if scene.reached(stream):
            break
    else:
        raise AssertionError(f"the moment never came: {scene.texts} pieces of text, then the end")
    if scene.moment == "takeover":  # nothing more comes to read then
        await until(scene.generates)
    reading = False

    async def read_on() -> None:
        nonlocal reading
        reading = True
        async for _ in stream:
            pass

    with contextlib.ExitStack() as stack:
        if way in BROKEN_OFF:
            left = await _broken_off(scene, way, client, read_on, lambda: reading)
        else:
            left = scene.since()
        if way == "client":
            outcomes = {one.outcome for one in stream.route.attempts}
            assert outcomes <= {"cancelled", "handed_over", "lost", "failed"}
        elif way == "async with":
            async with stream:
                pass
        elif way == "close":
            await stream.close()
        elif way == "drop":
            gc.disable()  # what lies in a circle would only be found by the collector
            stack.callback(gc.enable)
            del stream
        took_s = await quiet_s(scene, before, left, hosts=way != "client")
    await client.close()
    return took_s
