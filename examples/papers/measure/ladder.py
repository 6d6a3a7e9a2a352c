"""`python -m papers.measure ladder`: score traces of a ladder of classifiers, made from texts with the real model."""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from disco.endpoints.llamacpp import EngineEndpoint
from disco.errors import ConfigurationError
from disco.replay import wilson
from papers.ladder.label_ladder import PRIOR_WINDOW, LabelLadder
from papers.ladder.label_trace import LabelTrace, save_label_trace
from papers.measure.few_shot import PLAIN_TEMPLATE, FewShotPrompt, choose_examples
from papers.measure.labelled_texts import LabelledText, read_texts, without
from papers.measure.ladder_measurement import FEW_TEXTS, model_tier, word_tiers
from papers.measure.unfinished import remove_finished
from papers.terminal import Screen, check_output

__all__ = ["run_ladder"]

_REPORT_EVERY_S = 10.0
_FILES = ("train", "test", "exclude", "model")
_NOT_IN_NOTES = ("run", "fast_loop", "out", "name", "source", "licence")  # the last three stand in the trace


async def run_ladder(screen: Screen, arguments: argparse.Namespace) -> int:
    """Measure the ladder and write its trace."""
    out = Path(arguments.out)
    check_output(arguments, "out")
    _check(arguments)
    labels = _labels(arguments)
    train, every = _texts(arguments, len(labels))
    texts = every[: arguments.limit]
    notes = _notes(arguments, len(train))
    answer_bytes = float(np.mean([len(label.encode()) for label in labels]))
    tiers = word_tiers(train, texts, labels, answer_bytes=answer_bytes)
    prompt = FewShotPrompt(
        examples=choose_examples(train, len(labels), arguments.examples, arguments.seed),
        labels=labels,
        first_words=arguments.first_words,
        last_words=arguments.last_words,
        item=arguments.item,
        question=arguments.question,
    )
    unfinished = out.with_name(f"{out.name}.part")
    device = EngineEndpoint(
        model=arguments.model, threads=arguments.threads, context_tokens=2048, chat_template=PLAIN_TEMPLATE
    )
    try:
        tiers.append(
            await model_tier(
                device,
                prompt,
                every,
                limit=len(texts),
                unfinished=unfinished,
                model=arguments.model,
                answer_bytes=answer_bytes,
                progress=_progress(device.profile_name),
            )
        )
    finally:
        await device.aclose()
    trace = LabelTrace(
        name=arguments.name or Path(arguments.test).stem,
        source=arguments.source,
        licence=arguments.licence,
        labels=labels,
        tiers=tuple(one.tier for one in tiers),
        gold=np.array([one.label for one in texts]),
        text_bytes=np.array([len(one.text.encode()) for one in texts]),
        scores=np.stack([one.scores for one in tiers], axis=1),
        notes=notes,
    )
    save_label_trace(trace, out)
    remove_finished(unfinished, len(texts))
    _show(screen, trace)
    screen.line(f"Trace: {out}")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options without a meaning.

    Raises:
        ConfigurationError: the message names the option.
    """
    labels = _labels(arguments)
    if len(labels) < 2 or len(set(labels)) < len(labels) or not all(labels):
        raise ConfigurationError(
            f"--labels names two labels or more, all different, not {arguments.labels!r}"
        )
    if arguments.examples < len(labels):
        raise ConfigurationError(f"--examples must be at least {len(labels)}: one of each label")
    if arguments.limit is not None and arguments.limit < 1:
        raise ConfigurationError(f"--limit must be at least 1, not {arguments.limit}")
    if (
        min(arguments.first_words, arguments.last_words) < 0
        or not arguments.first_words + arguments.last_words
    ):
        raise ConfigurationError(
            "--first-words and --last-words must be 0 or more, and one of them more than 0"
        )
    if arguments.seed < 0:
        raise ConfigurationError(f"--seed must be 0 or more, not {arguments.seed}")
    try:
        "".encode(arguments.test_encoding)  # unlike codecs.lookup, this refuses codecs that are not of text
    except (LookupError, ValueError):
        raise ConfigurationError(
            f"--test-encoding {arguments.test_encoding!r} is not known; write utf-8, latin-1 or cp1252, for instance"
        ) from None


def _labels(arguments: argparse.Namespace) -> tuple[str, ...]:
    return tuple(label.strip() for label in arguments.labels.split(","))


def _texts(arguments: argparse.Namespace, labels: int) -> tuple[list[LabelledText], list[LabelledText]]:
    """Return the texts to train on and those to score, both in a random order that depends on the seed alone."""
    train = read_texts(arguments.train, labels=labels, split=arguments.train_split)
    texts = read_texts(
        arguments.test, labels=labels, split=arguments.test_split, encoding=arguments.test_encoding
    )
    texts = list(without(texts, *(read_texts(path, labels=labels) for path in arguments.exclude)))
    if not texts:
        raise ConfigurationError(f"Every text of {arguments.test} is also in an excluded file.")
    if len(train) < FEW_TEXTS:
        raise ConfigurationError(
            f"{arguments.train} has {len(train)} texts; the lowest tier trains on {FEW_TEXTS}. Name a larger file."
        )
    rounds = arguments.examples // labels
    for label in range(labels):
        if sum(one.label == label for one in train) < rounds:
            raise ConfigurationError(
                f"{arguments.train} has fewer than {rounds} texts of the label {label}; lower --examples or --labels."
            )
    known = len(texts) - sum(1 for _ in without(texts, train))
    if known:
        print(
            f"disco: {known:,} of the {len(texts):,} texts to score are also training texts, so that the tiers look "
            "better than they are; --exclude leaves out the texts of a file",
            file=sys.stderr,
        )
    draw = np.random.default_rng(arguments.seed)
    train = [train[place] for place in draw.permutation(len(train))]
    texts = [texts[place] for place in draw.permutation(len(texts))]
    return train, texts


def _notes(arguments: argparse.Namespace, train: int) -> dict[str, str]:
    """Return what a reader needs to make the trace again; of paths only the files' names."""
    words = ["disco", "measure", "ladder"]
    for name, value in vars(arguments).items():
        if name in _NOT_IN_NOTES or value is None:
            continue
        for one in value if isinstance(value, list) else [value]:
            words += [f"--{name.replace('_', '-')}", Path(one).name if name in _FILES else str(one)]
    return {
        "command": shlex.join(words),
        "made on": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "order": "random, by the seed",
        "training texts": str(train),
    }


