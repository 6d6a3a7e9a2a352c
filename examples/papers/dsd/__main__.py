"""`python -m papers.dsd`: The DSD paper's evaluation: its figures beside ours."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from papers.dsd import dsd_page, dsd_tables, run_dsd
from papers.evaluation import evaluate, options
from papers.terminal import run_command

__all__ = ["main"]

QUICK: dict[str, Any] = {"share": 0.2}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the evaluation and return the exit status."""
    parser = options("dsd", "The DSD paper's evaluation: its figures beside ours.")
    parser.add_argument("--runs", type=int, metavar="N", help="runs per cell (default: 1)")
    arguments = parser.parse_args(argv)
    amount = dict(QUICK) if arguments.quick else {}
    if arguments.runs is not None:
        amount["runs"] = arguments.runs
    return run_command(lambda: evaluate(arguments, run_dsd, dsd_tables, dsd_page, amount=amount))


if __name__ == "__main__":
    sys.exit(main())
