"""How long it takes after leaving an answer until nothing of it runs: every way, at every moment.

Counted are tasks, connections as the server sees them, and the model's work. Every answer goes through a session, also
where a server is alone (which would otherwise answer the SDK's own way). It decides nothing: `tests/cancellation` does.
"""

from __future__ import annotations

import logging

import anyio
import helpers.tests_path  # noqa: F401
import moved_clock
from helpers.measuring import options
from leaving import BROKEN_OFF, LEFT, READING, WAITING, break_off, device, leave, scene
from rich.console import Console
from rich.table import Table

# The time is up before, or after, the moment.
UNTIMED = {
    (moment, way) for moment in ("model loads", "last token came") for way in ("fail_after", "deadline")
}


async def measure(rounds: int, table: Table, backend: str) -> list[float]:
    model, all_s = device(), []
    await model.warm_up()
    for moment in (*WAITING, *READING):
        row = []
        for way in (*LEFT, *BROKEN_OFF):
            waits = moment in WAITING
            if (waits and way in LEFT) or (way == "task" and backend == "trio") or (moment, way) in UNTIMED:
                row.append("")
                continue
            took_s = []
            for _ in range(rounds):
                async with scene(moment, model, session=True) as found:
                    took_s.append(await (break_off if waits else leave)(found, way))
            row.append(f"{1e3 * max(took_s):.0f}")
            all_s += took_s
        table.add_row(moment, *row)
    await model.aclose()
    return all_s


def main() -> None:
    given = options(
        __doc__,
        rounds=(5, "of each; the slowest is shown"),
        backend=(["asyncio", "trio"], "asyncio, trio or both"),
    )
    logging.disable(logging.WARNING)
    console = Console(width=120)
    for backend in given.backend:
        title = f"{backend}: ms until quiet, slowest of {given.rounds}"
        table = Table("moment", *LEFT, *BROKEN_OFF, title=title)
        name, how = moved_clock.backend(backend)
        all_s = anyio.run(measure, given.rounds, table, backend, backend=name, backend_options=how)
        console.print(table)
        over = sum(took_s > 0.2 for took_s in all_s)
        median = sorted(all_s)[len(all_s) // 2]
        console.print(
            f"median {1e3 * median:.0f} ms, slowest {1e3 * max(all_s):.0f} ms, {over} of {len(all_s)} over 200 ms"
        )


if __name__ == "__main__":
    main()
