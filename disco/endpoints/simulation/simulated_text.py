"""The text of a simulated model: deterministic, cut into tokens, with a continuation for any prefix.

A "token" here is a word of at most eight letters with the whitespace before it, a punctuation mark or one
CJK character. Cutting loses nothing: the tokens of a text, joined, are the text.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from disco.request import Prefix, Request

__all__ = ["canonical", "fingerprint", "foreign", "prompt_pieces", "shared_prose", "tokenise"]

# Everything from U+2E80 on (CJK, emoji) counts one token a character, even where \w does not match it.
_TOKEN = re.compile(r"\s?(?:[^\W\u2e80-\U0010ffff]{1,8}|\S)|\s")

_WORDS = tuple(
    """
    the a one this that each some many first last long short light deep quiet open early small bright plain
    river field house road window garden letter table season market reader answer question number story
    keeps finds turns opens carries holds follows brings leaves meets grows reaches begins crosses shows
    and but while because before after under across between without beside again slowly often together
    """.split()  # noqa: SIM905 - a list literal of 70 words would be 70 lines
)


def tokenise(text: str) -> list[str]:
    """Cut `text` into tokens; joined they are `text` again."""
    return _TOKEN.findall(text)


def fingerprint(*parts: object) -> int:
    """Return a 64-bit number that depends on `parts` alone: the same in every process."""
    data = json.dumps(parts, sort_keys=True, default=str, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


def _prose(key: int) -> Iterator[str]:
    """Yield an endless text in pieces that are tokens; the first has no space before it."""
    rng = random.Random(key)
    space = ""
    for sentence in itertools.count(1):
        for position in range(rng.randint(5, 12)):
            word = rng.choice(_WORDS)
            yield space + (word.capitalize() if position == 0 else word)
            space = " "
        yield "."
        if sentence % 4 == 0:
            yield "\n"
            space = "\n"


def shared_prose(tokens: int) -> list[str]:
    """Return the first `tokens` tokens of one text, for callers that do not depend on its words."""
    return list(itertools.islice(_prose(0), tokens))


def canonical(request: Request, seed: int, tokens: int) -> str:
    """Return the first `tokens` tokens of the answer to `request` by a model with this `seed`."""
    key = fingerprint([dict(m) for m in request.messages], request.params.get("seed"), seed)
    return "".join(itertools.islice(_prose(key), tokens))


def foreign(request: Request, seed: int, prefix: Prefix, tokens: int) -> str:
    """Return a continuation by that model of a prefix that it would not have written, from a new word."""
    key = fingerprint([dict(m) for m in request.messages], request.params.get("seed"), seed, prefix.text)
    text = "".join(itertools.islice(_prose(key), tokens))
    return text if not text or prefix.text[-1:].isspace() else " " + text


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return ""


def prompt_pieces(messages: Sequence[Mapping[str, Any]], prefix: Prefix) -> list[str]:
    """Return the tokens a model has to prefill for `messages` and the part of `prefix` that it is sent."""
    pieces: list[str] = []
    for message in messages:
        pieces += (
            f"<|{message.get('role', 'user')}|>",
            *tokenise(_text_of(message.get("content"))),
            "<|end|>",
        )
    pieces += ("<|assistant|>", *tokenise(prefix.sent))
    return pieces
