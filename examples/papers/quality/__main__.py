"""`python -m papers.quality`: whether answers of two models are as good as those of one, on the shipped traces."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence

from papers.evaluation import print_tables
from papers.quality.shipped import shipped_tables
from papers.terminal import Screen

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables of all shipped traces and return the exit status."""
    about = (
        "Whether answers that two models wrote are as good as those of one: all tables of the shipped traces."
    )
    parser = ArgumentParser(prog="python -m papers.quality", description=about)
    parser.add_argument(
        "--quick", action="store_true", help="taken as by the other papers; this one is quick"
    )
    parser.parse_args(argv)
    print_tables(Screen(), shipped_tables())
    return 0


if __name__ == "__main__":
    sys.exit(main())
