"""How an adapter is trained: the settings, with those of the shipped adapter as defaults."""

from __future__ import annotations

from dataclasses import dataclass

from disco.adapter.network import Block

__all__ = ["Recipe"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an adapter is trained.

    Attributes:
        block: "full", or "attention" without a feed-forward part.
        state_weight: of SmoothL1; the paper's is 1.
        ce_weight: of the cross-entropy beside it; the paper's is 0.1.
        rate: the highest learning rate, of Adam; falls to a hundredth along a cosine.
        batch_tokens: of a step, prompts included.
        shortlist: tokens that the cross-entropy is over: the most frequent of the answers.
        strangers: other tokens, drawn anew for each step, that stand for all the rest.
        epochs: passes over the answers, at most.
        seed: of the order and of what is drawn.
    """

    block: Block = "full"
    state_weight: float = 1.0
    ce_weight: float = 1.0
    rate: float = 3e-3
    batch_tokens: int = 1024
    shortlist: int = 6144
    strangers: int = 1024
    epochs: float = 20.0
    seed: int = 1
