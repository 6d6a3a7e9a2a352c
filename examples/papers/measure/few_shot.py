"""A language model as a tier: a few examples, the text, and the scores of the labels behind it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from disco.endpoints.llamacpp import EngineEndpoint
from disco.errors import EndpointFailure
from disco.events import Ended
from disco.request import Request
from papers.measure.labelled_texts import LabelledText

__all__ = ["PLAIN_TEMPLATE", "FewShotPrompt", "ModelScore", "choose_examples", "score_text"]

PLAIN_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
"""A chat template that adds nothing. A model of 135 million weights follows examples in running text far better than
as turns of a chat."""

_SHORT_WORDS = range(5, 16)
_SHORTEST = 50


@dataclass(frozen=True, slots=True)
class ModelScore:
    """What the model made of one text.

    Attributes:
        scores: log probability of each label, nats.
        cpu_s: processor time of this process, seconds.
        tokens: tokens computed: those of the examples are in the prompt cache.
    """

    scores: tuple[float, ...]
    cpu_s: float
    tokens: int


def choose_examples(texts: Sequence[LabelledText], labels: int, count: int, seed: int) -> list[LabelledText]:
    """Return `count` training texts, as many of each label.

    They are drawn from the texts of 5 to 15 words; of a label with fewer than 50 such texts, from its 50 shortest.
    They come in rounds with one text of each label, in random order: a model leans to the label that it saw last.

    Args:
        texts: at least `count // labels` of each label.
        labels: how many labels there are.
        count: how many examples; rounded down to a multiple of `labels`.
        seed: decides which texts, and in which order.
    """
    draw = np.random.default_rng(seed)
    rounds = count // labels
    of_label = []
    for label in range(labels):
        own = sorted((text for text in texts if text.label == label), key=lambda text: len(text.text.split()))
        short = [text for text in own if len(text.text.split()) in _SHORT_WORDS]
        among = short if len(short) >= _SHORTEST else own[:_SHORTEST]
        of_label.append([among[place] for place in draw.choice(len(among), rounds, replace=False)])
    return [of_label[label][number] for number in range(rounds) for label in draw.permutation(labels)]


@dataclass(frozen=True, slots=True)
class FewShotPrompt:
    """The prompt: examples with their labels, then the text that wants one.

    Attributes:
        examples: as `choose_examples` returns them.
        labels: the labels' names.
        first_words, last_words: of a longer text, only so many words of its beginning and end are kept.
        item, question: what a text is called, and what its label is called.
    """

    examples: Sequence[LabelledText]
    labels: Sequence[str]
    first_words: int
    last_words: int
    item: str = "Review"
    question: str = "Sentiment"

    @property
    def classes(self) -> tuple[str, ...]:
        """The answers to choose between."""
        return tuple(f" {label}" for label in self.labels)

    def request(self, text: str) -> Request:
        """Return the request for one text."""
        shown = "".join(f"{self._question(one.text)}{self.classes[one.label]}\n\n" for one in self.examples)
        content = shown + self._question(text)
        return Request([{"role": "user", "content": content}], "", classes=self.classes)

    def _question(self, text: str) -> str:
        return f"{self.item}: {self._cut(text)}\n{self.question}:"

    def _cut(self, text: str) -> str:
        words = text.replace("<br />", " ").split()
        if len(words) > self.first_words + self.last_words:
            words = [*words[: self.first_words], "...", *words[len(words) - self.last_words :]]
        return " ".join(words)


async def score_text(device: EngineEndpoint, prompt: FewShotPrompt, text: str) -> ModelScore:
    """Let the model score the labels of one text.

    Raises:
        OpenAIError: the model failed, or the prompt does not fit its context.
    """
    began_s = time.process_time()
    scores: tuple[float, ...] = ()
    tokens = 0
    try:
        async with device.open(prompt.request(text), wants=frozenset({"label_scores"})) as attempt:
            async for event in attempt:
                if isinstance(event, list):
                    scores = event[0].label_scores or ()
                elif isinstance(event, Ended) and event.usage is not None:
                    tokens = event.usage.prompt_tokens - event.usage.cached_tokens
    except EndpointFailure as failure:
        raise failure.error from failure
    return ModelScore(scores, time.process_time() - began_s, tokens)
