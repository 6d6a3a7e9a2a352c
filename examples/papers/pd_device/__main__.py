"""`python -m papers.pd_device`: the P/D-Device paper's evaluation: its figures beside ours."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from papers.evaluation import command
from papers.pd_device import pd_page, pd_tables, run_pd

__all__ = ["main"]

QUICK: dict[str, Any] = {"requests": 500, "arrivals": 3_000, "sessions": 50}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the evaluation and return the exit status."""
    about = "The P/D-Device paper's evaluation: its figures beside ours."
    return command(argv, "pd_device", about, run_pd, pd_tables, pd_page, quick=QUICK)


if __name__ == "__main__":
    sys.exit(main())
