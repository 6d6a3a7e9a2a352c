"""The paper's loss (4): SmoothL1 between the states before the head, and the cross-entropy of what the head makes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from disco.adapter.answers import Answer
from disco.adapter.model_facts import ModelFacts
from disco.adapter.network import AdapterLayer, normed
from disco.adapter.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Loss", "adapted", "head_loss"]

ROWS: Final = 256
"""How many rows the head computes at once. Logits of all rows and their gradients would be hundreds of megabytes, and
getting such memory from the system for each step took ten times as long as computing them."""


def adapted(facts: ModelFacts, layer: AdapterLayer, answers: Sequence[Answer]) -> Tensor:
    """Return the draft's states before the head for all tokens of answers, shape (answer tokens, hidden)."""
    import torch  # noqa: PLC0415 - optional

    longest = max(len(one.shallow) for one in answers)
    states = np.zeros((len(answers), longest, facts.hidden), np.float32)
    places = []
    for number, one in enumerate(answers):
        states[number, : len(one.shallow)] = one.shallow
        places.append(number * longest + np.arange(one.prompt_tokens - 1, len(one.ids) - 1))
    made = layer(torch.from_numpy(states)).flatten(0, 1)[torch.from_numpy(np.concatenate(places))]
    return normed(made, torch.from_numpy(facts.output_norm), facts.epsilon)


class Loss:
    """The loss of a batch.

    The cross-entropy is over the most frequent tokens and some others, which are drawn for each step and stand for all
    the rest: the head is most of the work, and few of the tokens ever come.

    Mutable: the generator that draws, the rows of the head that it drew, and the room for logits.

    Args:
        facts: of the model.
        answers: all that training learns from; their tokens are counted.
        recipe: the weights, and how many tokens of each kind.
    """

    def __init__(self, facts: ModelFacts, answers: Sequence[Answer], recipe: Recipe) -> None:
        import torch  # noqa: PLC0415 - optional

        self.facts, self.recipe = facts, recipe
        counts = np.zeros(len(facts.head))
        for one in answers:
            np.add.at(counts, one.top_ids.ravel(), one.top_shares.ravel().astype(np.float64))
        order = np.argsort(-counts, kind="stable")
        self.listed = min(recipe.shortlist, len(order))
        self.rest = order[self.listed :]
        self.place = np.full(len(order), -1)
        self.place[order[: self.listed]] = np.arange(self.listed)
        self.drawn = min(recipe.strangers, len(self.rest))
        rows = np.concatenate((order[: self.listed], self.rest[: self.drawn]))
        self.head = torch.from_numpy(facts.head[rows])
        self.bias = torch.zeros(len(self.head))
        if self.drawn:
            self.bias[self.listed :] = math.log(len(self.rest) / self.drawn)
        self.rng = np.random.default_rng(recipe.seed)
        self.room = torch.empty(ROWS, len(self.head))

    def __call__(self, layer: AdapterLayer, batch: Sequence[Answer]) -> float:
        """Return the loss, and add its gradients to those of the layer's weights."""
        import torch  # noqa: PLC0415 - optional
        from torch.nn.functional import smooth_l1_loss  # noqa: PLC0415 - optional

        recipe, made = self.recipe, adapted(self.facts, layer, batch)
        wanted = torch.from_numpy(np.concatenate([one.final for one in batch]).astype(np.float32))
        loss = recipe.state_weight * smooth_l1_loss(made, wanted)
        entropy = 0.0
        if recipe.ce_weight:
            entropy, gradient = self._cross_entropy(made.detach(), batch)
            # Of this product, the gradient is the entropy's.
            loss = loss + recipe.ce_weight * (made * gradient).sum()
            entropy -= float((made.detach() * gradient).sum())
        loss.backward()
        return float(loss.detach()) + recipe.ce_weight * entropy

    def _cross_entropy(self, made: Tensor, batch: Sequence[Answer]) -> tuple[float, Tensor]:
        import torch  # noqa: PLC0415 - optional

        if self.drawn:
            strangers = self.rng.choice(self.rest, self.drawn, replace=False)
            self.head[self.listed :] = torch.from_numpy(self.facts.head[strangers])
        places = self.place[np.concatenate([one.top_ids for one in batch])]
        shares: npt.NDArray[np.floating] = np.concatenate([one.top_shares for one in batch]) * (places >= 0)
        total = shares.sum(-1, keepdims=True, dtype=np.float32)
        # Where nearly all of the model's likely tokens are outside the list there is nothing to learn.
        shares = np.where(total > 0.1, shares / np.maximum(total, 1e-6), 0).astype(np.float32)
        wanted = torch.from_numpy(np.maximum(places, 0)), torch.from_numpy(shares)
        return head_loss(made, self.head, self.bias, *wanted, self.room)


def head_loss(
    made: Tensor, head: Tensor, bias: Tensor, places: Tensor, shares: Tensor, room: Tensor
) -> tuple[float, Tensor]:
    """Return the mean cross-entropy behind a head that is not trained, and its gradient.

    Args:
        made: states before the head, shape (rows, hidden), without a gradient of their own.
        head: shape (tokens, hidden).
        bias: added to the logits, shape (tokens,).
        places: of the likely tokens in the head, shape (rows, k).
        shares: their probabilities, which make 1 together, or 0 in a row that does not count; shape (rows, k).
        room: for logits, shape (rows at once, tokens).
    """
    import torch  # noqa: PLC0415 - optional

    gradient, loss = torch.empty_like(made), 0.0
    is_learned = shares.sum(-1) > 0
    for begin in range(0, len(made), len(room)):
        rows = slice(begin, begin + len(room))
        logits = torch.addmm(bias, made[rows], head.T, out=room[: len(made[rows])])
        height = logits.logsumexp(-1, keepdim=True)
        loss += float(((height - logits.gather(-1, places[rows])) * shares[rows]).sum())
        logits.sub_(height).exp_().mul_(is_learned[rows, None]).scatter_add_(-1, places[rows], -shares[rows])
        torch.mm(logits, head, out=gradient[rows])
    count = max(1, int(is_learned.sum()))
    return loss / count, gradient.div_(count)
