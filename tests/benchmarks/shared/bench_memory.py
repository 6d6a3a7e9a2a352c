"""The memory of several programs that use one model: each with a copy of its own, or attached to a `disco serve`.

Each program asks once and then waits while all are measured, each with the processes that it has started. RSS counts
pages that several processes share (the model's file, Python's libraries) in each of them; PSS counts them once in all.
Prints a table for docs/how-to/attach.md. Needs Linux. It fails only if an attached program has loaded the model.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

SERVE = "import sys; from disco.cli import main; sys.exit(main())"
PROGRAM = """
import asyncio, sys
from disco import AsyncDisco

async def main():
    async with AsyncDisco(local=sys.argv[1], preset="private", attach=sys.argv[2] == "attached") as client:
        asked = [{"role": "user", "content": "Tell me about the sea."}]
        answer = await client.chat.completions.create(model="m", messages=asked, max_tokens=32)
        assert answer.choices[0].message.content
        own = getattr(client.router.local, "own", client.router.local)
        print("own" if own.capabilities().ready else "attached", flush=True)
        sys.stdin.readline()

asyncio.run(main())
"""


@contextlib.contextmanager
def started(*command: str, folder: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, once it has written its first line, and that line."""
    variables = {**os.environ, "DISCO_ATTACH": folder, "DISCO_STATE": "off"}
    with subprocess.Popen(
        [sys.executable, "-c", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=variables,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.terminate()


def memory(pid: int) -> tuple[float, float]:
    """RSS and PSS of a process and its children, MiB."""
    rss, pss = 0.0, 0.0
    children = Path(f"/proc/{pid}/task").glob("*/children")
    for one in (
        str(pid),
        *(child for file in children for child in file.read_text(encoding="ascii").split()),
    ):
        lines = Path(f"/proc/{one}/smaps_rollup").read_text(encoding="ascii").splitlines()
        kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith("kB")}
        rss, pss = rss + kib["Rss"] / 1024, pss + kib["Pss"] / 1024
    return rss, pss


def measured(model: str, how: str, programs: int) -> tuple[float, float, float]:
    """RSS of a program, and the sums of RSS and of PSS of all processes, the server included; MiB."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        where = str(Path(folder) / "serve")
        pids = []
        if how == "attached":
            options = ("serve", "--port", "0", "--preset", "private", "--local", model)
            server, _ = stack.enter_context(started(SERVE, *options, folder=where))
            pids.append(server.pid)
        for _ in range(programs):
            process, said = stack.enter_context(started(PROGRAM, model, how, folder=where))
            assert said == how, said
            pids.append(process.pid)
        found = [memory(pid) for pid in pids]
    return found[-1][0], sum(rss for rss, _ in found), sum(pss for _, pss in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    model = parser.parse_args().model
    print(
        "| programs | how | RSS of a program, MiB | RSS of all, MiB | PSS of all, MiB |\n|---|---|---|---|---|"
    )
    for programs in (1, 2, 3):
        for how in ("own", "attached"):
            one, rss, pss = measured(model, how, programs)
            name = "a copy each" if how == "own" else "attached, server included"
            print(f"| {programs} | {name} | {one:.0f} | {rss:.0f} | {pss:.0f} |")


if __name__ == "__main__":
    main()
