"""How long llama.cpp takes for one pass over some rows behind some cached tokens, and for whole answers.

With one thread that is time of the processor, so that a busy machine can be measured; with more it is time that passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from papers.local_model import LocalModel

__all__ = ["PassTime", "answer_s", "pass_times"]


class PassTime(NamedTuple):
    """A measured pass.

    Attributes:
        rows: tokens of the batch.
        before: tokens in the cache.
        all_logits: whether all rows have logits (a round), or the last one only (a prompt's chunk).
        seconds: the shortest of the repetitions: what else the machine did only ever adds.
    """

    rows: int
    before: int
    all_logits: bool
    seconds: float


def pass_times(
    model: LocalModel,
    points: Iterable[tuple[int, int, bool]],
    *,
    repeats: int,
    progress: Callable[[int, int], None] | None = None,
) -> list[PassTime]:
    """Measure passes.

    The repetitions go round all points in turn, so that a slow minute of the machine does not fall on one point.

    Args:
        model: its cache is lost.
        points: (rows, before, all_logits) of each pass; those with equally many tokens before are best together.
        repeats: how often each is measured; the shortest counts.
        progress: called after each round of all points.
    """
    wanted = list(points)
    clock = _clock(model)
    found: list[list[float]] = [[] for _ in wanted]
    for repeat in range(repeats):
        for place, (rows, before, all_logits) in enumerate(wanted):
            _fill(model, before)
            tokens = _tokens(model, rows, before)
            began_s = clock()
            model.decode(tokens, logits_from=0 if all_logits else None)
            model.logits(rows - 1 if all_logits else -1)  # waits until they are there
            found[place].append(clock() - began_s)
        if progress is not None:
            progress(repeat + 1, repeats)
    return [PassTime(*point, min(took)) for point, took in zip(wanted, found, strict=True)]


def answer_s(
    model: LocalModel, prompt: int, output: int, window: int, *, repeats: int
) -> tuple[float, float]:
    """Return the seconds of a prompt and of the tokens behind it, the shortest of each.

    Args:
        model: its cache is lost.
        prompt: tokens of the prompt.
        output: tokens behind the prompt, computed in passes of `window` + 1 rows, all right.
        window: drafted tokens of each pass; 0: single tokens.
        repeats: how often.
    """
    prompts, outputs = [], []
    clock = _clock(model)
    for _ in range(repeats):
        model.forget()
        began_s = clock()
        _fill(model, prompt)
        model.logits()
        first_s = clock()
        for before in range(prompt, prompt + output, window + 1):
            model.decode(_tokens(model, window + 1, before), logits_from=0)
            model.logits(window)
        prompts.append(first_s - began_s)
        outputs.append(clock() - first_s)
    return min(prompts), min(outputs)


def _clock(model: LocalModel) -> Callable[[], float]:
    """Return a clock: with one thread the processor's time of this process, which others' work hardly changes."""
    return time.process_time if model.threads == 1 else time.perf_counter


def _fill(model: LocalModel, length: int) -> None:
    """Make the cache hold the first tokens of the text of `_tokens`, as many as `length`."""
    kept = model.keep(min(length, model.length))
    while kept < length:
        rows = min(model.batch_tokens, length - kept)
        model.decode(_tokens(model, rows, kept))
        kept += rows


def _tokens(model: LocalModel, rows: int, place: int) -> Sequence[int]:
    """Return tokens; which ones makes no difference to the time, but they are the same at the same place."""
    return [100 + (37 * (place + row)) % (model.vocabulary_tokens - 100) for row in range(rows)]
