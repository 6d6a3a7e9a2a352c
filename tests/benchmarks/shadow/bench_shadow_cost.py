"""What shadow mode costs an answer: µs to note the moment, to plan, and to estimate; and what it adds to a record.

A live client on a simulated device and server, in virtual time; only the calls of shadow mode count, in CPU time. The
first two steps are before the reader's first word, the second of them while the real attempts are already under way.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
from helpers.measuring import Columns, options
from moved_clock import virtual

from disco import AsyncDisco
from disco.client.shadow.shadow_answer import ShadowAnswer
from disco.client.shadow.shadow_preset import Shadow
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.session.records.route_record import RouteRecord

SHADOWS = ("cheap", "server-first", "fast", "cascade", "assist", "private")
STEPS = {"moment": (Shadow, "beside"), "plan": (ShadowAnswer, "plan"), "estimate": (ShadowAnswer, "ended")}


def timed(owner: type, name: str, spans: list[float]) -> Callable[[], None]:
    """Time every call of a method; the returned function ends that."""
    method: Any = getattr(owner, name)

    def call(*given: Any, **named: Any) -> Any:
        begin = time.thread_time_ns()
        result = method(*given, **named)
        spans.append((time.thread_time_ns() - begin) / 1e3)
        return result

    setattr(owner, name, call)
    return lambda: setattr(owner, name, method)


async def measured(shadow: str, answers: int) -> tuple[dict[str, list[float]], RouteRecord]:
    spans: dict[str, list[float]] = {step: [] for step in STEPS}
    routes: list[RouteRecord] = []
    server = SimulatedEndpoint("cloud", SimulatedProfile(ttft_s=0.3, decode_tps=60.0), place="server")
    device = SimulatedEndpoint("device", SimulatedProfile(prefill_tps=100.0), place="device")
    async with AsyncDisco(
        local=device, tiers=[server], shadow=shadow, state=False, power=False, on_route=routes.append
    ) as client:
        for number in range(answers):
            if number == answers // 10:  # what is made once is made by now
                ends = [timed(owner, name, spans[step]) for step, (owner, name) in STEPS.items()]
            messages: Any = [{"role": "user", "content": f"{number} " + "wave " * (number % 40)}]
            asked = {"messages": messages, "max_tokens": 8, "stream": True}
            async for _ in await client.chat.completions.create(model="gpt-4o-mini", **asked):
                pass
            await anyio.sleep(10.0)
    for end in ends:
        end()
    return spans, routes[-1]


def main() -> None:
    given = options(__doc__, answers=(600, "answers for each preset"))
    backend, how = virtual("asyncio")
    gc.disable()
    table = Columns(
        "shadow <14 | moment µs >10.1f | plan µs >8.1f | estimate µs >12.1f | together >9.1f | P99 >8.1f | "
        "record B >9 | of it >7"
    )
    for shadow in SHADOWS:
        spans, route = anyio.run(measured, shadow, given.answers, backend=backend, backend_options=how)
        sums = sorted(map(sum, zip(*spans.values(), strict=False)))
        whole, part = len(route.to_json()), len(str(route.to_dict()["shadow"]))
        medians = [statistics.median(one) for one in spans.values()]
        table.row(shadow, *medians, statistics.median(sums), sums[int(0.99 * len(sums))], whole, part)


if __name__ == "__main__":
    main()
