"""Programs that learn, and may be killed at any moment; each notes what it knows to be in the state file."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import anyio

__all__ = ["learn"]

WORDS = ["word"] * 12


def learn(path: str, name: str, notes: str, answers: int, seed: int, *, may_end: bool) -> None:
    """Ask until so many answers of this name are noted in all; kept apart from other programs' by the name.

    Unless it `may_end`, it then notes its last answers again and again until it is killed.
    """
    from disco.state import observations

    os.environ.pop("DISCO_STATE", None)
    observations.KEPT = 10_000  # more than they can make: what is missing was lost
    anyio.run(_learn, Path(path), name, Path(notes), answers, random.Random(seed), may_end)


async def _learn(path: Path, name: str, notes: Path, answers: int, rng: random.Random, may_end: bool) -> None:
    from disco import AsyncDisco
    from disco.dispatch import Preset
    from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
    from disco.endpoints.simulation.simulated_script import SimulatedProfile
    from disco.judging import HistoryKey

    device = SimulatedEndpoint(
        name,
        SimulatedProfile(overhead_s=0.005, prefill_tps=50_000.0, decode_tps=20_000.0, answer_tokens=12),
        place="device",
    )
    preset = Preset(dispatch={"policy": "device_only"}, playback={"pace_tps": "off"})
    done = sum(json.loads(line)["answers"] for line in _last_of_each(notes))
    async with AsyncDisco(local=device, preset=preset, state=path) as client:
        router = client.router
        database, writer = router.database, router.learnt.writer
        assert database is not None
        asked = 0
        with notes.open("a", encoding="utf-8") as file:

            def note() -> None:
                file.write(json.dumps({"writer": writer, "answers": asked}) + "\n")
                file.flush()  # to the system, which outlives this program

            while done + asked < answers:
                text = " ".join([name, str(asked), *WORDS])
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
                router.judging.book.history(HistoryKey("task", name, "weakest"), 10_000).push(rng.random())
                asked += 1
                if rng.random() < 0.3 and database.flush():
                    note()
            while not may_end:
                assert database.flush()
                note()
                await anyio.sleep(0.02)
        assert database.flush()
    with notes.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"writer": writer, "answers": asked}) + "\n")


def _last_of_each(notes: Path) -> list[str]:
    """The last note of each writer: of each life of the program."""
    lines = notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []
    return list({json.loads(line)["writer"]: line for line in lines}.values())
