"""Trains an adapter on the model's own answers: the paper's loss (4), and how often its tokens are the model's own."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as fn

from disco.adapter.answers import Answer
from disco.adapter.model_facts import ModelFacts
from disco.adapter.network import AdapterLayer, Block, normed
from disco.adapter.optimizer import make_optimizers

__all__ = ["Progress", "Recipe", "agreement", "initial_tensors", "train"]

_WARM_UP: Final = 0.03  # of the steps
_ROWS: Final = 256  # of the head at once
_LOOKS: Final = 8  # how often the held-out acceptance is measured while training


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an adapter is trained.

    Attributes:
        block: "full", or "attention" without a feed-forward part.
        ce_weight: of the cross-entropy beside SmoothL1; the paper's is 0.1.
        state_weight: of SmoothL1; the paper's is 1.
        rate: the highest learning rate, of Adam; falls to a hundredth along a cosine.
        matrix_rate: that of Muon for matrices; None: Adam for all.
        batch_tokens: of a step, prompts included.
        shortlist: tokens that the cross-entropy is over: the most frequent of the answers.
        strangers: other tokens, drawn anew for each step, that stand for all the rest.
        epochs: passes over the answers, at most.
        seed: of the order and of what is drawn.
    """

    block: Block = "full"
    ce_weight: float = 0.1
    state_weight: float = 1.0
    rate: float = 1e-3
    matrix_rate: float | None = None
    batch_tokens: int = 4096
    shortlist: int = 6144
    strangers: int = 1024
    epochs: float = 4.0
    seed: int = 1


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
    """Return the weights that training begins with: those of one of the model's own layers."""
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
    if not answers:
        raise ValueError("no answers to learn from")
    torch.manual_seed(recipe.seed)
    layer = AdapterLayer(facts, initial_tensors(facts, recipe.block))
    loss_of = _Loss(facts, answers, recipe)
    optimizers = make_optimizers(layer, recipe.rate, recipe.matrix_rate)
    rates = [group["lr"] for one in optimizers for group in one.param_groups]
    few = list(held_out)[:: max(1, len(held_out) // 16)]
    began_at, looked, tokens, losses = clock(), 0.0, 0, [0.0]
    steps = max(1, round(recipe.epochs * sum(len(one.ids) for one in answers) / recipe.batch_tokens))
    for step, batch in enumerate(_batches(answers, recipe)):
        now = clock()
        share = step / steps
        if until < math.inf:
            share = max(share, (now - began_at) / max(until - began_at, 1e-9))
        if share >= looked:
            looked += 1 / _LOOKS
            told(
                Progress(
                    min(share, 1),
                    now - began_at,
                    tokens,
                    float(np.mean(losses)),
                    agreement(facts, layer, few),
                )
            )
            losses = []
        if share >= 1:
            break
        slope = min(1, (share + 1e-3) / _WARM_UP) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * share)))
        for group, rate in zip((g for one in optimizers for g in one.param_groups), rates, strict=True):
            group["lr"] = rate * slope
        layer.zero_grad()
        loss = loss_of(layer, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        for one in optimizers:
            one.step()
        losses.append(loss.item())
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


def _stacked(answers: Sequence[Answer]) -> tuple[Tensor, Tensor]:
    """Return the states of the first layers, and the places of the positions that the answers' tokens come from.

    Returns:
        Shapes (answers, tokens, hidden), float32, filled up with zeros, and (answer tokens,), int64, over both axes.
    """
    longest = max(len(one.shallow) for one in answers)
    states = np.zeros((len(answers), longest, answers[0].shallow.shape[1]), np.float32)
    places = []
    for number, one in enumerate(answers):
        states[number, : len(one.shallow)] = one.shallow
        places.append(number * longest + np.arange(one.prompt_tokens - 1, len(one.ids) - 1))
    return torch.from_numpy(states), torch.from_numpy(np.concatenate(places))


def adapted(facts: ModelFacts, layer: AdapterLayer, answers: Sequence[Answer]) -> Tensor:
    """Return the draft's states before the head for all tokens of answers, shape (answer tokens, hidden)."""
    states, places = _stacked(answers)
    made = layer(states).flatten(0, 1)[places]
    return normed(made, torch.from_numpy(facts.output_norm), facts.epsilon)


class _Loss:
    """The loss of a batch. Mutable: the generator that draws strangers, and the room for logits."""

    def __init__(self, facts: ModelFacts, answers: Sequence[Answer], recipe: Recipe) -> None:
        self.facts, self.recipe = facts, recipe
        counts = np.zeros(len(facts.head))
        for one in answers:
            np.add.at(counts, one.top_ids.ravel(), one.top_shares.ravel().astype(np.float64))
        order = np.argsort(-counts, kind="stable")
        size = min(recipe.shortlist, len(order))
        self.listed, self.rest = size, order[size:]
        self.place = np.full(len(order), -1)
        self.place[order[:size]] = np.arange(size)
        self.drawn = min(recipe.strangers, len(self.rest))
        self.head = torch.from_numpy(np.concatenate((facts.head[order[:size]], facts.head[: self.drawn])))
        self.rng = np.random.default_rng(recipe.seed)
        self.room = torch.empty(_ROWS, len(self.head))

    def __call__(self, layer: AdapterLayer, batch: Sequence[Answer]) -> Tensor:
        recipe, made = self.recipe, adapted(self.facts, layer, batch)
        loss = made.new_zeros(())
        if recipe.state_weight:
            wanted = torch.from_numpy(np.concatenate([one.final for one in batch]).astype(np.float32))
            loss = loss + recipe.state_weight * fn.smooth_l1_loss(made, wanted)
        if recipe.ce_weight:
            loss = loss + recipe.ce_weight * self._cross_entropy(made, batch)
        return loss

    def _cross_entropy(self, made: Tensor, batch: Sequence[Answer]) -> Tensor:
        if self.drawn:
            strangers = self.rng.choice(self.rest, self.drawn, replace=False)
            self.head[self.listed :] = torch.from_numpy(self.facts.head[strangers])
        places = self.place[np.concatenate([one.top_ids for one in batch])]
        shares = np.concatenate([one.top_shares for one in batch]).astype(np.float32) * (places >= 0)
        total = shares.sum(-1, keepdims=True)
        # Where nearly all of the model's likely tokens are outside the list there is nothing to learn.
        shares = np.where(total > 0.1, shares / np.maximum(total, 1e-6), 0)
        bias = torch.zeros(len(self.head))
        if self.drawn:
            bias[self.listed :] = math.log(len(self.rest) / self.drawn)
        wanted = torch.from_numpy(np.maximum(places, 0)), torch.from_numpy(shares.astype(np.float32))
        loss: Tensor = _HeadLoss.apply(made, self.head, bias, *wanted, self.room)
        return loss


class _HeadLoss(torch.autograd.Function):  # type: ignore[misc] # torch is not read
    """Cross-entropy behind a head that is not trained: a few rows at a time, and its gradient at once.

    Logits of all rows and their gradients would be hundreds of megabytes, and getting such memory from the system for
    each step took ten times as long as computing them.
    """

    @staticmethod
    def forward(
        ctx: Any, made: Tensor, head: Tensor, bias: Tensor, places: Tensor, shares: Tensor, room: Tensor
    ) -> Tensor:
        gradient, loss = torch.empty_like(made), 0.0
        is_learned = shares.sum(-1) > 0
        count = max(1, int(is_learned.sum()))
        for begin in range(0, len(made), len(room)):
            rows = slice(begin, begin + len(room))
            logits = torch.addmm(bias, made[rows], head.T, out=room[: len(made[rows])])
            height = logits.logsumexp(-1, keepdim=True)
            gone = (height - logits.gather(-1, places[rows])) * shares[rows]
            loss += float(gone.sum())
            logits.sub_(height).exp_().mul_(is_learned[rows, None]).scatter_add_(
                -1, places[rows], -shares[rows]
            )
            torch.mm(logits, head, out=gradient[rows])
        ctx.save_for_backward(gradient.div_(count))
        return made.new_tensor(loss / count)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * above, None, None, None, None, None


def agreement(facts: ModelFacts, layer: AdapterLayer, answers: Sequence[Answer], at_once: int = 8) -> float:
    """Return the share of positions at which the draft's best token is the model's best, given the true tokens before.

    For answers written at temperature 0 that is the share of drafted first tokens that are accepted.
    """
    with torch.no_grad():
        return float(np.mean(np.concatenate(list(_hits(facts, layer, answers, at_once)))))


def _hits(
    facts: ModelFacts, layer: AdapterLayer, answers: Sequence[Answer], at_once: int
) -> Iterator[npt.NDArray[np.bool_]]:
    head = torch.from_numpy(facts.head)
    room = torch.empty(_ROWS // 4, len(head))
    for begin in range(0, len(answers), at_once):
        some = answers[begin : begin + at_once]
        made = adapted(facts, layer, some)
        best = [
            torch.mm(rows, head.T, out=room[: len(rows)]).argmax(-1).numpy() for rows in made.split(len(room))
        ]
        yield np.concatenate(best) == np.concatenate([one.top_ids[:, 0] for one in some])
