"""What a JSON schema may cost: its translation, and the grammar that llama.cpp checks every token against.

Neither can be stopped inside llama.cpp, so both are bounded before they begin. The numbers were measured with a
vocabulary of 49,152 tokens on one slow core: each keeps a token below some half a second.
"""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["LIMITS", "MAX_DIGITS", "SchemaCost", "SchemaError"]

LIMITS = {
    "schema": (10_000, "subschemas"),
    "enum": (1_000, "values"),
    "anyOf": (200, "alternatives"),
    "oneOf": (200, "alternatives"),
    "optional": (300, "optional properties"),
    "text": (250_000, "characters of names and values"),
    "repeats": (200_000, "repetitions, as maxLength, maxItems and patterns ask for them"),
    "pattern": (4_000, "characters in patterns"),
    "branches": (1_000, "alternatives in patterns"),
    "optionals": (32, "optional parts in a pattern (?, * and the like)"),
}
"""By what is counted over a whole schema: how many, and of what."""

MAX_DIGITS = 40
"""Of minimum and maximum."""


class SchemaError(ValueError):
    """The schema cannot be turned into a grammar; the message says why, in a clause."""


def _ignore() -> None:
    pass


class SchemaCost:
    """Counts what a schema asks for while it is translated.

    Mutable: `_used`.

    Args:
        check: called all along; what it raises stops the translation and passes through.
    """

    def __init__(self, check: Callable[[], None] = _ignore) -> None:
        self._check = check
        self._used: dict[str, int] = {}

    def spend(self, what: str, amount: int = 1) -> None:
        """Count `amount` more of something.

        Raises:
            SchemaError: that is more than the limit.
        """
        self._check()
        used = self._used[what] = self._used.get(what, 0) + amount
        most, words = LIMITS[what]
        if used > most:
            keyword = f"{what}: " if what in ("enum", "anyOf", "oneOf", "pattern") else ""
            raise SchemaError(
                f"{keyword}it has {used:,} or more {words}, and at most {most:,} are kept to; make it simpler, "
                "say it in the prompt instead, or send this request to a server"
            )

    def expect(self, what: str, amount: int) -> None:
        """Leave where `amount` of it would be too much by itself, before anything is done with it."""
        if amount > LIMITS[what][0]:
            self.spend(what, amount)

    def forget(self, what: str) -> None:
        """Count anew."""
        self._used.pop(what, None)
