"""A device that does for each attempt what a script says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator

import anyio

from disco.endpoints.contract import Attempt, Capabilities, Endpoint
from disco.events import Delta, Ended, Usage
from disco.request import Prefix, Request

__all__ = ["ScriptedDevice"]

Step = float | list[Delta] | Ended | Exception | Callable[[], Awaitable[list[Delta] | Ended]]


class ScriptedDevice(Endpoint):
    """A device that does for each attempt what `script` makes of its prefix, and then stops without a word.

    Steps are seconds, events, what it raises, or what to wait for. Mutable: `closed`, how many attempts were.
    """

    place = name = "device"

    def __init__(
        self,
        script: Callable[[Prefix], Iterable[Step]],
        *,
        parks: bool = True,
        pauses: bool = False,
        prompt_tokens: int = 10,
        closing_s: float = 0.0,
    ) -> None:
        self.script, self.parks, self.prompt_tokens, self.closing_s = script, parks, prompt_tokens, closing_s
        self.pauses = pauses
        self.closed = 0

    def capabilities(self, model: str | None = None) -> Capabilities:
        return Capabilities(continues=True, features=None, parks=True, pauses=self.pauses)

    def open(self, request: Request, prefix: Prefix = Prefix()) -> Attempt:  # noqa: B008 - frozen
        return ScriptedAttempt(self, iter(self.script(prefix)))


class ScriptedAttempt(Attempt):
    def __init__(self, device: ScriptedDevice, steps: Iterator[Step]) -> None:
        self.device, self.steps = device, steps
        self.written = 0
        self.goes_on: anyio.Event | None = None  # None: it is not paused

    async def __anext__(self) -> list[Delta] | Ended:
        for step in self.steps:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, float):
                await anyio.sleep(step)
                continue
            event = step if isinstance(step, list | Ended) else await step()
            while self.goes_on is not None:
                await self.goes_on.wait()
            self.written += len(event) if isinstance(event, list) else 0
            return event
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self.steps = iter(())
        await anyio.sleep(self.device.closing_s)
        self.device.closed += 1

    def park(self) -> bool:
        return self.device.parks

    def pause(self) -> bool:
        self.goes_on = anyio.Event()
        return self.device.pauses

    def resume(self) -> bool:
        going_on, self.goes_on = self.goes_on, None
        if going_on is not None:
            going_on.set()
        return going_on is not None

    @property
    def usage(self) -> Usage:
        return Usage(self.device.prompt_tokens, self.written)
