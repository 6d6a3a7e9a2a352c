"""What was asked and answered in a chat."""

from __future__ import annotations

from typing import Any

__all__ = ["Conversation"]


class Conversation:
    """The questions and answers of a chat, in the API's form. Mutable: all.

    Attributes:
        messages: what the models get before the next question.
        question: what was asked last, answered or not; None before the first question.
    """

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.question: str | None = None
        self._is_answered = False  # whether the last question is among the messages

    def ask(self, question: str) -> list[dict[str, Any]]:
        """Return the messages of a request with this question, which now is the last one."""
        self.question, self._is_answered = question, False
        return [*self.messages, {"role": "user", "content": question}]

    def answered(self, answer: str) -> None:
        """Add the last question and its answer, complete or not; nothing where there is no answer at all."""
        if self.question is not None and answer:
            self.messages.append({"role": "user", "content": self.question})
            self.messages.append({"role": "assistant", "content": answer})
            self._is_answered = True

    def take_back(self) -> str | None:
        """Take back the last question, with its answer if there is one, and return it; None: nothing was asked."""
        if self._is_answered:
            del self.messages[-2:]
            self._is_answered = False
        return self.question

    def clear(self) -> None:
        """Begin a new conversation."""
        self.messages.clear()
        self.question, self._is_answered = None, False
