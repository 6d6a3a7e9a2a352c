"""The options of `python -m papers.measure ladder`. This module needs only argparse."""

from __future__ import annotations

import argparse
from typing import Any

__all__ = ["add_ladder"]


def add_ladder(subcommands: Any) -> argparse.ArgumentParser:
    """Add the parser of `ladder` to the subcommands; return it."""
    parser: argparse.ArgumentParser = subcommands.add_parser(
        "ladder",
        help="record how sure small and large classifiers are of texts with known labels",
        description="Trains logistic regressions on 300 and on all training texts, gives a language model a few of "
        "them as examples, and writes the label scores of all three for every test text: numbers only, no text. "
        "After Ctrl-C, the same command goes on where it was.",
    )
    texts = parser.add_argument_group("texts")
    texts.add_argument(
        "--train",
        required=True,
        metavar="FILE",
        help="`label text` lines, or JSON lines (.jsonl) with label and text; may end in .gz",
    )
    texts.add_argument("--test", required=True, metavar="FILE", help="the texts to score, in the same form")
    texts.add_argument("--train-split", metavar="NAME", help="of --train, only JSON lines with this `split`")
    texts.add_argument("--test-split", metavar="NAME", help="of --test, only JSON lines with this `split`")
    texts.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="FILE",
        help="leave out test texts that are also in this file, whatever their spaces and case; may be repeated",
    )
    texts.add_argument(
        "--labels",
        default="negative,positive",
        metavar="A,B,...",
        help="the names of the labels 0, 1, ... (default: %(default)s)",
    )
    texts.add_argument(
        "--test-encoding",
        default="utf-8",
        metavar="NAME",
        help="of --test, where it has `label text` lines; all other files are UTF-8 (default: %(default)s)",
    )
    texts.add_argument("--limit", type=int, metavar="N", help="score only N texts, drawn at random")
    model = parser.add_argument_group("the language model")
    model.add_argument(
        "--model",
        default="smollm2-135m",
        help="a name, a GGUF file or hf:owner/repo/file (default: %(default)s)",
    )
    model.add_argument("--threads", type=int, default=1, help="threads of llama.cpp (default: %(default)s)")
    model.add_argument(
        "--examples", type=int, default=8, metavar="N", help="examples in the prompt (default: %(default)s)"
    )
    model.add_argument("--item", default="Review", help="what the prompt calls a text (default: %(default)s)")
    model.add_argument(
        "--question", default="Sentiment", help="what the prompt calls a label (default: %(default)s)"
    )
    model.add_argument(
        "--first-words",
        type=int,
        default=50,
        metavar="N",
        help="of a text that is too long, keep so many words of its beginning (default: %(default)s)",
    )
    model.add_argument(
        "--last-words",
        type=int,
        default=100,
        metavar="N",
        help="and so many of its end (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        help="of the order of the texts and of the examples (default: %(default)s)",
    )
    out = parser.add_argument_group("output")
    out.add_argument("--out", required=True, metavar="FILE", help="the trace: .csv, or .csv.gz")
    out.add_argument("--name", help="of the trace (default: the test file's)")
    out.add_argument("--source", default="", help="where the texts come from; stands in the trace")
    out.add_argument("--licence", default="", help="of the texts; stands in the trace")
    return parser
