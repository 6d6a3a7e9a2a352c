"""`python -m papers.drift`: planners that follow a server whose times change."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from papers.drift import DriftResult, drift_tables, run_drift
from papers.evaluation import evaluate, options
from papers.terminal import Screen, run_command

__all__ = ["main"]

QUICK: dict[str, Any] = {"runs": 2, "budgets": (0.1,)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison and return the exit status."""
    parser = options("drift", "Planners that follow a server whose times change.", page=False)
    parser.add_argument("--runs", type=int, metavar="N", help="seeds of each workload (default: 10)")
    parser.add_argument(
        "--budgets",
        type=_budgets,
        metavar="B,B",
        help="shares of prompt tokens that the device may read (default: 0.1,0.3)",
    )
    parser.add_argument(
        "--trace-file",
        action="append",
        metavar="FILE",
        default=[],
        help="a CSV file with a real server's ttft_s and, if known, timestamp; may be given several times",
    )
    arguments = parser.parse_args(argv)
    amount = dict(QUICK) if arguments.quick else {}
    amount |= {"runs": arguments.runs} if arguments.runs is not None else {}
    amount |= {"budgets": arguments.budgets} if arguments.budgets is not None else {}
    amount["traces"] = arguments.trace_file
    return run_command(
        lambda: evaluate(arguments, run_drift, drift_tables, amount=amount, before=_say_sources)
    )


def _budgets(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _say_sources(screen: Screen, result: DriftResult) -> None:
    for name, what in result.sources.items():
        screen.line(f"{name}: {what}.", style="dim")


if __name__ == "__main__":
    sys.exit(main())
