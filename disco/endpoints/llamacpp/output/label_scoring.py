"""The job that scores the classes of a request: how probable each of them is as the complete answer."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from disco.endpoints.llamacpp.batching.answer_model import AnswerModel
from disco.endpoints.llamacpp.model.sampler import log_sum_exp
from disco.endpoints.llamacpp.output.prompt_job import PromptJob
from disco.endpoints.llamacpp.prompting.prompt_tokens import Renderer, answer_ids, build_prompt
from disco.endpoints.llamacpp.runtime.job import Outbox
from disco.endpoints.llamacpp.runtime.steps import when_ready
from disco.errors import ContextLengthError, EndpointFailure, FailureKind
from disco.events import Delta
from disco.request import Prefix

__all__ = ["LabelScoring", "score_labels", "token_log_probabilities"]


class LabelScoring(PromptJob):
    """Prefill once, score every class behind the prompt, and answer with the most probable one.

    A score is the sum of the log probabilities of the class's tokens and of the token that ends an answer, where the
    chat template has one, from the model's own logits: no temperature, penalty, bias or grammar changes it. Where
    every class is a single token, none of them begins another one; the end is then left out, and nothing is computed
    beyond the prompt.

    `prompt_tokens` includes the tokens that were read to score the classes.

    Args:
        mail, messages, renderer, name: see `PromptJob`.
        classes: at least two different texts (`disco.request.check_classes`).
    """

    def __init__(
        self,
        mail: Outbox,
        messages: Sequence[Mapping[str, Any]],
        classes: Sequence[str],
        *,
        renderer: Callable[[], Renderer],
        name: str,
    ) -> None:
        super().__init__(mail, messages, renderer=renderer, name=name)
        self._classes = tuple(classes)

    def answer(self, model: AnswerModel) -> Generator[None]:
        renderer = self._renderer()
        conversation = renderer(self._messages, check=self.check)
        prompt = build_prompt(
            model, conversation.text, Prefix(), opening="", name=self._name, check=self.check
        ).ids
        spelled = [answer_ids(model, text, name=self._name, check=self.check) for text in self._classes]
        ends: list[int] = []
        if any(len(ids) > 1 for ids in spelled):
            end = renderer.end_of_answer(model, self.check)
            ends = [] if end is None else [end]
        labels = [ids + ends for ids in spelled]
        self._check_room(model, len(prompt) + max(map(len, labels)))
        yield from self._prefill(model, prompt)
        if self.park:
            self._end("parked")
            return
        scores = yield from score_labels(model, prompt, labels, on_read=self._read)
        best = int(np.argmax(scores))
        self.completion_tokens = len(spelled[best])
        text, ids = self._classes[best], spelled[best]
        exact = model.spell(ids) == text.encode()
        self.mail.put(
            Delta(text, len(ids), ids=tuple(ids) if exact else None, label_scores=tuple(scores.tolist()))
        )
        self._end("stop")

    def _check_room(self, model: AnswerModel, needed: int) -> None:
        if needed > model.context_tokens:
            more = (
                "The longest class is counted with them. Shorten them, or raise the context (context_tokens)."
            )
            error = ContextLengthError.of(model.context_tokens, needed, more=more, param="classes")
            raise EndpointFailure(FailureKind.CONTEXT_LENGTH, error)

    def _read(self, tokens: int) -> None:
        self.prompt_tokens += tokens
        self.check()


class _Row:
    """The log probabilities of the token behind one position."""

    __slots__ = ("_logits", "_sum")

    def __init__(self, logits: npt.NDArray[np.float32], room: npt.NDArray[np.float32]) -> None:
        self._logits = logits.copy()  # the next `decode` overwrites the original
        self._sum = log_sum_exp(logits, room)

    def __getitem__(self, token: int) -> float:
        return float(self._logits[token]) - self._sum


def score_labels(
    model: AnswerModel,
    prompt: Sequence[int],
    labels: Sequence[Sequence[int]],
    *,
    on_read: Callable[[int], None] = lambda _tokens: None,
) -> Generator[None, None, npt.NDArray[np.float64]]:
    """Return the log probability of each label behind the prompt, shape (labels,), nats.

    The arguments are those of `token_log_probabilities`.
    """
    logp = yield from token_log_probabilities(model, prompt, labels, on_read=on_read)
    return np.array([sum(one) for one in logp])


def token_log_probabilities(
    model: AnswerModel,
    prompt: Sequence[int],
    texts: Sequence[Sequence[int]],
    *,
    on_read: Callable[[int], None] = lambda _tokens: None,
) -> Generator[None, None, list[tuple[float, ...]]]:
    """Return the log probability of every token of each text behind the prompt, nats, in the order of the texts.

    Yields where it gives the model up.

    What texts have in common at their beginning is computed once. Afterwards the cache holds the prompt again.

    Args:
        model: it has just computed the prompt, so that its newest logits are those behind it.
        prompt: the prompt's tokens.
        texts: the tokens of each text, at least one.
        on_read: called with the number of tokens computed, after each step; may raise `Aborted`.
    """
    room = np.empty(model.vocabulary_tokens, np.float32)
    rows = [_Row(model.logits(), room)]  # rows[d]: behind the prompt and the first d tokens of `path`
    path: Sequence[int] = ()
    found: dict[int, tuple[float, ...]] = {}
    for number in sorted(range(len(texts)), key=lambda one: tuple(texts[one])):
        text = texts[number]
        shared = _shared(path, text[:-1])
        del rows[shared + 1 :]
        path = text[:-1]  # the last token's own successor does not matter
        context = [*prompt, *path]
        done = model.keep(len(prompt) + shared) if len(path) > shared else len(context)
        while done < len(context):
            batch = context[done : done + model.batch_tokens]
            model.decode(batch, logits_from=0)
            yield from when_ready(model)
            on_read(len(batch))
            # The model may have had to read the end of the prompt again, whose rows are known.
            known = max(0, len(prompt) + shared - done)
            rows += [_Row(model.logits(place), room) for place in range(known, len(batch))]
            done += len(batch)
        found[number] = tuple(row[token] for row, token in zip(rows, text, strict=True))
    model.keep(len(prompt))
    return [found[number] for number in range(len(texts))]


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens both have in common at their beginning."""
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length
