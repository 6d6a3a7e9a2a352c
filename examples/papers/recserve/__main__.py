"""`python -m papers.recserve`: the RecServe paper's evaluation: its figures beside ours."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from papers.evaluation import command
from papers.recserve import recserve_page, recserve_tables, run_recserve

__all__ = ["main"]

QUICK: dict[str, Any] = {"runs": 2}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the evaluation and return the exit status."""
    about = "The RecServe paper's evaluation: its figures beside ours."
    return command(
        argv,
        "recserve",
        about,
        run_recserve,
        recserve_tables,
        recserve_page,
        quick=QUICK,
        runs="passes through each trace (default: 10)",
    )


if __name__ == "__main__":
    sys.exit(main())
