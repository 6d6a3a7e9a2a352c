"""Grammars without a model: what they take, and what a model that knows nothing but bytes may write under them."""

from __future__ import annotations

from random import Random

from hypothesis import strategies as st

from disco.endpoints.llamacpp.constraints import (
    Constraint,
    Vocabulary,
    accepted_schema,
    grammar_text,
    json_rule,
)

END = 256
BYTES = Vocabulary([*(bytes([byte]) for byte in range(END)), b""], [END], lambda text: list(text.encode()))
randoms = st.integers(0, 2**32).map(Random)  # quicker than Hypothesis's own, and as repeatable


class Grammar:
    """A grammar over a vocabulary; by default single bytes and an end."""

    def __init__(self, text, vocabulary=BYTES, tokenize=lambda text: list(text.encode()), end=END) -> None:
        self._text, self._vocabulary, self._tokenize, self._end = text, vocabulary, tokenize, end

    @classmethod
    def of(cls, schema, **vocabulary):
        rules = {"document": json_rule(accepted_schema(schema))}
        return cls(grammar_text("document", rules), **vocabulary)

    def matches(self, text: str) -> bool:
        """It takes the text, token by token, and then the end of the answer."""
        constraint = Constraint(self._vocabulary, self._text)
        for token in [*self._tokenize(text), self._end]:
            if token not in constraint.allowed():
                return False
            constraint.accept(token)
        return True

    def write(self, random, length: int = 60, towards: bytes = b"") -> str:
        """A random text; beyond `length` bytes it ends as soon as it can, with bytes of `towards` where it may."""
        constraint = Constraint(self._vocabulary, self._text)
        written = bytearray()
        while not constraint.over:
            allowed = constraint.allowed().tolist()
            if allowed[-1] == END:
                allowed.pop()
                if not allowed or len(written) >= length or random.random() < 0.3:
                    break
            if len(written) >= length:  # close what is open, or else go where it can be closed
                closing = [byte for byte in b'"}]' if byte in allowed]
                # Inside a string brackets close nothing, so not always.
                allowed = (
                    (closing[:1] if random.random() < 0.5 else [])
                    or [byte for byte in allowed if byte in towards]
                    or [byte for byte in allowed if byte not in b" ,[{\\"]
                    or allowed
                )
            # Punctuation as often as letters, or no text would ever have structure.
            marks = [byte for byte in allowed if byte in b'"{}[],:\\ -.']
            assert len(written) < 5_000, bytes(written[-80:])
            written.append(random.choice(marks if marks and random.random() < 0.4 else allowed))
            constraint.accept(written[-1])
        return written.decode()
