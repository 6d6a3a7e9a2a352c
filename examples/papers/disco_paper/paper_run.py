"""Run of the paper's whole evaluation: `run_paper`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from itertools import product
from typing import Final

from disco.errors import ConfigurationError
from disco.profiles import ServerProfile
from disco.replay import Progress, run_all
from papers.disco_paper.migration_runs import ORDERS, migration_runs_of
from papers.disco_paper.paper_requests import LengthSample, Requests, read_lengths
from papers.disco_paper.paper_result import PaperResult
from papers.disco_paper.paper_setup import BUDGETS, SERVERS, pairs
from papers.disco_paper.planning_times import planning_times
from papers.disco_paper.ttft_curves import curves_of

__all__ = ["EVENT_REQUESTS", "run_paper"]

EVENT_REQUESTS: Final = 200
"""Number of requests of the first run for the event-accurate evaluator, at every second budget above 0."""


def run_paper(
    *,
    runs: int = 10,
    requests: int = 1000,
    budgets: Sequence[float] = BUDGETS,
    executor: Executor | None = None,
    progress: Progress | None = None,
    lengths: str | os.PathLike[str] | LengthSample | None = None,
    servers: Mapping[str, ServerProfile] | None = None,
    event_requests: int = EVENT_REQUESTS,
    seed: int = 0,
) -> PaperResult:
    """Run the paper's set-up: 3 devices × 4 servers × 2 regimes × budgets.

    TTFT comes from the vectorised evaluator, on all requests of all runs. What readers notice of migrations, and what
    migrations save, comes from the event-accurate one, on the first requests of the first run at every second budget
    above 0 (at budget 0 only the cheaper side answers).

    Args:
        runs: number of runs; each draws requests and times again.
        requests: number of requests in each run.
        budgets: shares b.
        executor: runs the pairs of endpoints; None: in this process. Every executor gives the same figures, except for
            planning times.
        progress: called with the number of units of work done, and the total.
        lengths: a CSV file with prompt_tokens and output_tokens to draw requests from; None: like Alpaca's.
        servers: profiles to use instead of the shipped stand-ins, by the paper's names (see `paper_setup.SERVERS`).
        event_requests: number of requests for the event-accurate evaluator, at most `requests`.
        seed: seed of the first run; the others follow.

    Raises:
        ConfigurationError: a number out of range, an unknown server, or a file of lengths that is not valid.
    """
    began_at = time.monotonic()
    for what, value, least in (
        ("runs", runs, 1),
        ("requests", requests, 1),
        ("event_requests", event_requests, 1),
        ("seed", seed, 0),
    ):
        if value < least:
            raise ConfigurationError(f"{what} must be at least {least}, not {value}")
    steps = tuple(sorted(set(budgets)))
    if not steps or not all(0.0 <= budget <= 1.0 for budget in steps):
        raise ConfigurationError(f"budgets are shares between 0 and 1, at least one, not {list(budgets)}")
    if lengths is not None and not isinstance(lengths, LengthSample):
        lengths = read_lengths(lengths)
    source = Requests(requests, lengths)
    chosen = pairs(servers)
    replayed = min(event_requests, requests)
    seeds = tuple(range(seed, seed + runs))

    above_0 = [budget for budget in steps[::-2] if budget > 0.0][::-1] or list(steps)
    events = [
        (source, pair, budget, order, seed, replayed)
        for pair, budget, order in product(chosen, above_0, ORDERS)
    ]
    vectors = [(source, pair, steps, seeds) for pair in chosen]
    tell = progress or (lambda _done, _total: None)
    total = len(events) + len(vectors)
    # The longer units first: at the end only short ones are left for the last worker.
    moves = run_all(executor, migration_runs_of, events, lambda done, _: tell(done, total))
    curves = run_all(executor, curves_of, vectors, lambda done, _: tell(len(events) + done, total))
    return PaperResult(
        runs=runs,
        requests=requests,
        event_requests=replayed,
        budgets=steps,
        seed=seed,
        lengths=source.what,
        servers={
            one.key: servers[one.key].name if servers and one.key in servers else one.what for one in SERVERS
        },
        curves=tuple(curves),
        migrations=tuple(moves),
        planning=planning_times(),
        took_s=time.monotonic() - began_at,
    )
