"""Which requests `bench_faults.py` makes, and what befalls each of them: the same list for every client."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from faults.proxy_server.fault import Fault, Kind, Moment, Schedule, refusal

PROMPTS = """
What is the capital of France? Why is the sea salty? Name three animals that live in a forest. How do birds fly?
Write one sentence about a lighthouse. What does a baker do all day? Tell me a short story about a fox.
What is snow made of? How does a bicycle stay upright? Say hello to my friend Anna. List the days of the week.
Why do leaves fall in autumn?
"""
PROMPTS = tuple(re.findall(r"\w[^.?]*[.?]", PROMPTS))
LIMITS = (8, 12, 20)  # tokens

SILENT = (Kind.STALL, Kind.BLACK_HOLE)  # nothing but a clock can notice these
_ENDS = (Kind.CLOSE, Kind.RESET, Kind.HALF_CLOSE)
_ERROR = b'{"error": {"message": "Boom.", "type": "server_error", "code": "boom"}}'
_DOWN = (Fault(Kind.REFUSE, Moment.CONNECT), refusal(503), Fault(Kind.CLOSE, Moment.HEAD))


@dataclass(frozen=True, slots=True)
class Turn:
    """One request, and what befalls it.

    `paced`: disco keeps to its default reading pace and may move the answer; else all is passed on as it comes.
    `device`: what happens to the device's process; `fault` is then what a client without a device sees of the same:
    its only server's connection closed, or silent, at that moment. `after`: chunks that the reader has by then.
    `stretch`: requests of one number come in a row while the server is down, for retries, too.
    """

    prompt: str
    limit: int
    policy: str
    paced: bool
    fault: Fault | None = None
    device: Literal["killed", "frozen"] | None = None
    after: int = 0
    stretch: int | None = None

    @property
    def kind(self) -> str:
        """What happens, in words."""
        if self.fault is None:
            return "none"
        if self.device is not None:
            return f"device {self.device}"
        return f"down: {self.fault.kind}" if self.stretch is not None else str(self.fault.kind)

    @property
    def silent(self) -> bool:
        return self.fault is not None and self.fault.kind in SILENT

    @property
    def arms(self) -> Schedule:
        """For a proxy before the server."""
        if self.fault is None:
            return ()
        return itertools.repeat(self.fault) if self.stretch is not None else (self.fault,)


def schedule(answers: int, seed: int) -> list[Turn]:
    """So many turns; about half of them have a fault. The same seed, the same turns."""
    return list(itertools.islice(_turns(random.Random(seed)), answers))


def silent_schedule(answers: int, seed: int) -> list[Turn]:
    """So many turns at the reader's pace, each with a silent fault: the silent ones of a long schedule."""
    silent = (turn for turn in _turns(random.Random(seed)) if turn.silent)
    return [replace(turn, paced=True) for turn in itertools.islice(silent, answers)]


def healthy_schedule(answers: int, seed: int) -> list[Turn]:
    """So many turns without a fault, for a client to learn from."""
    healthy = (turn for turn in _turns(random.Random(seed)) if turn.fault is None)
    return list(itertools.islice(healthy, answers))


def _turns(rng: random.Random) -> Iterator[Turn]:
    for stretch in itertools.count():
        for _ in range(rng.randint(20, 40)):
            yield _turn(rng)
        down = rng.choice(_DOWN)
        for _ in range(rng.randint(3, 8)):
            policy = rng.choice(("server_only", "server_only", "race", "device_only"))
            yield _ask(rng, policy, fault=down, stretch=stretch)


def _ask(rng: random.Random, policy: str, limit: int | None = None, **what: object) -> Turn:
    prompt, limit = rng.choice(PROMPTS), limit or rng.choice(LIMITS)
    return Turn(prompt, limit, policy, paced=rng.random() < 0.25, **what)  # type: ignore[arg-type]


def _turn(rng: random.Random) -> Turn:
    of = rng.random()
    if of < 0.55:
        return _ask(rng, rng.choice(("server_only", "race", "device_only")))
    limit = rng.choice(LIMITS)
    if of < 0.9:
        policy = rng.choice(("server_only", "server_only", "server_only", "race"))
        return _ask(rng, policy, limit, fault=_of_the_server(rng, limit))
    frozen, after = rng.random() < 0.2, rng.choice((0, rng.randint(1, limit - 2), rng.randint(1, limit - 2)))
    kind = Kind.STALL if frozen else Kind.CLOSE
    fault = Fault(kind, Moment.MIDDLE, tokens=after) if after else Fault(kind, Moment.HEAD)
    return _ask(rng, "device_only", limit, fault=fault, device="frozen" if frozen else "killed", after=after)


def _of_the_server(rng: random.Random, limit: int) -> Fault:
    after = rng.randint(1, limit - 2)
    if rng.random() < 0.12:
        stalls = [Fault(Kind.STALL, moment) for moment in (Moment.HEAD, Moment.FIRST)]
        middle = Fault(Kind.STALL, Moment.MIDDLE, tokens=after)
        return rng.choice((Fault(Kind.BLACK_HOLE, Moment.CONNECT), *stalls, middle))
    moment = rng.choice((Moment.CONNECT, Moment.HEAD, Moment.FIRST, *(Moment.MIDDLE,) * 4, Moment.LAST))
    if moment is Moment.CONNECT:
        return Fault(rng.choice((Kind.REFUSE, *_ENDS)), moment)
    if moment is Moment.HEAD:
        refusals = [refusal(status) for status in (429, 500, 502, 503)]
        return rng.choice((*(Fault(kind, moment) for kind in _ENDS), *refusals, Fault(Kind.PAGE)))
    bodies = {Kind.GARBAGE: b"data: {oops\n\n", Kind.ERROR: _ERROR}
    ends = [Fault(kind, moment, tokens=after) for kind in (*_ENDS, Kind.END)]
    return rng.choice(
        (*ends, *(Fault(kind, moment, tokens=after, body=body) for kind, body in bodies.items()))
    )
