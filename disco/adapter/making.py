"""From a model file to a trained adapter: answers, training, and what it reached on prompts it never saw."""

from __future__ import annotations

import importlib.util
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from disco.adapter.answers import Answer, answer_tokens
from disco.adapter.model_facts import ModelFacts, read_facts
from disco.adapter.network import Block
from disco.adapter.prompts import held_out_prompts, training_prompts
from disco.adapter.recipe import Recipe
from disco.adapter.teacher import Teacher, Wish
from disco.adapter.training import Progress, agreement, train
from disco.endpoints.llamacpp.layers.adapter_file import Adapter, AdapterFacts, weights_name
from disco.errors import ConfigurationError

__all__ = ["HELD_OUT_TEMPERATURES", "Order", "Watcher", "make_adapter", "require_torch", "write_answers"]

HELD_OUT_TEMPERATURES: Final = (0.0, 0.8)
_TEMPERATURES: Final = (0.0, 0.8, 0.0, 1.0)
_HELD_OUT_TOKENS: Final = 128  # of an answer
_TOKENS: Final = 192
_CONTEXT_TOKENS: Final = 384
_SLOTS: Final = 32
_HELD_OUT_SHARE: Final = 0.1  # of the time, at most
_WRITING_SHARE: Final = 0.6  # of the time, both kinds of answers together
_LAST_SHARE: Final = 0.97  # of the time, until the training ends; then the adapter is measured


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be made.

    Attributes:
        path: a whole model's file.
        layers: how many the device keeps.
        block: "full" or "attention".
        tokens: of answers to learn from, at most.
        seconds: for everything.
        threads: of all computation.
        seed: of all that is drawn.
    """

    path: Path
    layers: int
    block: Block = "full"
    tokens: int = 400_000
    seconds: float = 1800.0
    threads: int = 1
    seed: int = 1


class Watcher(Protocol):
    """Is told how far it is."""

    def writing(self, what: str, tokens: int, seconds: float) -> None:
        """Take how many tokens of answers are written after so many seconds; `what`: "held-out" or "training"."""

    def training(self, progress: Progress) -> None:
        """Take how far the training is."""


def require_torch() -> None:
    """Raise an error with the remedy where torch is not installed.

    Raises:
        ConfigurationError: it is not.
    """
    if importlib.util.find_spec("torch") is None:
        raise ConfigurationError('Training an adapter needs torch: pip install "disco-llm[adapter]"')


def make_adapter(order: Order, watcher: Watcher, *, clock: Callable[[], float] = time.monotonic) -> Adapter:
    """Let the model write answers, train an adapter on them, and measure it.

    Raises:
        ConfigurationError: torch or gguf is missing, the number of layers does not fit, the model has no chat template,
            or the time is too short for a single answer.
        ModelFileError: the file is not usable, or adapters for such a model cannot be trained.
        LocalModelError: llama.cpp failed.
    """
    require_torch()
    began_at = clock()
    facts = read_facts(order.path, order.layers)
    held_out, answers = write_answers(order, facts, watcher, clock=clock)

    import torch  # noqa: PLC0415 - optional

    torch.set_num_threads(order.threads)
    recipe = Recipe(block=order.block, seed=order.seed)
    layer = train(
        facts,
        answers,
        held_out,
        recipe,
        until=began_at + _LAST_SHARE * order.seconds,
        told=watcher.training,
        clock=clock,
    )
    # What is kept is measured: the numbers of 16 bits.
    with torch.no_grad():
        for one in layer.weights.values():
            one.copy_(one.half().float())
    reached = dict.fromkeys(HELD_OUT_TEMPERATURES, 0.0)
    for temperature in {one.temperature for one in held_out}:
        some = [one for one in held_out if one.temperature == temperature]
        reached[temperature] = agreement(facts, layer, some)
    return Adapter(
        AdapterFacts(
            weights=weights_name(order.path),
            layers=order.layers,
            block=recipe.block,
            training_tokens=answer_tokens(answers),
            greedy_acceptance=round(reached[0.0], 4),
            sampled_acceptance=round(reached[0.8], 4),
            made=f"disco adapter train, {recipe.block} block, {answer_tokens(answers):,} tokens, "
            f"{(clock() - began_at) / 60:.0f} min on {order.threads} threads",
        ),
        layer.tensors(),
    )


def write_answers(
    order: Order,
    facts: ModelFacts,
    watcher: Watcher,
    *,
    share: float = _WRITING_SHARE,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[list[Answer], list[Answer]]:
    """Let the model write answers to both kinds of prompts.

    Args:
        order: what for; the answers end where its tokens are reached or a share of its time is over.
        facts: of the model.
        watcher: is told.
        share: of the time, for the answers.
        clock: seconds.

    Returns:
        Held-out answers, and those to learn from.

    Raises:
        ConfigurationError: there was no time for an answer of each kind; or as `Teacher`.
        LocalModelError: llama.cpp failed.
    """
    began_at = clock()
    teacher = Teacher(
        facts,
        layers=order.layers,
        seed=order.seed,
        context_tokens=_CONTEXT_TOKENS,
        threads=order.threads,
        slots=_SLOTS,
    )
    try:

        def written(
            what: str, wishes: Iterator[Wish], most: int, limit: float, until: float
        ) -> Iterator[Answer]:
            since, tokens = clock(), 0
            for one in teacher.write(wishes, most_tokens=most, keep_on=lambda: clock() < until):
                tokens += one.tokens
                watcher.writing(what, tokens, clock() - since)
                yield one
                if tokens >= limit:
                    break

        # Greedy and drawn answers in turn: where time is short, there are some of both.
        both = itertools.product(held_out_prompts(), HELD_OUT_TEMPERATURES)
        wishes = (Wish(prompt, temperature) for prompt, temperature in both)
        until = began_at + _HELD_OUT_SHARE * order.seconds
        held_out = list(written("held-out", wishes, _HELD_OUT_TOKENS, np.inf, until))
        pairs = zip(training_prompts(order.seed), itertools.cycle(_TEMPERATURES), strict=False)
        wishes = (Wish(prompt, temperature) for prompt, temperature in pairs)
        until = began_at + share * order.seconds
        answers = list(written("training", wishes, _TOKENS, order.tokens, until))
    finally:
        teacher.close()
    _check_enough(held_out, answers)
    return held_out, answers


def _check_enough(*kinds: Sequence[Answer]) -> None:
    if not all(kinds):
        raise ConfigurationError(
            "The time is over before the model has written a single answer of each kind. Allow more minutes."
        )
