"""Predicted and lived: what `disco replay --as-recorded` says of answers that it has not seen, beside what was lived.

The app and its endpoints are those of `bench_defaults.py`: real `AsyncDisco` with a real SmolLM2 on this machine, and a
real llama-server behind a strict front that adds the time of a network. Requests of several lengths come at times that
are drawn beforehand. Two presets take turns in blocks, each with a client and a recording of its own. The two models
have a core each, as if they were on two machines.

Printed, as errors of what is predicted: each second half from its first half; every second block from those before
them, so that a machine that becomes slower is so for both; each preset's answers from the other preset's recording; and
each recording with its own times, which shows what replay itself leaves out.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import helpers.tests_path  # noqa: F401
from bench_defaults import KEY, PRICE, SUBJECTS, WORDS, Found, StrictFront, ask
from helpers.measuring import Columns, options
from servers import native_llama_server

from disco import AsyncDisco, RouteLog
from disco.dispatch import load_preset
from disco.replay.stations.predicted import predict
from disco.replay.stations.recorded_stations import Recording, read_halves, read_recording

GOALS = {
    "TTFT P50, s": 0.1,
    "TTFT P90, s": 0.2,
    "TTFT P99, s": 0.2,
    "to servers, USD/1000": 0.05,
}
PAUSE_S = 5.0  # between two blocks: every answer has ended


def questions(seed: int, count: int) -> list[str]:
    """Questions that make prompts of about 55 to 160 tokens; most are short."""
    draw = random.Random(seed)
    asked = []
    for _ in range(count):
        how = ", ".join(draw.choices(WORDS, k=round(2 * 22 ** draw.random())))
        asked.append(f"Explain in a few words how {draw.choice(SUBJECTS)} work. Be {how}.")
    return asked


async def block(client: Any, name: str, seed: int, size: int, interval_s: float, found: Found) -> None:
    """Ask so many questions, each at its time, whether or not those before are answered."""
    draw = random.Random(1000 + seed)
    async with asyncio.TaskGroup() as group:
        for question in questions(seed, size):
            group.create_task(ask(client, question, draw.randint(8, 16), found, name))
            await asyncio.sleep(draw.expovariate(1.0 / interval_s))


async def record(given: Any, folder: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:1])  # what starts now keeps to it
    with native_llama_server(slots=4, context_tokens=1024) as llama:
        os.sched_setaffinity(0, cores[1:2] or cores)
        async with StrictFront(llama.base_url, llama.model).running() as front:
            clients, found = {}, {name: Found() for name in given.presets}
            for name in given.presets:
                clients[name] = AsyncDisco(
                    api_key=KEY,
                    base_url=front.base_url,
                    price=PRICE,
                    local="smollm2-135m",
                    runtime="llama-server",
                    state=False,
                    power=False,  # the server runs on this machine, too, and would make it look busy
                    preset=name,
                    on_route=RouteLog(folder / f"{name}.jsonl"),
                )
                await clients[name].warm_up()
            os.sched_setaffinity(0, cores)
            first = given.seed * given.answers
            for turn, begin in enumerate(range(0, given.answers, given.block), first):
                size = min(given.block, given.answers - begin)
                for name, client in clients.items():
                    await block(client, name, turn, size, given.interval, found[name])
                    await asyncio.sleep(PAUSE_S)
                print(f"{begin + size} answers of each, load {os.getloadavg()[0]:.1f}", flush=True)
            for client in clients.values():
                await client.close()
    for name, one in found.items():
        print(f"{name}: {dict(one.winners)}, errors {dict(one.errors)}", flush=True)


def blocks(path: Path, size: int, folder: Path) -> list[Path]:
    """The recording in two: every second block of answers, and the others."""
    records = sorted(
        path.read_text(encoding="utf-8").splitlines(), key=lambda one: json.loads(one)["created_s"]
    )
    found = []
    for place, name in enumerate(("first", "second")):
        these = [line for n, line in enumerate(records) if (n // size) % 2 == place]
        found.append(folder / f"{path.stem}-{name}.jsonl")
        found[-1].write_text("".join(f"{line}\n" for line in these), encoding="utf-8")
    return found


def compare(paths: list[Path], size: int, folder: Path) -> None:
    table = Columns(
        "predicted <24 | from <18 | answers >7 | TTFT P50 >22 | TTFT P90 >22 | TTFT P99 >22 | to servers >22"
    )
    for path in paths:
        first, rest = read_halves(path, 0.5)
        shown(table, f"{path.stem}, second half", f"{path.stem}, first half", rest, first)
    for path in paths:
        first, second = map(read_recording, blocks(path, size, folder))
        shown(table, f"{path.stem}, every 2nd block", "the other blocks", second, first)
    for path, other in itertools.permutations(paths, 2):
        shown(table, path.stem, other.stem, read_recording(path), read_recording(other))
    for path in paths:
        shown(table, path.stem, "times of its own", read_recording(path), None)


def shown(table: Columns, name: str, by: str, recording: Recording, fitted_on: Recording | None) -> None:
    """A row of errors with their 95 % intervals; an exclamation mark says that an error is above its goal."""
    found = predict(recording, load_preset(recording.answers[0].preset), fitted_on=fitted_on, seeds=10)
    cells = []
    for figure, most in GOALS.items():
        error = found.figure(figure).error
        missed = "!" if abs(error.mean) > most else ""
        cells.append(f"{missed}{error.mean:+.0%} ({error.low:+.0%} to {error.high:+.0%})")
    table.row(name, by, found.answers, *cells)


async def main() -> None:
    given = options(
        __doc__,
        answers=(1000, "of each preset"),
        presets=(["fast", "cheap"], "two of them"),
        interval=(1.5, "mean seconds between two requests"),
        block=(50, "answers of one preset before the other one's turn"),
        seed=(0, "of prompts, lengths and arrivals"),
        folder=("", "keep the recordings there; where it has them already, they are taken as they are"),
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(given.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - before anything else runs
        paths = [folder / f"{name}.jsonl" for name in given.presets]
        if not all(path.exists() for path in paths):
            await record(given, folder)
        compare(paths, given.block, Path(temporary))


if __name__ == "__main__":
    asyncio.run(main())
