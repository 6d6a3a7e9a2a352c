"""`python -m papers.recserve`: The RecServe paper's evaluation: its figures beside ours."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from papers.evaluation import evaluate, options
from papers.recserve import recserve_page, recserve_tables, run_recserve
from papers.terminal import run_command

__all__ = ["main"]

QUICK: dict[str, Any] = {"runs": 2}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the evaluation and return the exit status."""
    parser = options("recserve", "The RecServe paper's evaluation: its figures beside ours.")
    parser.add_argument("--runs", type=int, metavar="N", help="passes through each trace (default: 10)")
    arguments = parser.parse_args(argv)
    amount = dict(QUICK) if arguments.quick else {}
    if arguments.runs is not None:
        amount["runs"] = arguments.runs
    return run_command(
        lambda: evaluate(arguments, run_recserve, recserve_tables, recserve_page, amount=amount)
    )


if __name__ == "__main__":
    sys.exit(main())
