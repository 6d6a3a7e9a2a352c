"""Trains an adapter on the model's own answers, and measures how often its tokens are the model's own."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from disco.adapter.answers import Answer
from disco.adapter.loss import ROWS, Loss, adapted
from disco.adapter.model_facts import ModelFacts
from disco.adapter.network import AdapterLayer, Block
from disco.adapter.recipe import Recipe

__all__ = ["Progress", "agreement", "initial_tensors", "train"]

_WARM_UP: Final = 0.03  # of the steps
_LOOKS: Final = 8  # how often the held-out acceptance is measured while training
_LOOKED_AT: Final = 16  # answers, of those that are held out


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a training is.

    Attributes:
        share: of the steps that are done, 0 to 1.
        seconds: since it began.
        tokens: of answers learned from, those of repeated passes counted again.
        loss: mean of the newest steps.
        acceptance: on some of the held-out answers.
    """

    share: float
    seconds: float
    tokens: int
    loss: float
    acceptance: float


def initial_tensors(facts: ModelFacts, block: Block) -> dict[str, npt.NDArray[np.float32]]:
    """Return the weights that training begins with: those of the model's own next layer."""
    return {name: one for name, one in facts.layer.items() if block == "full" or not name.startswith("ffn_")}


def train(
    facts: ModelFacts,
    answers: Sequence[Answer],
    held_out: Sequence[Answer],
    recipe: Recipe,
    *,
    until: float = math.inf,
    told: Callable[[Progress], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> AdapterLayer:
    """Train an adapter.

    Args:
        facts: of the model.
        answers: to learn from.
        held_out: to measure with; other prompts' answers.
        recipe: how.
        until: point in time of `clock` at which training is over, s; the learning rate falls to its least by then.
        told: called with the progress, some ten times.
        clock: seconds.

    Raises:
        ValueError: there are no answers.
    """
    import torch  # noqa: PLC0415 - optional

    if not answers:
        raise ValueError("no answers to learn from")
    layer = AdapterLayer(facts, initial_tensors(facts, recipe.block))
    loss_of = Loss(facts, answers, recipe)
    weights = list(layer.weights.values())
    adam = torch.optim.AdamW(weights, lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.0)
    few = list(held_out)[:: max(1, len(held_out) // _LOOKED_AT)]
    began_at, looked, tokens, losses = clock(), 0.0, 0, [0.0]
    steps = max(1, round(recipe.epochs * sum(len(one.ids) for one in answers) / recipe.batch_tokens))
    for step, batch in enumerate(_batches(answers, recipe)):
        now = clock()
        share = step / steps
        if until < math.inf:
            share = min(1.0, max(share, (now - began_at) / max(until - began_at, 1e-9)))
        if share >= looked or share >= 1:
            looked += 1 / _LOOKS
            loss = float(np.mean(losses)) if losses else 0.0
            told(Progress(share, now - began_at, tokens, loss, agreement(facts, layer, few)))
            losses = []
        if share >= 1:
            break
        slope = min(1, (share + 1e-3) / _WARM_UP) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * share)))
        for group in adam.param_groups:
            group["lr"] = recipe.rate * slope
        adam.zero_grad()
        losses.append(loss_of(layer, batch))
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        adam.step()
        tokens += sum(one.tokens for one in batch)
    return layer


def _batches(answers: Sequence[Answer], recipe: Recipe) -> Iterator[list[Answer]]:
    """Yield batches of answers of like lengths without end, each pass in another order."""
    rng = random.Random(recipe.seed)
    while True:
        order = sorted(answers, key=lambda one: len(one.ids) + rng.random() * 32)
        batches: list[list[Answer]] = [[]]
        size = 0
        for one in order:
            if size + len(one.ids) > recipe.batch_tokens and batches[-1]:
                batches.append([])
                size = 0
            batches[-1].append(one)
            size += len(one.ids)
        rng.shuffle(batches)
        yield from batches


def agreement(facts: ModelFacts, layer: AdapterLayer, answers: Sequence[Answer], at_once: int = 8) -> float:
    """Return the share of positions at which the draft's best token is the model's best, given the true tokens before.

    For answers written at temperature 0 that is the share of drafted first tokens that are accepted.
    """
    import torch  # noqa: PLC0415 - optional

    head, hits = torch.from_numpy(facts.head), []
    room = torch.empty(ROWS // 4, len(head))
    with torch.no_grad():
        for begin in range(0, len(answers), at_once):
            some = answers[begin : begin + at_once]
            made = adapted(facts, layer, some).split(len(room))
            hits += [torch.mm(rows, head.T, out=room[: len(rows)]).argmax(-1).numpy() for rows in made]
    found = np.concatenate(hits)
    return float(np.mean(found == np.concatenate([one.top_ids[:, 0] for one in answers])))
