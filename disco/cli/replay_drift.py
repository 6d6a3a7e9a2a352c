"""`disco replay drift`: planners that follow a server whose times change."""

from __future__ import annotations

import argparse
import json
from typing import Any

from disco.cli.console import Screen
from disco.cli.option_types import parse_budgets
from disco.cli.output_files import write
from disco.replay.drift import drift_tables, run_drift
from disco.replay.sweeps.executors import open_executor

__all__ = ["replay_drift"]

QUICK: dict[str, Any] = {"runs": 2, "budgets": (0.1,)}


def replay_drift(screen: Screen, arguments: argparse.Namespace) -> int:
    """Run the comparison and print its tables; return the exit status."""
    amount: dict[str, Any] = dict(QUICK) if arguments.quick else {}
    if arguments.runs is not None:
        amount["runs"] = arguments.runs
    if arguments.budget is not None:
        amount["budgets"] = parse_budgets(arguments.budget)
    with open_executor(arguments.jobs, arguments.scheduler) as executor, screen.bar("Replaying") as tell:
        result = run_drift(executor=executor, progress=tell, traces=arguments.trace_file or (), **amount)
    for name, what in result.sources.items():
        screen.line(f"{name}: {what}.", style="dim")
    for table in drift_tables(result):
        screen.table(table.title, table.header, table.rows)
        for note in table.notes:
            screen.line(note, style="dim")
        screen.line()
    if arguments.json is not None:
        write(screen, arguments.json, json.dumps(result.to_dict(), indent=2, ensure_ascii=False), "Figures")
    return 0
