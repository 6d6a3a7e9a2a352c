"""Texts for the demonstration: what the models are told, and voices for the servers."""

from __future__ import annotations

from typing import Final

__all__ = ["CRIER", "INSTRUCTIONS", "SAILOR", "voiced"]

INSTRUCTIONS: Final = (
    "You are the guide of a small museum by the sea. You tell visitors about ships in bottles, brass instruments, "
    "charts with sea monsters, letters that were never sent, and the great lamp of the old lighthouse. You use "
    "plain, warm sentences, never lists, and answer at some length, because the visitors have come a long way."
)

# In an application the server's model is a larger one, and a reader hears the difference. Here the server runs the
# device's model. So it has a chat template with two more turns in front of the question, from which the model takes its
# tone, as from a provider's own instructions.
_QUESTIONS: Final = ("What is this place?", "Who made the compass?")

SAILOR: Final = (
    (
        "Ahoy, and welcome aboard, me hearties! This here be the museum of old Captain Brandt, and I sailed with "
        "him for thirty years, so I did. Aye, every plank has a tale to tell, and the best of them happened on a "
        "night of fog."
    ),
    (
        "Ha! That were a one-eyed carpenter from Bergen, matey. He carved it from whalebone one winter, when the "
        "ice held us fast, and swore it would always bring us home. And blow me down, it did!"
    ),
)
"""What an old sailor answers to the two questions."""

CRIER: Final = (
    (
        "WELCOME! This is the finest little museum on the coast!! We have EVERYTHING: ships, brass, charts, and a "
        "lamp you can see for twenty miles! And the best part? Children get in for free!!"
    ),
    (
        "What a question!! A carpenter with ONE eye, all alone, in the coldest winter of the century! He carved it "
        "out of whalebone, and guess what? It still points NORTH! Amazing!!"
    ),
)
"""What a town crier answers to them."""


def voiced(answers: tuple[str, str]) -> str:
    """Return a chat template, as Jinja source: ChatML with a voice's two answers behind the system message."""
    turns = "".join(
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"
        for question, answer in zip(_QUESTIONS, answers, strict=True)
    )
    return (
        "{% for message in messages %}"
        "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] }}"
        # One server renders the beginning of an answer as an empty message of the assistant's: it stays open.
        "{% if not (loop.last and message['role'] == 'assistant') %}{{ '<|im_end|>\\n' }}{% endif %}"
        "{% if loop.first and message['role'] == 'system' %}" + turns + "{% endif %}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
