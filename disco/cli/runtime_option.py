"""The option `--runtime` of the commands that run a local model."""

from __future__ import annotations

import argparse

__all__ = ["add_runtime"]


def add_runtime(parser: argparse.ArgumentParser) -> None:
    """Add the option: what runs a local model that is named by a name or a file."""
    parser.add_argument(
        "--runtime",
        choices=("auto", "compiled", "prebuilt"),
        default="auto",
        help="what runs the local model: llama-cpp-python, or a prebuilt llama-server (default: auto, the first of "
        "these that is installed)",
    )
