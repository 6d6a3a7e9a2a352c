"""Whether a few tokens are read sooner together or one by one: measured, because it depends on the machine."""

from __future__ import annotations

from typing import Final

__all__ = ["ShortReads"]

_NEW_WEIGHT: Final = 0.2
_MOST: Final = 8  # more tokens are always read together


class ShortReads:
    """How long batches of one to eight tokens take. Mutable: the table.

    After a window of which all was right, a drafter has two tokens to read. Where llama.cpp computes single tokens with
    one kernel and small batches with another, the batch is slower: SmolLM2-135M as Q8_0 takes 29 ms for two tokens
    together and 19 ms for one after the other. On a GPU, or with F32, it is the other way round.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def took(self, tokens: int, seconds: float) -> None:
        """Store how long a batch took. A time far above the known one counts little: the machine was busy."""
        if tokens > _MOST:
            return
        known = self._seconds.get(tokens, seconds)
        self._seconds[tokens] = known + _NEW_WEIGHT * (min(seconds, 2 * known) - known)

    def together(self, tokens: int) -> bool:
        """Return whether so many tokens are read sooner in one batch; True where that is not known."""
        alone_s, batch_s = self._seconds.get(1), self._seconds.get(tokens)
        return alone_s is None or batch_s is None or batch_s <= tokens * alone_s
