"""The options of `python -m papers.measure answers`. This module needs only argparse."""

from __future__ import annotations

import argparse
from typing import Any

__all__ = ["add_answers"]


def add_answers(subcommands: Any) -> argparse.ArgumentParser:
    """Add the parser of `answers` to the subcommands; return it."""
    parser: argparse.ArgumentParser = subcommands.add_parser(
        "answers",
        help="free-text answers to questions: their F1 and the log probabilities of their tokens",
        description="A local model answers each question of a file in SQuAD's format. Written are numbers only: "
        "lengths, F1 and exact match against the right answers, the log probability of each token. "
        "Ctrl-C interrupts; the same command resumes.",
    )
    parser.add_argument("--texts", required=True, metavar="FILE", help="questions in SQuAD's JSON format")
    parser.add_argument(
        "--model", default="smollm2-135m", help="a name, a GGUF file or hf:owner/repo/file (smollm2-135m)"
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="the trace, .csv or .csv.gz")
    parser.add_argument("--questions", type=int, metavar="N", help="the first N questions only")
    parser.add_argument(
        "--tokens", type=int, default=32, metavar="N", help="tokens of an answer at most (32)"
    )
    parser.add_argument("--threads", type=int, default=None, help="of llama.cpp (all cores but one)")
    parser.add_argument("--name", help="of the texts, for the trace; the file's name by default")
    parser.add_argument("--source", default="", help="where the texts come from, for the trace")
    parser.add_argument("--licence", default="", help="the texts' licence, for the trace")
    return parser
