"""Puts originals back in place of placeholders, also where a placeholder comes in pieces."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from disco.endpoints.redaction.placeholders import in_json

__all__ = ["HeldText", "Restorer", "restored_tree"]


class Restorer:
    """Puts the originals of one attempt back.

    Args:
        originals: by placeholder.
    """

    __slots__ = ("_pattern", "_plain", "_quoted")

    def __init__(self, originals: Mapping[str, str]) -> None:
        self._plain = dict(originals)
        self._quoted = {placeholder: in_json(original) for placeholder, original in originals.items()}
        self._pattern = re.compile("|".join(map(re.escape, originals)) or "(?!)")

    def __bool__(self) -> bool:
        return bool(self._plain)

    def whole(self, text: str, *, is_json: bool = False) -> str:
        """Return a whole text with its originals; in JSON, they are written as JSON writes them."""
        if "[" not in text:
            return text
        originals = self._quoted if is_json else self._plain
        return self._pattern.sub(lambda match: originals[match[0]], text)

    def undecided_from(self, text: str) -> int:
        """Return where the text's end begins that may be the beginning of a placeholder; its length if none does."""
        begun = text.rfind("[")
        if begun < 0:
            return len(text)
        end = text[begun:]
        may_be = any(known.startswith(end) and known != end for known in self._plain)
        return begun if may_be else len(text)


class HeldText:
    """One text that comes in pieces. Mutable: `held`, its end that may be the beginning of a placeholder.

    Args:
        restorer: puts the originals back.
        is_json: whether the text is JSON, or a part of it.
    """

    __slots__ = ("_is_json", "_restorer", "held")

    def __init__(self, restorer: Restorer, *, is_json: bool = False) -> None:
        self._restorer = restorer
        self._is_json = is_json
        self.held = ""

    def feed(self, piece: str) -> str:
        """Return what of the text so far is decided and was not returned before, with its originals."""
        if not self.held and "[" not in piece:
            return piece
        text = self.held + piece
        end = self._restorer.undecided_from(text)
        self.held = text[end:]
        return self._restorer.whole(text[:end], is_json=self._is_json)

    def end(self) -> str:
        """Return the rest, at the end of the text: no placeholder became of it."""
        rest, self.held = self.held, ""
        return rest


def restored_tree(value: object, restore: Callable[[str, str], str], name: str = "") -> object:
    """Return JSON with `restore(text, name of its field)` in place of each text."""
    if isinstance(value, str):
        return restore(value, name)
    if isinstance(value, dict):
        return {key: restored_tree(item, restore, key) for key, item in value.items()}
    if isinstance(value, list):
        return [restored_tree(item, restore, name) for item in value]
    return value
