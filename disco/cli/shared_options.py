"""Options of more than one command, each declared once."""

from __future__ import annotations

import argparse

from disco.client.request_options import DEFAULT_PRESET

__all__ = ["add_preset", "add_runtime"]


def add_preset(parser: argparse.ArgumentParser) -> None:
    """Add the option that chooses a preset."""
    parser.add_argument(
        "--preset", default=DEFAULT_PRESET, help="a preset's name or file (default: %(default)s)"
    )


def add_runtime(parser: argparse.ArgumentParser) -> None:
    """Add the option that says what runs a local model which is named by a name or a file."""
    parser.add_argument(
        "--runtime",
        choices=("auto", "compiled", "prebuilt"),
        default="auto",
        help="what runs the local model: llama-cpp-python, or a prebuilt llama-server (default: auto, the first of "
        "these that is installed)",
    )
