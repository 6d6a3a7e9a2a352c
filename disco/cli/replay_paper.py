"""`disco replay disco`, `recserve`, `pd`, `dsd` and `hat`: a paper's figures beside ours."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import Any

from disco.cli.console import Screen
from disco.cli.output_files import write
from disco.replay.papers.disco import paper_tables, run_paper
from disco.replay.papers.dsd import dsd_page, dsd_tables, run_dsd
from disco.replay.papers.hat import hat_page, hat_tables, run_hat
from disco.replay.papers.paper_table import PaperTable
from disco.replay.papers.pd_device import pd_page, pd_tables, run_pd
from disco.replay.papers.recserve import recserve_page, recserve_tables, run_recserve
from disco.replay.report import to_html
from disco.replay.sweeps.executors import open_executor

__all__ = ["replay_dsd", "replay_hat", "replay_paper", "replay_pd", "replay_recserve"]

RUNS = 10
QUICK: dict[str, Any] = {"runs": 2, "requests": 200, "event_requests": 20}
QUICK_PASSES = 2
QUICK_DSD: dict[str, Any] = {"share": 0.2}
QUICK_HAT: dict[str, Any] = {"share": 0.25}
QUICK_PD: dict[str, Any] = {"requests": 500, "arrivals": 3_000, "sessions": 50}


def replay_paper(screen: Screen, arguments: argparse.Namespace) -> int:
    """Run the DiSCo paper's evaluation and print its tables; return the exit status."""
    amount: dict[str, Any] = dict(QUICK) if arguments.quick else {"runs": RUNS}
    if arguments.runs is not None:
        amount["runs"] = arguments.runs
    with open_executor(arguments.jobs, arguments.scheduler) as executor, screen.bar("Replaying") as tell:
        result = run_paper(executor=executor, progress=tell, lengths=arguments.lengths, **amount)
    _print(screen, paper_tables(result))
    if arguments.json is not None:
        write(screen, arguments.json, json.dumps(result.to_dict(), indent=2, ensure_ascii=False), "Figures")
    if arguments.html is not None:
        write(screen, arguments.html, to_html(result.report()), "Page with the plots")
    return 0


def replay_recserve(screen: Screen, arguments: argparse.Namespace) -> int:
    """Run the RecServe paper's evaluation and print its tables; return the exit status."""
    runs = QUICK_PASSES if arguments.quick else RUNS
    if arguments.runs is not None:
        runs = arguments.runs
    with open_executor(arguments.jobs, arguments.scheduler) as executor, screen.bar("Replaying") as tell:
        result = run_recserve(executor=executor, progress=tell, runs=runs)
    _print(screen, recserve_tables(result))
    if arguments.json is not None:
        write(screen, arguments.json, json.dumps(result.to_dict(), indent=2, ensure_ascii=False), "Figures")
    if arguments.html is not None:
        write(screen, arguments.html, recserve_page(result), "Page with the plots")
    return 0


def replay_pd(screen: Screen, arguments: argparse.Namespace) -> int:
    """Run the P/D-Device paper's evaluation and print its tables; return the exit status."""
    amount = QUICK_PD if arguments.quick else {}
    with open_executor(arguments.jobs, arguments.scheduler) as executor, screen.bar("Replaying") as tell:
        result = run_pd(executor=executor, progress=tell, **amount)
    _print(screen, pd_tables(result))
    if arguments.json is not None:
        write(screen, arguments.json, json.dumps(result.to_dict(), indent=2, ensure_ascii=False), "Figures")
    if arguments.html is not None:
        write(screen, arguments.html, pd_page(result), "Page with the plots")
    return 0


def replay_dsd(screen: Screen, arguments: argparse.Namespace) -> int:
    """Run the DSD paper's evaluation and print its tables; return the exit status."""
    amount: dict[str, Any] = dict(QUICK_DSD) if arguments.quick else {}
    if arguments.runs is not None:
        amount["runs"] = arguments.runs
    with open_executor(arguments.jobs, arguments.scheduler) as executor, screen.bar("Replaying") as tell:
        result = run_dsd(executor=executor, progress=tell, **amount)
    _print(screen, dsd_tables(result))
    if arguments.json is not None:
        write(screen, arguments.json, json.dumps(result.to_dict(), indent=2, ensure_ascii=False), "Figures")
    if arguments.html is not None:
        write(screen, arguments.html, dsd_page(result), "Page with the plots")
    return 0


def replay_hat(screen: Screen, arguments: argparse.Namespace) -> int:
    """Run the HAT paper's evaluation and print its tables; return the exit status."""
    amount: dict[str, Any] = dict(QUICK_HAT) if arguments.quick else {}
    if arguments.runs is not None:
        amount["runs"] = arguments.runs
    with open_executor(arguments.jobs, arguments.scheduler) as executor, screen.bar("Replaying") as tell:
        result = run_hat(executor=executor, progress=tell, **amount)
    _print(screen, hat_tables(result))
    if arguments.json is not None:
        write(screen, arguments.json, json.dumps(result.to_dict(), indent=2, ensure_ascii=False), "Figures")
    if arguments.html is not None:
        write(screen, arguments.html, hat_page(result), "Page with the plots")
    return 0


def _print(screen: Screen, tables: Iterable[PaperTable]) -> None:
    for table in tables:
        screen.table(table.title, table.header, table.rows)
        for note in table.notes:
            screen.line(note, style="dim")
        screen.line()
