"""`disco replay disco`: the DiSCo paper's evaluation, our figures beside the printed ones."""

from __future__ import annotations

import argparse
import json
from typing import Any

from disco.cli.console import Screen
from disco.cli.output_files import write
from disco.replay.papers.disco import paper_tables, run_paper
from disco.replay.report import to_html
from disco.replay.sweeps.executors import open_executor

__all__ = ["replay_paper"]

RUNS = 10
QUICK: dict[str, Any] = {"runs": 2, "requests": 200, "event_requests": 20}


def replay_paper(screen: Screen, arguments: argparse.Namespace) -> int:
    """Run the evaluation and print its tables; return the exit status."""
    amount: dict[str, Any] = dict(QUICK) if arguments.quick else {"runs": RUNS}
    if arguments.runs is not None:
        amount["runs"] = arguments.runs
    with open_executor(arguments.jobs, arguments.scheduler) as executor, screen.bar("Replaying") as tell:
        result = run_paper(executor=executor, progress=tell, lengths=arguments.lengths, **amount)
    for table in paper_tables(result):
        screen.table(table.title, table.header, table.rows)
        for note in table.notes:
            screen.line(note, style="dim")
        screen.line()
    if arguments.json is not None:
        write(screen, arguments.json, json.dumps(result.to_dict(), indent=2, ensure_ascii=False), "Figures")
    if arguments.html is not None:
        write(screen, arguments.html, to_html(result.report()), "Page with the plots")
    return 0
