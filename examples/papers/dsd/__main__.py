"""`python -m papers.dsd`: the DSD paper's evaluation: its figures beside ours."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from papers.dsd import dsd_page, dsd_tables, run_dsd
from papers.evaluation import command

__all__ = ["main"]

QUICK: dict[str, Any] = {"share": 0.2}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the evaluation and return the exit status."""
    about = "The DSD paper's evaluation: its figures beside ours."
    return command(
        argv, "dsd", about, run_dsd, dsd_tables, dsd_page, quick=QUICK, runs="runs per cell (default: 1)"
    )


if __name__ == "__main__":
    sys.exit(main())
