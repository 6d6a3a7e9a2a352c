"""The options of `python -m papers.measure refine`. This module needs only argparse."""

from __future__ import annotations

import argparse
from typing import Any

__all__ = ["add_refine"]


def _shares(text: str) -> tuple[float, ...]:
    shares = tuple(sorted(float(part) for part in text.split(",") if part))
    if not all(0.0 < share < 1.0 for share in shares):
        raise argparse.ArgumentTypeError("shares must lie between 0 and 1, such as 0.2,0.4")
    return shares


def add_refine(subcommands: Any) -> argparse.ArgumentParser:
    """Add the parser of `refine` to the subcommands; return it."""
    parser: argparse.ArgumentParser = subcommands.add_parser(
        "refine",
        help="refined prompts: how probable the right answer is when sentences are left out",
        description="A local model reads each question of a file in SQuAD's format behind its paragraph, whole and "
        "refined by several selectors. Written are means with intervals over paragraphs: the log probability of the "
        "right answer, F1 of the model's own, whether the sentence with the answer was kept. Ctrl-C interrupts; the "
        "same command resumes. The paragraphs come in random order.",
    )
    parser.add_argument("--texts", required=True, metavar="FILE", help="questions in SQuAD's JSON format")
    parser.add_argument(
        "--model",
        default="smollm2-135m",
        help="a name, a GGUF file or hf:owner/repo/file (default: %(default)s)",
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="the table, .csv")
    parser.add_argument(
        "--arms",
        choices=("main", "all"),
        default="main",
        help='"main": lexical, random, first and last units at every share, first and recent ones at 0.4; "all": also '
        "what needs the model's view of the whole prompt first (default: %(default)s)",
    )
    parser.add_argument(
        "--keep",
        type=_shares,
        default=(0.2, 0.4, 0.6, 0.8),
        metavar="R,R,...",
        help="shares of the text to keep; 0, 0.4 and 1 are always measured (default: 0.2,0.4,0.6,0.8)",
    )
    parser.add_argument("--paragraphs", type=int, metavar="N", help="N paragraphs only, drawn at random")
    parser.add_argument(
        "--tokens",
        type=int,
        default=16,
        metavar="N",
        help="tokens of an answer at most (default: %(default)s)",
    )
    parser.add_argument(
        "--server-tokens",
        type=int,
        default=4,
        metavar="L",
        help="with --arms all: tokens that a server gives first; the model itself stands in for the server, with the "
        "whole prompt (default: %(default)s)",
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of llama.cpp (default: %(default)s)")
    parser.add_argument("--name", help="of the texts, for the table; the file's name by default")
    parser.add_argument("--source", default="", help="where the texts come from, for the table")
    parser.add_argument("--licence", default="", help="the texts' licence, for the table")
    return parser
