"""The built-in prompts: those whose answers an adapter learns from, and others that measure it."""

from __future__ import annotations

import random
from collections.abc import Iterator

from disco._resources import resource_text

__all__ = ["held_out_prompts", "training_prompts"]


def _lines(name: str) -> list[str]:
    return resource_text("disco.adapter", f"prompt_texts/{name}.txt").splitlines()


def held_out_prompts() -> list[str]:
    """Return the prompts that measure an adapter. Neither they nor their subjects are among those for training."""
    return _lines("held_out")


def training_prompts(seed: int) -> Iterator[str]:
    """Yield prompts without end: all questions and all tasks with all topics in an order of their own, then again."""
    rng = random.Random(seed)
    prompts = _lines("questions") + [
        task.format(topic) for task in _lines("tasks") for topic in _lines("topics")
    ]
    while True:
        rng.shuffle(prompts)
        yield from prompts
