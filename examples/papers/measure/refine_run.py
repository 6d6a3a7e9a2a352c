"""`python -m papers.measure refine`: refined prompts, whole ones, and what a model makes of both."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from disco.errors import ConfigurationError
from papers.local_model import LocalModel
from papers.measure.paragraph_run import RUNNING_TEXT, Measured, ParagraphRun
from papers.measure.prompt_scorer import PromptScorer
from papers.measure.refine_arms import Arm, arms_of
from papers.measure.refine_summary import summarise
from papers.measure.squad_prompt import question_messages
from papers.measure.squad_questions import Question, read_questions
from papers.measure.time_left import TimeLeft
from papers.measure.unfinished import Unfinished, remove_finished
from papers.refinement import RefineRow, RefineTable, save_refine_table
from papers.terminal import Screen, check_output

__all__ = ["run_refine"]

_CONTEXT_TOKENS = 2048
_BATCH_TOKENS = 512


async def run_refine(screen: Screen, arguments: argparse.Namespace) -> int:
    """Measure the arms and write the table; return the exit status."""
    check_output(arguments, "out")
    for option in ("tokens", "server_tokens", "threads", "paragraphs"):
        value = getattr(arguments, option)
        if value is not None and value < 1:
            raise ConfigurationError(f"--{option.replace('_', '-')} must be at least 1, not {value}")
    questions = read_questions(arguments.texts)
    paragraphs = [list(own) for _, own in groupby(questions, key=lambda one: one.paragraph_number)]
    order = np.random.default_rng(41).permutation(len(paragraphs))[: arguments.paragraphs]
    arms = arms_of(arguments.keep, arguments.server_tokens, every=arguments.arms == "all")
    out = Path(arguments.out)
    part = out.with_name(f"{out.name}.part")
    with Unfinished(part, _settings(arguments, arms)) as so_far:
        if len(so_far.rows) < len(order):
            _measure([paragraphs[number] for number in order], so_far, arms, arguments)
        found = [
            [
                dict(zip(arms, (Measured.of_cells(cells) for cells in question), strict=True))
                for question in row
            ]
            for row in so_far.rows[: len(order)]
        ]
        rows = summarise(found, arms)
        notes = {
            "prompt": "instruction, 5 invented examples, paragraph and question, as running text",
            "answer": f"greedy, at most {arguments.tokens} tokens, one line",
            "intervals": "95 %, bootstrap over paragraphs",
            "server": "the same model with the whole prompt",
        }
        save_refine_table(
            RefineTable(
                arguments.name or Path(arguments.texts).name,
                arguments.source,
                arguments.licence,
                Path(arguments.model).stem,
                tuple(rows),
                notes,
            ),
            out,
        )
    remove_finished(part, len(order))
    for row in rows:
        screen.line(_line(row))
    screen.line(f"Table: {out}")
    return 0


def _measure(
    paragraphs: Sequence[Sequence[Question]],
    so_far: Unfinished,
    arms: Sequence[Arm],
    arguments: argparse.Namespace,
) -> None:
    """Measure the paragraphs that have no row yet."""
    model = LocalModel(
        arguments.model,
        threads=arguments.threads,
        context_tokens=_CONTEXT_TOKENS,
        batch_tokens=_BATCH_TOKENS,
    )
    run: ParagraphRun | None = None
    try:
        run = ParagraphRun(PromptScorer(model, arguments.tokens), arms)
        already = len(so_far.rows)
        left = TimeLeft("refine", len(paragraphs), already=already)
        for number in range(already, len(paragraphs)):
            measured = run(paragraphs[number])
            so_far.add([[one[arm].cells() for arm in arms] for one in measured])
            left.after(number + 1)
    finally:
        if run is not None:
            run.close()
        model.close()


def _line(row: RefineRow) -> str:
    name = f"{row.arm}, {row.begun} tokens of the server" if row.begun else row.arm
    f1 = "" if np.isnan(row.f1) else f", F1 {row.f1:.3f} [{row.f1_low:.3f}, {row.f1_high:.3f}]"
    return (
        f"{name} {row.keep:g}: {row.nats:.2f} nats a token [{row.nats_low:.2f}, {row.nats_high:.2f}], "
        f"{row.over_full:+.2f} [{row.over_full_low:+.2f}, {row.over_full_high:+.2f}] to the whole text, "
        f"{row.over_random:+.2f} [{row.over_random_low:+.2f}, {row.over_random_high:+.2f}] to random{f1}, "
        f"answer kept {row.gold_kept:.3f} [{row.gold_kept_low:.3f}, {row.gold_kept_high:.3f}], "
        f"{row.kept_share:.3f} of the text, {row.prompt_tokens:.0f} tokens, {row.questions} questions"
    )


def _settings(arguments: argparse.Namespace, arms: Sequence[Arm]) -> dict[str, Any]:
    """Return what the rows depend on; of texts only a hash."""
    return {
        "texts": hashlib.sha256(Path(arguments.texts).read_bytes()).hexdigest(),
        "model": str(arguments.model),
        "tokens": arguments.tokens,
        "arms": [[arm.name, arm.keep, arm.begun] for arm in arms],
        "prompt": question_messages(""),
        "template": RUNNING_TEXT,
    }