def _progress(what: str) -> Callable[[int, int], None]:
    """Return a callback that reports the texts done, and the time left, on standard error."""
    began_at = said_at = time.monotonic()
    began_with: int | None = None

    def show(done: int, total: int) -> None:
        nonlocal said_at, began_with
        now = time.monotonic()
        if began_with is None:
            began_with = done
        if done < total and (now - said_at < _REPORT_EVERY_S or done == began_with):
            return
        said_at = now
        rate = (done - began_with) / max(now - began_at, 1e-9)
        left = f", {(total - done) / rate / 60:.0f} min left" if done < total and rate else ""
        print(f"{what}: {done:,} of {total:,} texts{left}", file=sys.stderr, flush=True)

    return show


def _show(screen: Screen, trace: LabelTrace) -> None:
    every = np.arange(len(trace))
    ladders = [LabelLadder.of(trace, prior_window=window) for window in (None, PRIOR_WINDOW)]
    rows = []
    for place, tier in enumerate(trace.tiers):
        shares = [
            wilson(float(ladder.answers(place, every).quality.mean()), len(trace)) for ladder in ladders
        ]
        right = (f"{share.mean:.1%} ({share.low:.1%}–{share.high:.1%})" for share in shares)
        rows.append((tier.name, *right, f"{tier.cpu_s * 1e3:.3g}", f"{tier.flops:.2g}"))
    screen.table(
        f"{trace.name}: {len(trace):,} texts, right answers with 95 % intervals",
        ("tier", "raw", "label prior removed", "CPU ms", "FLOPs"),
        rows,
    )
    for tier in trace.tiers:
        screen.line(f"{tier.name}: {tier.about}")
