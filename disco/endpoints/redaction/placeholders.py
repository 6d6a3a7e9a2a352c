"""Which originals have which placeholders in one request: pure, without I/O.

A placeholder is `[KIND_n]`, such as `[EMAIL_1]`. It holds one "[", at its beginning, and one "]", at its end, and it
occurs in no text of the request. So the placeholders in a redacted text are those that were put there, and the text
with the originals put back is the text as it was. Nor does JSON, HTML or a URL need another spelling for it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from disco.errors import RedactionError

__all__ = ["Placeholders", "in_json", "reading_of"]

_KIND = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")
_ESCAPE = re.compile(r"\\u[0-9a-f]{4}")
_NEVER = re.compile(r"(?!)")


class Placeholders:
    """The originals of one request and their placeholders.

    Mutable: `originals`, by placeholder, which only grows; _of, the same by original; _pattern, of all spellings of the
    originals; _spelt, the placeholder of each spelling; _counts, by kind.
    """

    __slots__ = ("_counts", "_of", "_pattern", "_spelt", "originals")

    def __init__(self) -> None:
        self.originals: dict[str, str] = {}
        self._of: dict[str, str] = {}
        self._spelt: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._pattern = _NEVER

    def add(self, found: object, reading: str, taken: Collection[str]) -> None:
        """Give a placeholder to each original that has none, in the order of their first places in the text.

        Args:
            found: what the hook returned.
            reading: the text that the hook was given.
            taken: texts in which no new placeholder may occur.

        Raises:
            RedactionError: what the hook returned is no mapping from parts of the text to kinds.
        """
        pairs = _checked(found, reading)
        for original in sorted(pairs, key=lambda part: (reading.index(part), -len(part))):
            if original in self._of:
                continue
            kind = pairs[original]
            while True:
                self._counts[kind] += 1
                placeholder = f"[{kind}_{self._counts[kind]}]"
                if not any(placeholder in text for text in taken):
                    break
            self.originals[placeholder] = original
            self._of[original] = placeholder
            self._spelt |= dict.fromkeys(_spellings(original), placeholder)
        # At one place, the longest original counts.
        longest_first = sorted(self._spelt, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else _NEVER

    def redacted(self, text: str) -> str:
        """Return the text with every original in it, however JSON spells it, replaced by its placeholder."""
        return self._pattern.sub(lambda match: self._spelt[match[0]], text)

    def cut(self, text: str) -> int:
        """Return the length of the text without an original that has begun at its end and may go on.

        That is also so for an original with which a longer one begins. White space before it is left out, too. Where
        nothing has begun, the length is that of the text.
        """
        complete = [found.span() for found in self._pattern.finditer(text)]
        cut = len(text)
        for spelling in self._spelt:
            for length in range(min(len(spelling) - 1, len(text)), 0, -1):
                start = len(text) - length
                if start >= cut or not text.endswith(spelling[:length]):
                    continue
                inside_word = start > 0 and text[start - 1].isalnum() and spelling[0].isalnum()
                if not inside_word and not any(a < start < b for a, b in complete):
                    cut = start
        before = max((b for _, b in complete if b <= cut), default=0)
        return cut if cut == len(text) else max(before, len(text[:cut].rstrip()))


def in_json(original: str) -> str:
    """Return an original as it stands inside a JSON string."""
    return json.dumps(original, ensure_ascii=False)[1:-1]


def reading_of(text: str) -> str:
    """Return what the hook reads of a text: of JSON, the names and values, as they are without JSON's escapes."""
    if text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        return "\n".join(_leaves(json.loads(text)))
    except (ValueError, RecursionError):
        return text


def _leaves(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, str):
        yield value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield str(value)


def _spellings(original: str) -> set[str]:
    """Return the original, and what JSON makes of it: programs put JSON into messages, mostly with ASCII only."""
    ascii_only = json.dumps(original)[1:-1]
    shouted = _ESCAPE.sub(lambda match: "\\u" + match[0][2:].upper(), ascii_only)
    return {original, in_json(original), ascii_only, shouted}


def _checked(found: object, reading: str) -> Mapping[str, str]:
    if not isinstance(found, Mapping):
        raise RedactionError(
            f"The redact hook returned a {type(found).__name__}, so nothing was sent. Return a dict from parts of the "
            'text to their kinds, such as {"ann@example.org": "EMAIL"}; {} where there is nothing to redact.'
        )
    for original, kind in found.items():
        if not (isinstance(original, str) and original.strip()):
            raise RedactionError(
                "The redact hook named an original that is empty or no text, so nothing was sent. Name parts of the "
                "text."
            )
        if not (isinstance(kind, str) and _KIND.fullmatch(kind)):
            raise RedactionError(
                "The redact hook gave a kind that is no name, so nothing was sent. A kind is a letter and at most 31 "
                'more letters, digits or "_", such as "EMAIL".'
            )
        if original not in reading:
            raise RedactionError(
                "The redact hook named an original that is not in the text it was given, so nothing was sent. Name "
                "parts of the text exactly as they stand there."
            )
    return found
