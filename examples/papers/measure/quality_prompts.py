"""The prompts of `python -m papers.measure quality`: questions on paragraphs, or a user's own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from disco.errors import ConfigurationError
from disco.request import Request
from papers.measure.squad_prompt import EXAMPLES, INSTRUCTION, question_messages
from papers.measure.squad_questions import Question, read_questions

__all__ = [
    "AnswerForm",
    "QualityPrompt",
    "own_prompts",
    "question_prompts",
    "told_messages",
]

AnswerForm = Literal["short", "long"]
"""The answers that questions ask for: a few words on one line, or whole sentences."""

# The examples' answers as whole sentences: what a judge is told in place of the text.
_SENTENCES = (
    "The bakery was opened by Ada Finch, who came from Orrin.",
    "The bakery on Mill Road was opened in the year 1921.",
    "A loaf of the rye bread that it sold cost four pence.",
    "The bakery sold rye bread.",
    "It closed when the bridge was washed away.",
)


@dataclass(frozen=True, slots=True, repr=False)
class QualityPrompt:
    """A prompt that models answer.

    Attributes:
        messages: of the request.
        group: prompts of one group are not independent: those on one paragraph.
        stop: texts that end an answer.
        question: what is asked, without its paragraph; empty for a user's own prompts.
        gold: the right answers; empty where none is known.
    """

    messages: Sequence[Mapping[str, Any]] = field()
    group: int
    stop: tuple[str, ...] = ()
    question: str = ""
    gold: tuple[str, ...] = ()

    def request(self, tokens: int) -> Request:
        """Return the request for a greedy answer of at most so many tokens."""
        stop = {"stop": list(self.stop)} if self.stop else {}
        return Request(self.messages, "", {"temperature": 0, "max_tokens": tokens, **stop})


def question_prompts(path: str | Path, form: AnswerForm, paragraphs: int) -> list[QualityPrompt]:
    """Return the questions of a file in SQuAD's format, first one question of every paragraph, then a second one.

    Args:
        path: the file.
        form: the answers that are asked for.
        paragraphs: how many paragraphs a prompt has: the question's own in the middle, and those around it in the file.

    Raises:
        ConfigurationError: the file cannot be read, has another format, or has fewer paragraphs.
    """
    questions = read_questions(path)
    texts = {one.paragraph_number: one.paragraph for one in questions}
    if not 1 <= paragraphs <= len(texts):
        raise ConfigurationError(f"--paragraphs must be between 1 and {len(texts)}, not {paragraphs}")
    seen: dict[int, int] = {}
    rounds = []
    for one in questions:
        seen[one.paragraph_number] = seen.get(one.paragraph_number, -1) + 1
        rounds.append(seen[one.paragraph_number])
    order = sorted(range(len(questions)), key=lambda place: rounds[place])
    numbers = sorted(texts)
    return [
        _prompt(questions[place], form, _around(texts, numbers, questions[place], paragraphs))
        for place in order
    ]


def _around(texts: Mapping[int, str], numbers: Sequence[int], one: Question, paragraphs: int) -> str:
    start = min(max(0, numbers.index(one.paragraph_number) - paragraphs // 2), len(numbers) - paragraphs)
    return "\n\n".join(texts[number] for number in numbers[start : start + paragraphs])


def _prompt(one: Question, form: AnswerForm, text: str) -> QualityPrompt:
    if form == "short":
        messages = question_messages(f"Text: {text}\n\nQuestion: {one.question}")
        return QualityPrompt(messages, one.paragraph_number, ("\n",), one.question, one.answers)
    asked = f"{text}\n\nQuestion: {one.question}\nAnswer in full sentences, with what the text says about it."
    return QualityPrompt(
        [{"role": "user", "content": asked}], one.paragraph_number, (), one.question, one.answers
    )


def told_messages(question: str, answer: str) -> list[dict[str, str]]:
    """Return a conversation that tells an answer in place of the text, and asks the question."""
    messages = [{"role": "system", "content": INSTRUCTION}]
    for (example, short), sentence in zip(EXAMPLES, _SENTENCES, strict=True):
        messages.append({"role": "user", "content": _told(example, sentence)})
        messages.append({"role": "assistant", "content": short})
    return [*messages, {"role": "user", "content": _told(question, answer)}]


def _told(question: str, answer: str) -> str:
    return f"Text: {answer}\n\nQuestion: {question}"


def own_prompts(path: str | Path) -> list[QualityPrompt]:
    """Return a user's own prompts: one a line, or JSON lines (.jsonl) with `messages` or `prompt`.

    Raises:
        ConfigurationError: the file cannot be read, has no prompt, or has a line of another form; a message names the
            line and quotes nothing of it.
    """
    file = Path(path)
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except OSError as broken:
        raise ConfigurationError(f"{file} cannot be read: {broken.strerror or broken}") from broken
    except UnicodeDecodeError:
        raise ConfigurationError(f"{file} is not UTF-8") from None
    found = list[QualityPrompt]()
    for number, line in enumerate(lines, 1):
        if line.strip():
            messages = _own(file, number, line)
            found.append(QualityPrompt(messages, len(found)))
    if not found:
        raise ConfigurationError(
            f"{file} has no prompt; write one a line, or JSON lines with `messages` or `prompt`"
        )
    return found


def _own(file: Path, number: int, line: str) -> Sequence[Mapping[str, Any]]:
    if file.suffix != ".jsonl":
        return [{"role": "user", "content": line.strip()}]
    try:
        given = json.loads(line)
    except ValueError:
        given = None
    messages = given.get("messages") if isinstance(given, dict) else None
    if isinstance(messages, list) and messages and all(isinstance(one, dict) for one in messages):
        return messages
    if isinstance(given, dict) and isinstance(given.get("prompt"), str):
        return [{"role": "user", "content": given["prompt"]}]
    raise ConfigurationError(f"{file}, line {number}: there is neither a list `messages` nor a text `prompt`")
