"""Leaving an answer: in every way, at every moment; and how long it takes until nothing of it runs.

A scene is a moment on a real model and a scripted server. The server plays in a loop of its own, so that all tasks of
the application's loop are the application's or disco's.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.from_thread
import moved_clock
import openai
from promptly import Since
from scripted_server import STREAM_HEAD, WAIT_FOR_CLOSE, ScriptedServer, chunk, piece, scripted_server, sse

from disco import AsyncDisco, DiscoError
from disco.client.chat.answer_stream import DiscoStream
from disco.dispatch import Preset
from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.profiles import DeviceProfile

# 200 ms is the aim; bench_cancel.py prints what it really is.
DEADLINE_S = (
    10.0  # the clock is moved there when the moment has come; shorter than any other clock of an answer
)
CONTEXT_TOKENS = 2048
# A prompt that takes this model seconds to read, on any machine.
LONG = "river " * 1100
SPEEDY = DeviceProfile(
    name="speedy", source="a claim, so that moves are begun", prefill_tps=1e5, decode_tps=1e3
)

_WORDS = [piece(sse(chunk(f" word{n},"), done=False)) for n in range(60)]
_FINISH = piece(sse(chunk(finish="stop"), done=False))
SCRIPTS: dict[str, list[Any]] = {
    "before headers": [WAIT_FOR_CLOSE],
    "before the first token": [STREAM_HEAD, piece(sse(chunk(role="assistant"), done=False)), WAIT_FOR_CLOSE],
    "server writes": [STREAM_HEAD, *_WORDS[:3], WAIT_FOR_CLOSE],
    "move": [STREAM_HEAD, *(step for word in _WORDS for step in (word, 0.02)), WAIT_FOR_CLOSE],
    "last token came": [STREAM_HEAD, *_WORDS[:3], _FINISH, WAIT_FOR_CLOSE],
}
# Moments at which `create` still waits, and moments at which a stream is being read.
WAITING = ("model loads", "prefill", "before headers", "before the first token")
READING = ("server writes", "device writes", "move", "last token came")
# Ways to leave a `create` that waits, and further ones for a stream.
BROKEN_OFF = ("scope", "task", "client", "fail_after", "deadline")
LEFT = ("async with", "close", "drop")


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
    local: LlamaCppEndpoint | None
    server: ScriptedServer | None
    texts: int = 0
    _number: int = field(default_factory=time.monotonic_ns)

    def client(self) -> AsyncDisco:
        server = {} if self.server is None else {"base_url": self.server.base_url, "api_key": "x"}
        policy = "device_only" if self.server is None else "server_only"
        preset = Preset(
            dispatch={"policy": policy},
            cost={"exchange_rate": 0.0},
            playback={"pace_tps": 10.0 if self.moment == "move" else "off"},
            migration={"enabled": self.moment == "move"},
        )
        return AsyncDisco(local=self.local, policy=preset, device_profile=SPEEDY, max_retries=0, **server)

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

    def reached(self, stream: DiscoStream | None = None) -> bool:
        if self.moment == "move":
            moves = [] if stream is None else stream._live.session.migrations_run
            return any(move.outcome == "running" for move in moves) and generates(self.local)
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
        if self.local is not None and self.moment != "model loads" and generates(self.local):
            left.append("a generation")
        if self.moment == "model loads" and self.local._worker._queue:
            left.append("a request for the model")  # loading itself goes on: the next answer needs it
        if self.server is not None and self.server.open:
            left.append("a connection to the server")
        return left


@contextlib.asynccontextmanager
async def scene(moment: str, shared: LlamaCppEndpoint) -> AsyncIterator[Scene]:
    """Set a moment up; `shared` is a loaded model."""
    with contextlib.ExitStack() as stack:
        server = None
        if moment in SCRIPTS:
            portal = stack.enter_context(anyio.from_thread.start_blocking_portal("asyncio"))
            server = stack.enter_context(portal.wrap_async_context_manager(scripted_server(SCRIPTS[moment])))
        local = shared if moment in ("prefill", "device writes", "move") else None
        if moment == "model loads":
            local = device()
        try:
            yield Scene(moment, local, server)
        finally:
            if local is not shared and local is not None:
                await local.aclose()


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


async def quiet_s(scene: Scene, before: set[Any], left: Since, *, hosts: int) -> float:
    """Seconds from leaving until nothing ran any more but the client's own task; fails if that is not soon."""

    def running() -> list[str]:
        new = tasks() - before
        return [*scene.still_runs(), *(["tasks: " + ", ".join(map(repr, new))] if len(new) > hosts else [])]

    while still := running():
        left.check(what=f"still running: {still}")
        await anyio.sleep(0.001)
    return left.elapsed_s


async def break_off(scene: Scene, way: str, *, stream: bool = True) -> float:
    """Leave a `create` that waits; how long it took until nothing ran."""
    before = tasks()
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(scene.client())
        asked = scene.asked(stream=stream, deadline_s=DEADLINE_S if way == "deadline" else None)

        async def create() -> None:
            try:
                if way == "fail_after":
                    with anyio.fail_after(DEADLINE_S):
                        await client.chat.completions.create(**asked)
                else:
                    await client.chat.completions.create(**asked)
            except TimeoutError:
                assert way == "fail_after"
            except openai.APITimeoutError:
                assert way == "deadline"
            except DiscoError as error:
                if way != "client" or "closed" not in str(error):
                    raise
            else:
                raise AssertionError("it was answered")

        if way == "task":  # as an asyncio application does it
            task = asyncio.create_task(create())
            await until(scene.reached)
            left = Since()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        else:
            async with anyio.create_task_group() as group:
                group.start_soon(create)
                await until(scene.reached)
                left = Since()
                if way == "scope":
                    group.cancel_scope.cancel()
                elif way == "client":
                    await client.close()
                else:
                    moved_clock.skip(DEADLINE_S)
        return await quiet_s(scene, before, left, hosts=way != "client")


async def leave(scene: Scene, way: str) -> float:
    """Leave a stream that is being read; how long it took until nothing ran."""
    before = tasks()
    client = scene.client()
    stream = await client.chat.completions.create(
        **scene.asked(deadline_s=DEADLINE_S if way == "deadline" else None)
    )

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
    left = Since()
    if way == "async with":
        async with stream:
            pass
    elif way == "close":
        await stream.close()
    elif way == "drop":
        gc.disable()  # what lies in a circle would only be found by the collector
        try:
            del stream, read, read_on
            return await quiet_s(scene, before, left, hosts=1)
        finally:
            gc.enable()
            await client.close()
    elif way == "scope":
        with anyio.CancelScope() as scope:
            scope.cancel()
            await read_on()
    elif way == "fail_after":
        with contextlib.suppress(TimeoutError), anyio.fail_after(DEADLINE_S):
            moved_clock.skip(DEADLINE_S)
            await read_on()
    elif way == "task":
        task = asyncio.create_task(read_on())
        await asyncio.sleep(0.01)
        left = Since()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    elif way == "client":
        await client.close()
        assert {one.outcome for one in stream.route.attempts} <= {"cancelled", "handed_over", "lost"}
    else:
        moved_clock.skip(DEADLINE_S)
        with contextlib.suppress(openai.APITimeoutError):
            await read_on()
    took_s = await quiet_s(scene, before, left, hosts=way != "client")
    await client.close()
    return took_s
