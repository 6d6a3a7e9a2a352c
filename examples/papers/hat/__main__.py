"""`python -m papers.hat`: the HAT paper's evaluation: its figures beside ours."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from papers.evaluation import command
from papers.hat import hat_page, hat_tables, run_hat

__all__ = ["main"]

QUICK: dict[str, Any] = {"share": 0.25}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the evaluation and return the exit status."""
    about = "The HAT paper's evaluation: its figures beside ours."
    return command(
        argv, "hat", about, run_hat, hat_tables, hat_page, quick=QUICK, runs="runs per cell (default: 1)"
    )


if __name__ == "__main__":
    sys.exit(main())
