"""`python -m papers.pd_device`: The P/D-Device paper's evaluation: its figures beside ours."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from papers.evaluation import evaluate, options
from papers.pd_device import pd_page, pd_tables, run_pd
from papers.terminal import run_command

__all__ = ["main"]

QUICK: dict[str, Any] = {"requests": 500, "arrivals": 3_000, "sessions": 50}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the evaluation and return the exit status."""
    parser = options("pd_device", "The P/D-Device paper's evaluation: its figures beside ours.")
    arguments = parser.parse_args(argv)
    amount = dict(QUICK) if arguments.quick else {}
    return run_command(lambda: evaluate(arguments, run_pd, pd_tables, pd_page, amount=amount))


if __name__ == "__main__":
    sys.exit(main())
