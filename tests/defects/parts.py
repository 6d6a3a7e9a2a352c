"""One session in virtual time on simulated endpoints, and a device that does what a test says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

import anyio
import numpy as np
from playing import Run, run_session

from disco.cost import Rates
from disco.endpoints.contract import Attempt, Capabilities, Endpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.events import Delta, Ended, Usage
from disco.plan import Candidate, Plan
from disco.playback import Pace, Playback
from disco.request import Prefix, Request, Timeouts
from disco.session.machine import Session, SessionConfig
from disco.session.switching.answer_lengths import AnswerLengths

__all__ = ["ScriptedDevice", "play"]

REQUEST = Request(messages=[{"role": "user", "content": "Tell me something."}], model="m")


def play(
    profiles: Mapping[str, SimulatedProfile],
    plan: Plan,
    *,
    costs: Mapping[str, float] | None = None,
    pace: Pace | None = None,
    streams: bool = True,
    timeouts: Timeouts | None = None,
    max_retries: int = 2,
    cancel_takes_s: float = 0.0,
    seed: int = 0,
) -> Run:
    """One session, played to its end in virtual time. `costs`: USD per generated token; by default all the same."""
    prices = {name: (costs or {}).get(name, 1e-6) for name in profiles}
    candidates = {
        name: Candidate(
            name=name,
            reach="any",
            rates=Rates(prices[name] / 10, prices[name]),
            prefill_tps=profile.prefill_tps,
            overhead_s=profile.overhead_s + (profile.ttft_s if isinstance(profile.ttft_s, float) else 0.3),
            decode_tps=profile.decode_tps,
            continues=profile.continues,
        )
        for name, profile in profiles.items()
    }
    config = SessionConfig(
        prompt_tokens=20,
        streams=streams,
        pace_tps=pace.tps if pace else None,
        timeouts=timeouts or Timeouts(),
        max_retries=max_retries,
    )
    session = Session(plan, candidates, config, Playback(pace), AnswerLengths.geometric(150.0))
    return run_session(session, profiles, REQUEST, np.random.default_rng(seed), cancel_takes_s=cancel_takes_s)


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
        prompt_tokens: int = 10,
        closing_s: float = 0.0,
    ) -> None:
        self.script, self.parks, self.prompt_tokens, self.closing_s = script, parks, prompt_tokens, closing_s
        self.closed = 0

    def capabilities(self, model: str | None = None) -> Capabilities:
        return Capabilities(continues=True, features=None, parks=True)

    def open(self, request: Request, prefix: Prefix = Prefix()) -> Attempt:  # noqa: B008 - frozen
        return ScriptedAttempt(self, iter(self.script(prefix)))


class ScriptedAttempt(Attempt):
    def __init__(self, device: ScriptedDevice, steps: Iterator[Step]) -> None:
        self.device, self.steps = device, steps
        self.written = 0

    async def __anext__(self) -> list[Delta] | Ended:
        for step in self.steps:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, float):
                await anyio.sleep(step)
                continue
            event = step if isinstance(step, list | Ended) else await step()
            self.written += len(event) if isinstance(event, list) else 0
            return event
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self.steps = iter(())
        await anyio.sleep(self.device.closing_s)
        self.device.closed += 1

    def park(self) -> bool:
        return self.device.parks

    @property
    def usage(self) -> Usage:
        return Usage(self.device.prompt_tokens, self.written)
