"""The options of `python -m papers.measure quality`. This module needs only argparse."""

from __future__ import annotations

import argparse
from typing import Any

__all__ = ["add_quality"]

_MODEL = "a name, a GGUF file, hf:owner/repo/file, one of these with @TYPE (@Q2_K: requantised), or URL#MODEL"


def add_quality(subcommands: Any) -> argparse.ArgumentParser:
    """Add the parser of `quality` to the subcommands; return it."""
    parser: argparse.ArgumentParser = subcommands.add_parser(
        "quality",
        help="how good answers are that one model begins and another one ends",
        description="Two models answer each prompt, alone and together: one writes the first tokens, the other goes on "
        "from there, as after a migration. Written are numbers only: how good each answer is, and how long the models "
        "agree. Ctrl-C interrupts; the same command resumes. See docs/results/quality.md.",
    )
    asked = parser.add_argument_group("prompts").add_mutually_exclusive_group(required=True)
    asked.add_argument("--texts", metavar="FILE", help="questions with known answers, in SQuAD's JSON format")
    asked.add_argument(
        "--prompts",
        metavar="FILE",
        help="your own: one a line, or JSON lines (.jsonl) with messages or prompt",
    )
    of_texts = parser.add_argument_group("with --texts")
    of_texts.add_argument(
        "--answers",
        choices=("short", "long"),
        default="long",
        help="a few words on one line, or whole sentences (default: %(default)s)",
    )
    of_texts.add_argument(
        "--paragraphs",
        type=int,
        default=1,
        metavar="N",
        help="paragraphs in a prompt: longer prompts (default: %(default)s)",
    )
    models = parser.add_argument_group("models", f"Each is {_MODEL}.")
    models.add_argument(
        "--small", required=True, metavar="MODEL", help="the lesser model, such as the device's"
    )
    models.add_argument(
        "--large", required=True, metavar="MODEL", help="the better model, such as the server's"
    )
    models.add_argument(
        "--also",
        action="append",
        default=[],
        metavar="MODEL",
        help="a further model, of which only the common beginning with the large one's answers is measured; may be "
        "repeated",
    )
    models.add_argument(
        "--judge",
        metavar="MODEL",
        help="the model that judges the answers: a local one by its log probabilities, a server by its preferences",
    )
    models.add_argument(
        "--preferences", action="store_true", help="ask a local judge, too, which of two answers is better"
    )
    models.add_argument("--threads", type=int, default=None, help="of llama.cpp (all cores but one)")
    parser.add_argument("--questions", type=int, metavar="N", help="the first N prompts only")
    parser.add_argument(
        "--tokens",
        type=int,
        default=256,
        metavar="N",
        help="tokens of an answer at most (default: %(default)s)",
    )
    parser.add_argument(
        "--cuts",
        default="4,16,64",
        metavar="N,N,...",
        help="hand over after so many tokens, both ways (default: %(default)s)",
    )
    parser.add_argument(
        "--assist",
        default="40,80",
        metavar="N,N,...",
        help="further cuts from the large model to the small one only (default: %(default)s)",
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="the trace, .csv or .csv.gz")
    parser.add_argument(
        "--json", nargs="?", const="-", metavar="FILE", help="write the figures as JSON; - is standard output"
    )
    parser.add_argument("--name", help="of the prompts, for the trace; the file's name by default")
    parser.add_argument("--source", default="", help="where the prompts come from, for the trace")
    parser.add_argument("--licence", default="", help="the prompts' licence, for the trace")
    return parser
