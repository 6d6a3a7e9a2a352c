"""How good an answer is: against the right one, under a judge, and as what a judge is told."""

from __future__ import annotations

import math
from collections.abc import Sequence

from disco.endpoints.contract import Endpoint
from disco.endpoints.llamacpp import EngineEndpoint
from disco.errors import EndpointFailure
from disco.request import Request
from papers.measure.quality_prompts import QualityPrompt, told_messages
from papers.measure.squad_questions import token_f1, token_recall

__all__ = ["gold_nats", "judge_nats", "preference", "told_nats", "words_right"]


def words_right(answer: str, prompt: QualityPrompt) -> dict[str, float]:
    """Return F1 and recall of an answer's words (SQuAD's measures); nothing where no right answer is known."""
    if not prompt.gold:
        return {}
    return {"f1": token_f1(answer, prompt.gold), "recall": token_recall(answer, prompt.gold)}


async def gold_nats(model: EngineEndpoint, prompt: QualityPrompt, request: Request) -> tuple[float, ...]:
    """Return the nats (negative natural log probability) of each token of the right answer under one model."""
    (scored,) = await model.log_probabilities(request, prompt.gold[:1])
    return tuple(-value for value in scored)


async def judge_nats(
    judge: EngineEndpoint, request: Request, answers: Sequence[str]
) -> dict[str, float | None]:
    """Return the judge's mean nats for a token of each answer to the request; None for an empty answer."""
    texts = sorted(set(answers))
    scored = await judge.log_probabilities(request, texts)
    return {text: _mean_nats(logp) for text, logp in zip(texts, scored, strict=True)}


async def told_nats(
    judge: EngineEndpoint, prompt: QualityPrompt, answers: Sequence[str]
) -> dict[str, float | None]:
    """Return the judge's mean nats for a token of the right answer, by the answer that the judge is told.

    The judge gets the question and the answer, but not the text that the question is about. So the figure says how
    much of the right answer is in the given one, whatever its length.
    """
    found = {}
    for answer in sorted(set(answers)):
        asked = Request(told_messages(prompt.question, answer), "")
        (logp,) = await judge.log_probabilities(asked, prompt.gold[:1])
        found[answer] = _mean_nats(logp)
    return found


def _mean_nats(logp: Sequence[float]) -> float | None:
    return -sum(logp) / len(logp) if logp else None


_CHOICES = ("1", "2")
_REPLY_TOKENS = 16  # "Answer 1 is better." and its like; a server that gives no scores might go on for ever


async def preference(judge: Endpoint, prompt: QualityPrompt, answer: str, other: str) -> float:
    """Return how much a judge prefers an answer to another one, in [0, 1]; 0.5 for equal answers.

    The judge is asked twice, with either answer first, because models prefer a position. Where it gives log
    probabilities, the share of the probability of both replies counts, else its reply.

    Raises:
        OpenAIError: the judge failed.
    """
    if answer == other:
        return 0.5
    first = await _first_is_better(judge, prompt, answer, other)
    return (first + 1.0 - await _first_is_better(judge, prompt, other, answer)) / 2.0


async def _first_is_better(judge: Endpoint, prompt: QualityPrompt, one: str, two: str) -> float:
    asked = (
        f"Here is a request, and two answers to it.\n\nRequest:\n{_as_text(prompt)}\n\nAnswer 1:\n{one}\n\n"
        f"Answer 2:\n{two}\n\nWhich answer is better? Reply with 1 or 2 only."
    )
    messages = [{"role": "user", "content": asked}]
    request = Request(messages, "", {"temperature": 0, "max_tokens": _REPLY_TOKENS}, classes=_CHOICES)
    text, scores = "", None
    try:
        async with judge.open(request, wants=frozenset({"label_scores"})) as attempt:
            async for event in attempt:
                if isinstance(event, list):
                    for delta in event:
                        text += delta.text
                        scores = delta.label_scores or scores
    except EndpointFailure as failure:
        raise failure.error from failure
    if scores is not None and all(map(math.isfinite, scores)):
        return 1.0 / (1.0 + math.exp(min(scores[1] - scores[0], 700.0)))
    named = [choice for choice in _CHOICES if choice in text]
    return 0.5 if len(named) != 1 else float(named[0] == "1")


def _as_text(prompt: QualityPrompt) -> str:
    said = [(one.get("role"), one.get("content")) for one in prompt.messages]
    if len(said) == 1:
        return str(said[0][1])
    return "\n\n".join(f"{role}: {content}" for role, content in said if isinstance(content, str))
