"""Budgets in the state file: what a reservation costs the event loop; whether a limit holds while programs are killed.

    python tests/benchmarks/state/bench_budgets.py [--programs 4] [--requests 500] [--seconds 3] [--seed 1]

The first table: microseconds for each step, alone and beside other processes that do the same without a pause (the
worst case) or once every 5 ms. "Longest" is the longest time that the event loop stood still. The second: programs
that share one budget and are killed with `kill -9` at random moments, each started again until it has had so many
requests; `answers` are real clients with a server, `reservations` the tally alone, so that kills fall into
transactions. "Most spent" is counted outside of the programs, over every window.
"""

from __future__ import annotations

import logging
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import helpers.tests_path  # noqa: F401
from forked import FORKS
from helpers.measuring import Columns, options, percentile
from state.spending_programs import (
    Account,
    answers,
    check_file,
    killed_until_done,
    most_in_a_window,
    paid_server,
    reservations,
    spent_by_logs,
)

from disco.cost.budget_limiter import BudgetLimiter, Limit
from disco.state import SharedBudgets

LIMIT = Limit("usd", "server", "usd", 1e6, 3600.0, "benchmark")


class Warnings(logging.Handler):
    """Counts what disco warns of: each means that this process went on without the file."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


def steps(path: str | None, seconds: float, pause_s: float, results: Any) -> None:
    """Take, reserve and settle for so many seconds; put the times of each into `results`."""
    logging.getLogger("disco").addHandler(warnings := Warnings())
    logging.getLogger("disco").propagate = False
    budgets = None if path is None else SharedBudgets(Path(path))
    limiter = BudgetLimiter() if budgets is None else BudgetLimiter(budgets.tally)
    counter = limiter.counter(LIMIT)
    counter.left(time.time())
    times: dict[str, list[float]] = {"left": [], "reserve": [], "settle": []}
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        t0 = time.perf_counter()
        counter.left(time.time())
        t1 = time.perf_counter()
        ticket = counter.reserve(counter.units(0.001), time.time())
        t2 = time.perf_counter()
        assert ticket is not None
        counter.settle(ticket, counter.units(0.0005), time.time())
        t3 = time.perf_counter()
        for name, took in zip(times, (t1 - t0, t2 - t1, t3 - t2), strict=True):
            times[name].append(took * 1e6)
        if pause_s:
            time.sleep(random.uniform(0.5, 1.5) * pause_s)
    if budgets is not None:
        budgets.close()
    results.put((times, warnings.count))


def costs(programs: int, seconds: float) -> None:
    """Print what each step costs."""
    columns = Columns(
        "where <40 | step <9 | number >8 | P50 µs >8.0f | P99 µs >8.0f | longest ms >11.1f | gave up >9"
    )
    cases = [
        ("in memory", False, 1, 0.0),
        ("in the file, alone", True, 1, 0.0),
        (f"in the file, {programs} processes, every 5 ms", True, programs, 0.005),
        (f"in the file, {programs} processes, no pause", True, programs, 0.0),
    ]
    for title, is_shared, number, pause_s in cases:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "state.sqlite3") if is_shared else None
            results = FORKS.Manager().Queue()
            running = [
                FORKS.Process(target=steps, args=(path, seconds, pause_s, results)) for _ in range(number)
            ]
            for process in running:
                process.start()
            found = [results.get() for _ in running]
            for process in running:
                process.join()
        for step in ("left", "reserve", "settle"):
            times = [took for one, _ in found for took in one[step]]
            gave_up = sum(count for _, count in found)
            columns.row(
                *(title, step, len(times), percentile(times, 0.5), percentile(times, 0.99)),
                *(max(times) / 1e3, gave_up),
            )


def kills(programs: int, requests: int, seed: int) -> None:
    """Print whether the limit held."""
    columns = Columns(
        "programs <22 | requests >9 | attempts >9 | kills >6 | refused >8 | limit >6 | most spent >11 | "
        "broken off >11 | file >5 | s >6.0f"
    )
    for kind, window_s, lives_s in ((answers, 0.5, (0.1, 0.6)), (reservations, 0.05, (0.005, 0.05))):
        with tempfile.TemporaryDirectory() as name, paid_server() as server:
            folder, began = Path(name), time.monotonic()
            account = Account(folder / "state.sqlite3", tokens=1000, window_s=window_s)
            more = (server.base_url,) if kind is answers else ()
            run = killed_until_done(
                *(kind, account, folder, *more),
                count=requests,
                programs=programs,
                lives_s=lives_s,
                seed=seed,
            )
            spent = server.spent if kind is answers else spent_by_logs(folder, run.killed_at)
            check_file(account)
            columns.row(
                *(f"{programs} × {kind.__name__}", programs * requests, len(spent), run.kills, run.refused),
                *(account.tokens, most_in_a_window(spent, window_s), len(spent) - programs * requests),
                *("ok", time.monotonic() - began),
            )


if __name__ == "__main__":
    given = options(__doc__, programs=4, requests=500, seconds=3.0, seed=1)
    if given.seconds:
        costs(given.programs, given.seconds)
        print()
    if given.requests:
        kills(given.programs, given.requests, given.seed)
