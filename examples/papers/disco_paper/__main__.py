"""`python -m papers.disco_paper`: the DiSCo paper's evaluation: its figures beside ours."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from disco.replay import to_html
from papers.disco_paper import PaperResult, paper_tables, run_paper
from papers.evaluation import evaluate, options
from papers.terminal import run_command

__all__ = ["main"]

QUICK: dict[str, Any] = {"runs": 2, "requests": 200, "event_requests": 20}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the evaluation and return the exit status."""
    parser = options("disco_paper", "The DiSCo paper's evaluation: its figures beside ours.")
    parser.add_argument("--runs", type=int, metavar="N", help="runs per cell (default: 10)")
    parser.add_argument(
        "--lengths",
        metavar="FILE",
        help="lengths to use instead of the shipped ones: prompt_tokens, output_tokens",
    )
    arguments = parser.parse_args(argv)
    amount = dict(QUICK) if arguments.quick else {}
    if arguments.runs is not None:
        amount["runs"] = arguments.runs
    return run_command(
        lambda: evaluate(
            arguments, run_paper, paper_tables, _page, amount={**amount, "lengths": arguments.lengths}
        )
    )


def _page(result: PaperResult) -> str:
    return to_html(result.report())


if __name__ == "__main__":
    sys.exit(main())
