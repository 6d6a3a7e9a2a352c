"""Measures all arms on one paragraph. Equal prompts are read once; those that begin alike share the KV cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from disco.refine import keep_units
from papers.measure.attention import AttentionReader
from papers.measure.model_scores import ModelScores, ParagraphScores
from papers.measure.prompt_scorer import PromptScorer
from papers.measure.refine_arms import MODEL_ARMS, Arm, Task, kept_units, task_of
from papers.measure.squad_questions import Question, token_f1

__all__ = ["RUNNING_TEXT", "Measured", "ParagraphRun"]

_ASKS_NOTHING = "What does the text say?"

RUNNING_TEXT: Final = (
    "{% for message in messages %}{% if message.role == 'assistant' %} {{ message.content }}\n\n{% else %}"
    "{{ message.content }}{% if message.role == 'user' %}\nAnswer:{% else %}\n\n{% endif %}{% endif %}{% endfor %}"
)
"""A chat template that writes running text. A model of 135 million weights follows its examples better than turns."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One arm on one question.

    Attributes:
        nats: minus the log probability of a token of the right answer, mean.
        f1: of the model's answer.
        gold_kept: whether all units that hold a part of the right answer were kept.
        kept_share: the kept share of the text that might be left out, tokens by estimate.
        prompt_tokens: length of the prompt, tokens of the model.
    """

    nats: float
    f1: float
    gold_kept: bool
    kept_share: float
    prompt_tokens: int

    def cells(self) -> list[float]:
        """Return the values for a line of JSON."""
        figures = round(self.nats, 4), round(self.f1, 4), int(self.gold_kept), round(self.kept_share, 4)
        return [*figures, self.prompt_tokens]

    @classmethod
    def of_cells(cls, cells: Sequence[float]) -> Measured:
        """Return what `cells` gave."""
        nats, f1, gold_kept, kept_share, prompt_tokens = cells
        return cls(nats, f1, bool(gold_kept), kept_share, int(prompt_tokens))


@dataclass(slots=True)
class _Prompt:
    """A prompt that some arms of one question share."""

    ids: list[int]
    arms: list[tuple[Arm, bool, float]] = field(default_factory=list)  # with gold_kept and kept_share


class ParagraphRun:
    """Measures paragraphs with one model.

    Args:
        scorer: the model.
        arms: the arms.
    """

    def __init__(self, scorer: PromptScorer, arms: Sequence[Arm]) -> None:
        self._scorer = scorer
        self._arms = arms
        self._reader: AttentionReader | None = None
        if any(arm.name in MODEL_ARMS for arm in arms):
            self._reader = AttentionReader(scorer.model)

    def close(self) -> None:
        """Free what was made beside the model. Idempotent."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def __call__(self, questions: Sequence[Question]) -> list[dict[Arm, Measured]]:
        """Return, for each of a paragraph's questions, what each arm measured."""
        tasks = [task_of(one) for one in questions]
        golds = [self._scorer.model.tokenize(f" {one.answers[0]}", special=False) for one in questions]
        whole = [self._whole(task) for task in tasks]
        server: list[tuple[int, ...]] = [() for _ in tasks]
        scores: list[ParagraphScores | None] = [None for _ in tasks]
        if self._reader is not None:
            contentless = self._whole(task_of(replace(questions[0], question=_ASKS_NOTHING)))
            scores = [*ModelScores(self._scorer, self._reader)(tasks, whole, contentless)]
            server = [self._scorer.score(*one).answer_ids for one in zip(whole, golds, strict=True)]
        found: list[dict[Arm, Measured]] = [{} for _ in questions]
        planned = [
            (number, prompt)
            for number, task in enumerate(tasks)
            for prompt in self._prompts(task, whole[number], server[number], scores[number])
        ]
        for number, prompt in sorted(planned, key=lambda one: one[1].ids):
            question, gold = questions[number], golds[number]
            for begun in sorted({arm.begun for arm, *_ in prompt.arms}):
                scored = self._scorer.score(prompt.ids, gold, server[number][:begun])
                f1 = token_f1(scored.answer, question.answers)
                for arm, gold_kept, kept_share in prompt.arms:
                    if arm.begun == begun:
                        found[number][arm] = Measured(
                            scored.nats / len(gold), f1, gold_kept, kept_share, len(prompt.ids)
                        )
        return found

    def ids(self, task: Task, kept: Sequence[bool]) -> list[int]:
        """Return the prompt with these units."""
        short = keep_units(task.messages, task.turns, kept)
        return self.rendered(short.messages)

    def rendered(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the tokens of a conversation up to the answer."""
        model = self._scorer.model
        return model.tokenize(model.render(messages, RUNNING_TEXT), special=True)

    def _whole(self, task: Task) -> list[int]:
        return self.ids(task, [True] * len(task.gold))

    def _prompts(
        self, task: Task, whole: list[int], server: Sequence[int], scores: ParagraphScores | None
    ) -> list[_Prompt]:
        prompts: dict[tuple[int, ...], _Prompt] = {}
        units = task.turn.optional()
        hints = self._text(server[: max(arm.begun for arm in self._arms)])
        for arm in self._arms:
            if arm.name == "none":
                ids, gold_kept, share = self._without_text(task), False, 0.0
            elif arm.name == "surprisal, tokens":
                assert scores is not None
                ids, gold_kept, share = _best_tokens(whole, scores, task, arm.keep)
            else:
                kept = kept_units(task, arm, hints=hints, found=None if scores is None else scores.units)
                ids = self.ids(task, kept)
                gold_kept = all(one for one, gold in zip(kept, task.gold, strict=True) if gold)
                total = sum(unit.tokens for unit in units)
                own = sum(unit.tokens for unit, one in zip(units, kept, strict=True) if one)
                share = own / total if total else 1.0
            prompt = prompts.setdefault(tuple(ids), _Prompt(ids))
            prompt.arms.append((arm, gold_kept, share))
        return list(prompts.values())

    def _text(self, ids: Sequence[int]) -> str:
        return b"".join(self._scorer.model.piece(token) for token in ids).decode("utf-8", "replace")

    def _without_text(self, task: Task) -> list[int]:
        content = str(task.messages[-1]["content"])
        question = content[content.rindex("Question: ") :]
        return self.rendered([*task.messages[:-1], {"role": "user", "content": f"Text:\n\n{question}"}])


def _best_tokens(
    ids: list[int], scores: ParagraphScores, task: Task, keep: float
) -> tuple[list[int], bool, float]:
    """Return the prompt with the text's most surprising tokens only (LLMLingua's criterion, on the model itself)."""
    inside = np.flatnonzero(scores.places >= 0).tolist()
    best = sorted(inside, key=lambda number: -scores.tokens[number - 1])[: round(keep * len(inside))]
    kept = set(best)
    short = [token for number, token in enumerate(ids) if scores.places[number] < 0 or number in kept]
    gold = {number for number in inside if task.gold[scores.places[number]]}
    return short, gold <= kept, len(kept) / len(inside) if inside else 1.0
