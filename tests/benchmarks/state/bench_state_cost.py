"""What the state file costs: microseconds of the event loop for each answer, the first read, and bytes on disk.

The answers are those of a simulated server and a simulated device that both race, so that each answer brings as many
observations as it can.
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import anyio
from helpers import tests_path  # noqa: F401 - makes the tests' helpers importable
from helpers.measuring import Columns, options

from disco import AsyncDisco
from disco.dispatch import Preset
from disco.dispatch.breakers.endpoint_health import Health
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.state.contents import file_size
from disco.state.observations import EVERYONE, KEPT, Observation, append_observations

MODEL = "gpt-4o-mini"
KINDS = ("ttft_s", "decode_tps")
OURS = ("start_s", "turn_s", "decode_tps")


class Server(SimulatedEndpoint):
    address, has_route = ("server.example", 443), True


def client_of(state: Path | bool) -> AsyncDisco:
    profile = SimulatedProfile(decode_tps=1e6, answer_tokens=12, packet_tokens=12)
    client = AsyncDisco(
        api_key="x",
        local=SimulatedEndpoint("device", profile, place="device"),
        preset=Preset(
            dispatch={"policy": "race"}, playback={"pace_tps": "off"}, migration={"enabled": False}
        ),
        state=state,
        price=(0.15, 0.60),
    )
    client.server = Server("server", profile, place="server")
    return client


def timed_us(work: Callable[[], object], times: int) -> float:
    """Median of single calls."""
    taken = []
    gc.disable()
    for _ in range(times):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    gc.enable()
    return statistics.median(taken) * 1e6


async def asked(client: AsyncDisco, answers: int) -> float:
    """Milliseconds for each answer, one after the other."""
    for turn in range(answers + 20):
        if turn == 20:
            started = time.perf_counter()
        await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": f"Hello {turn}"}]
        )
    return (time.perf_counter() - started) / answers * 1e3


async def main() -> None:
    given = options(__doc__, answers=400, turns=5)
    columns = Columns("what <64 | figure >10,.1f | unit >5")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.sqlite3"
        without, with_file = [], []
        for turn in range(given.turns):
            for state, found in ((False, without), (Path(folder) / f"{turn}.sqlite3", with_file)):
                async with client_of(state) as client:
                    found.append(await asked(client, given.answers))
        columns.row("an answer without a state file", statistics.median(without), "ms")
        columns.row("an answer with one", statistics.median(with_file), "ms")

        started = time.perf_counter()
        async with client_of(path) as client:
            learnt, router = client.router.learnt, client.router
            members = router.endpoints.members(client.server)
            learnt.ready_now(members, MODEL, anyio.current_time())
            columns.row("making the file (in a thread)", (time.perf_counter() - started) * 1e3, "ms")
            await asked(client, 1)
            statistics_of = {m.name: router.catalog.known(m, MODEL) for m in members}
            watch = Health().watch({m.name: m.as_asked(MODEL) for m in members})

            def before() -> None:
                learnt._wanted(members, MODEL)
                for member in members:
                    learnt.known(member, MODEL, statistics_of[member.name])

            def after() -> None:
                for kind in KINDS:
                    statistics_of["server"].keep(kind, 0.5, 0.0)
                for kind in OURS:
                    statistics_of["device"].keep(kind, 0.5, 60.0)
                for kind in ("answer_tokens", "prompt_tokens"):
                    router.statistics.keep(kind, 100, 1)
                learnt.answered(watch)

            columns.row("event loop, before an answer", timed_us(before, 2000), "µs")
            columns.row(
                "event loop, after an answer: seven observations are handed over", timed_us(after, 2000), "µs"
            )
            database = router.database
            subject = next(iter(learnt._told))
            rows = [(subject, Observation(kind, time.time(), 0.5)) for kind in (*KINDS, *OURS)]
            rows += [
                (EVERYONE, Observation(kind, time.time(), 100.0))
                for kind in ("answer_tokens", "prompt_tokens")
            ]
            database.flush()
            writing = lambda: database.write(lambda c: append_observations(c, 1, rows), None)  # noqa: E731
            columns.row("thread: such a transaction", timed_us(writing, 2000), "µs")
            for _ in range(KEPT):
                after()
            database.flush()
            columns.row(
                "file with 512 of each kind of one server and one device", file_size(path) / 1024, "KiB"
            )
        columns.row("the same after it was closed", file_size(path) / 1024, "KiB")

        async with client_of(path) as client:
            learnt, router = client.router.learnt, client.router
            members = router.endpoints.members(client.server)
            wanted = learnt._wanted(members, MODEL)
            columns.row(
                "second start: reading that (in a thread)",
                timed_us(lambda: learnt._load(wanted), 20) / 1e3,
                "ms",
            )
            learnt.ready_now(members, MODEL, anyio.current_time())
            started = time.perf_counter()
            for member in members:
                learnt.known(member, MODEL, router.catalog.known(member, MODEL))
            columns.row(
                "second start: learning that, once (event loop)", (time.perf_counter() - started) * 1e3, "ms"
            )


if __name__ == "__main__":
    anyio.run(main)
