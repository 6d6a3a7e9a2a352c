"""Token healing: makes a model write given bytes again before it continues freely.

A text that is cut inside a word ends in tokens that the model would not have written, and the quality of the next
tokens suffers. So the last word is not in the prompt. The model instead chooses freely among the tokens that agree
with the word's bytes, and a token may run past their end: with "mark" withheld, "market" is a valid choice.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

__all__ = ["Healer", "PieceIndex"]


class PieceIndex:
    """The tokens of a vocabulary by the bytes they spell."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        # Flat lists: with an object for each of the tokens, the garbage collector would stop the application's threads
        # while a model loads, for a tenth of a second or more.
        by_token = list(pieces)
        self._tokens = sorted((t for t, piece in enumerate(by_token) if piece), key=by_token.__getitem__)
        self._pieces = [by_token[token] for token in self._tokens]
        self.longest = max(map(len, self._pieces), default=0)

    def spelling(self, piece: bytes) -> Sequence[int]:
        """Return the tokens that spell exactly `piece`."""
        return self._tokens[bisect_left(self._pieces, piece) : bisect_right(self._pieces, piece)]

    def beginning_with(self, start: bytes) -> list[int]:
        """Return the tokens that spell `start` and at least one byte more."""
        stem = start.rstrip(b"\xff")
        beyond = stem[:-1] + bytes([stem[-1] + 1]) if stem else None  # the first text that does not begin so
        end = len(self._pieces) if beyond is None else bisect_left(self._pieces, beyond)
        return sorted(self._tokens[bisect_right(self._pieces, start) : end])


class Healer:
    """The tokens that may come next so that the answer spells the withheld bytes.

    Mutable: `_at`, how many of the bytes have been spelled.

    Args:
        index: the vocabulary.
        withheld: the bytes to spell.
    """

    def __init__(self, index: PieceIndex, withheld: bytes) -> None:
        self._index = index
        self._withheld = withheld
        self._at = 0
        # A vocabulary need not have a token for every single byte, so a choice can lead to a position from which
        # the end cannot be spelled. This records for each position whether the end can be reached.
        self._reaches = [False] * len(withheld) + [True]
        for at in reversed(range(len(withheld))):
            goes_on = any(True for _ in self._steps(at))
            self._reaches[at] = goes_on or bool(index.beginning_with(withheld[at:]))

    @property
    def done(self) -> bool:
        """Whether all withheld bytes are spelled."""
        return self._at >= len(self._withheld)

    def _steps(self, at: int) -> Iterable[int]:
        for end in range(at + 1, min(len(self._withheld), at + self._index.longest) + 1):
            if self._reaches[end]:
                yield from self._index.spelling(self._withheld[at:end])

    def allowed(self) -> list[int]:
        """Return the tokens that agree with the bytes still to be spelled; empty if the vocabulary has none."""
        return [*self._steps(self._at), *self._index.beginning_with(self._withheld[self._at :])]

    def accept(self, piece: bytes) -> bytes:
        """Advance by the chosen token's bytes; return those beyond the withheld ones."""
        rest = self._withheld[self._at :]
        self._at += len(piece)
        return piece[len(rest) :]
