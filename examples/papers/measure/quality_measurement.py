"""Measures one prompt: every model's own answer, the mixed ones, and how good each of them is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from disco.endpoints.contract import Endpoint
from disco.endpoints.llamacpp import EngineEndpoint
from papers.measure.answer_scores import (
    gold_nats,
    judge_nats,
    preference,
    told_nats,
    words_right,
)
from papers.measure.mixed_answers import (
    WrittenAnswer,
    common_length,
    continue_answer,
    cut_answer,
    write_answer,
)
from papers.measure.quality_prompts import QualityPrompt
from papers.quality.quality_trace import MixedRow

__all__ = ["Cast", "Cell", "measure_prompt"]


@dataclass(frozen=True, slots=True)
class Cell:
    """A kind of answer: `first` writes `cut` tokens and `second` the rest. `second` empty: `first` writes all."""

    first: str
    second: str = ""
    cut: int = 0


@dataclass(frozen=True, slots=True)
class Cast:
    """The models of a measurement.

    Attributes:
        small, large: the two models that answers are mixed of.
        also: further models, which only write their own answers.
        judge: the model that judges answers; None: there is none.
        told: the same model once more, with a cache of its own; it is told answers. None where the judge is a server,
            or there is none.
        preferences: whether the judge is asked which of two answers is better.
    """

    small: Endpoint
    large: Endpoint
    also: tuple[Endpoint, ...] = ()
    judge: Endpoint | None = None
    told: EngineEndpoint | None = None
    preferences: bool = False

    @property
    def writers(self) -> tuple[Endpoint, ...]:
        """All models that write answers."""
        return (self.large, self.small, *self.also)


async def measure_prompt(
    cast: Cast, prompt: QualityPrompt, number: int, *, tokens: int, up: Sequence[int], down: Sequence[int]
) -> list[MixedRow]:
    """Return the rows of one prompt.

    Args:
        cast: the models; they are warm.
        prompt: the prompt.
        number: of the prompt, for the rows.
        tokens: the most tokens of an answer.
        up: after how many of the small model's tokens the large one takes over; ascending.
        down: after how many of the large model's tokens the small one takes over; ascending.

    Raises:
        OpenAIError: a model failed, or the prompt does not fit its context.
    """
    request = prompt.request(tokens)
    own = {model.name: await write_answer(model, request) for model in cast.writers}
    answers = {Cell(name): answer for name, answer in own.items()}
    for first, second, cuts in ((cast.small, cast.large, up), (cast.large, cast.small, down)):
        for cut in cuts:
            prefix = cut_answer(own[first.name], cut, first, second)
            cell = Cell(first.name, second.name, cut)
            if prefix is None:
                answers[cell] = own[first.name]  # the answer had ended before the cut
            else:
                answers[cell] = await continue_answer(second, request, prefix)
    scores = {cell: words_right(answer.text, prompt) for cell, answer in answers.items()}
    await _judge(cast, prompt, tokens, answers, scores)
    if prompt.stop:  # the right answer is a whole answer only where short ones are asked for
        await _score_gold(cast, prompt, tokens, scores)
    return list(_rows(cast, prompt, number, own, answers, scores))


async def _judge(
    cast: Cast,
    prompt: QualityPrompt,
    tokens: int,
    answers: dict[Cell, WrittenAnswer],
    scores: dict[Cell, dict[str, float]],
) -> None:
    # The further models' answers are compared with the large model's, and not judged.
    judged = {
        c: a.text for c, a in answers.items() if c.second or c.first in (cast.small.name, cast.large.name)
    }
    texts = list(judged.values())
    if isinstance(cast.judge, EngineEndpoint):
        nats = await judge_nats(cast.judge, prompt.request(tokens), texts)
        _note(scores, "judge_nats", {cell: nats[text] for cell, text in judged.items()})
    if cast.told is not None and prompt.gold:
        nats = await told_nats(cast.told, prompt, [*texts, ""])
        scores[Cell("")] = {}
        _note(scores, "told_nats", {cell: nats[text] for cell, text in {**judged, Cell(""): ""}.items()})
    if cast.preferences and cast.judge is not None:
        other = judged[Cell(cast.small.name)]
        liked = {text: await preference(cast.judge, prompt, text, other) for text in sorted(set(texts))}
        _note(scores, "preferred", {cell: liked[text] for cell, text in judged.items()})


async def _score_gold(
    cast: Cast, prompt: QualityPrompt, tokens: int, scores: dict[Cell, dict[str, float]]
) -> None:
    """Score the right answer under every pair of models: the first gives its tokens up to the cut, the second the rest.

    This is the probability with which a mixed answer is the right one, where tokens are drawn from the models.
    """
    request = prompt.request(tokens)
    nats = {
        model.name: await gold_nats(model, prompt, request)
        for model in (cast.small, cast.large)
        if isinstance(model, EngineEndpoint)
    }
    for cell, found in scores.items():
        first, second = nats.get(cell.first), nats.get(cell.second or cell.first)
        if first and second and len(first) == len(second):  # another tokenizer cuts elsewhere
            found["gold_nats"] = (sum(first[: cell.cut]) + sum(second[cell.cut :])) / len(first)


def _note(scores: dict[Cell, dict[str, float]], measure: str, found: dict[Cell, float | None]) -> None:
    for cell, value in found.items():
        if value is not None:
            scores[cell][measure] = value


def _rows(
    cast: Cast,
    prompt: QualityPrompt,
    number: int,
    own: dict[str, WrittenAnswer],
    answers: dict[Cell, WrittenAnswer],
    scores: dict[Cell, dict[str, float]],
) -> Iterator[MixedRow]:
    reference = own[cast.large.name]
    for cell, measures in scores.items():
        answer = answers.get(cell)
        if answer is None:  # what the judge knows without any answer
            yield MixedRow("", "", "", number, prompt.group, 0, 0, 0, 0, 0, None, None, measures)
            continue
        same_tokens = same_chars = None
        if not cell.second:
            same_chars = common_length(answer.text, reference.text)
            if answer.ids is not None and reference.ids is not None:
                same_tokens = common_length(answer.ids, reference.ids)
        ended_before = bool(cell.second) and answer is own[cell.first]
        yield MixedRow(
            cell.first,
            cell.second,
            answer.finish,
            number,
            prompt.group,
            own[cell.first].prompt_tokens,
            cell.cut,
            answer.tokens if ended_before else answer.kept_tokens,
            answer.tokens,
            len(answer.text),
            same_tokens,
            same_chars,
            measures,
        )
