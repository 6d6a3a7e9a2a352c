"""Texts for the demonstrations: what the models are told, voices for the servers, and a long prompt."""

from __future__ import annotations

from typing import Final

__all__ = ["CRIER", "INSTRUCTIONS", "KEEPERS_BOOK", "SAILOR", "voiced"]

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


KEEPERS_BOOK: Final = """\
The museum stands at the end of the harbour road, where the pavement stops and the shingle begins. It has \
four rooms and a tower. The house was built for the keeper of the light and his family, and it served for \
a hundred and twelve years. When the lamp was given an electric motor, the last keeper stayed on for one \
more winter, because he did not trust the motor. He was right not to: it failed in the second week of \
January, and he turned the great lens by hand for nine nights. In the spring he handed the key to the \
town, with the wish that people should be let in and that somebody should keep the brass clean.

The first room holds the ships in bottles. There are forty-one of them, and no two are alike. Most were \
made by sailors on long voyages, who folded the masts flat, pushed the hull through the neck, and raised \
the rigging with a thread. The smallest is a herring boat in a medicine bottle, no longer than a thumb. \
The largest is a four-masted barque in a flask that once held acid, and it took a carpenter from the north \
shore eleven years. He had to stop twice: once because his eyes grew weak and he waited for spectacles, \
and once because he had glued the rudder on the wrong way round and would not leave it so. One bottle is \
empty. Its maker left for sea before he began, and his wife gave the bottle to the museum with the cork \
already in it.

The second room is for the brass instruments. Here are sextants, compasses, a chronometer in a box lined \
with green felt, and a speaking trumpet with a dent. The chronometer still runs. It loses about two \
seconds a day, which the guide corrects each morning after the time signal on the radio. A compass in the \
corner points a little to the west of where it should, because an iron stove used to stand behind the \
wall, and somebody adjusted the needle to it. The stove is gone and the error stayed. Children are allowed \
to hold the trumpet and to call through it from the door, if the wind is not from the south, since then \
the whole harbour hears them.

The third room has the charts. The oldest was drawn before anybody had measured the coast, and it shows \
the bay as round as a plate. Sea monsters swim in its margins: one has the head of a dog, one blows water \
from two chimneys, and one lies asleep around an island and holds its own tail. The men who drew them did \
not all believe in them. A monster was a polite way to say that nobody had been there, and a wide margin \
looked poor without one. Later charts have numbers where the monsters were, thousands of them, each the \
depth of the water at one place, found with a piece of lead on a line. Beside one number, near the harbour \
mouth, a pencil has written: not true. A rock was found there the hard way, by the ferry, in a calm sea \
and full sunlight. No one was hurt, but the band on board stopped playing.

The fourth room is small and has no window. It keeps the letters that were never sent. They were found \
behind a drawer in the keeper's desk, tied with the cord that is used for signal flags, sixty-three of \
them, all written to the same person in a town far inland. The keeper wrote about the weather, about the \
ships that passed, about a gull that came each day at the same hour and that he had named after a bishop. \
He asked questions and, in the next letter, answered them himself. Nobody knows why he did not send them. \
The museum shows the envelopes and not the pages, except for one, which says only that the fog had lifted \
and that he could see the hills.

A stair of ninety-eight steps leads from the fourth room to the lamp. The lens is taller than a man and is \
made of more than a thousand pieces of glass, each of them ground so that it bends the light toward the \
horizon. The flame behind it was no larger than a hand, and yet it was seen from twenty miles away. The \
lens floats in a trough of quicksilver, and a child can turn it with one finger. Oil was carried up the \
stair twice a day, and the keeper trimmed the wick every four hours, in summer and in winter. On foggy \
nights he rang a bell as well, once in a minute, and he counted the strokes aloud so as not to fall \
asleep. The lamp is still lit on one evening of the year, the shortest day. Then the fishermen put out \
their own lights for a quarter of an hour, and people stand on the shingle and count how long the beam \
takes to come round: eleven seconds, as it always did."""
