"""The prompt for a question on a paragraph: an instruction, five invented examples, paragraph and question."""

from __future__ import annotations

from typing import Final

__all__ = ["EXAMPLES", "INSTRUCTION", "question_messages"]

INSTRUCTION = "You answer questions about a text with a few words copied from the text."
# Invented for this purpose. Without examples the model answers in whole sentences, which F1 marks down.
_TEXT = (
    "The bakery on Mill Road was opened in 1921 by Ada Finch, a miller's daughter from Orrin. It sold rye bread at "
    "four pence a loaf, and closed when the bridge was washed away."
)
EXAMPLES: Final = (
    ("Who opened the bakery?", "Ada Finch"),
    ("When was it opened?", "1921"),
    ("What did a loaf cost?", "four pence"),
    ("What was sold there?", "rye bread"),
    ("Why did it close?", "the bridge was washed away"),
)
"""Questions and answers on the invented text."""


def question_messages(asked: str) -> list[dict[str, str]]:
    """Return the messages that ask `asked`, a text with a question behind it.

    The examples come first, so that the prompt cache holds them; then the text, which several questions share.
    """
    messages = [{"role": "system", "content": INSTRUCTION}]
    for number, (question, answer) in enumerate(EXAMPLES):
        text = f"Text: {_TEXT}\n\n" if number == 0 else ""
        messages.append({"role": "user", "content": f"{text}Question: {question}"})
        messages.append({"role": "assistant", "content": answer})
    return [*messages, {"role": "user", "content": asked}]
