"""How much of a prompt a server still has in its cache, where the server itself does not report it.

Servers on one machine keep the keys and values of the last texts they read, and read only what is new. Few report how
much that was. Without an estimate, the second question of a conversation would look like a very fast prefill.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["PromptCache"]

_BLOCK_CHARS = 64


class PromptCache:
    """Remembers the last prompts, as numbers: for each block of text one that stands for all text up to its end.

    Args:
        prompts: the number of prompts that the server may hold.

    Mutable: `_held`.
    """

    def __init__(self, prompts: int) -> None:
        self._held: deque[list[int]] = deque(maxlen=prompts)

    def share(self, messages: Sequence[Mapping[str, Any]]) -> float:
        """Return the share of a prompt, 0 to 1, that an earlier prompt began with; remember the prompt."""
        asked = _blocks(messages)
        most = max((_common(asked, held) for held in self._held), default=0)
        self._held.append(asked)
        return most / len(asked) if asked else 0.0


def _blocks(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    text = json.dumps([dict(message) for message in messages], default=str, ensure_ascii=False)
    numbers, number = [], 0
    for start in range(0, len(text), _BLOCK_CHARS):
        number = hash((number, text[start : start + _BLOCK_CHARS]))
        numbers.append(number)
    return numbers


def _common(one: list[int], other: list[int]) -> int:
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return index
    return min(len(one), len(other))
