"""When prompts are saved: while the model has nothing else to do, and before it is freed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from disco.endpoints.llamacpp.saving.prompt_keeper import PromptKeeper
from disco.endpoints.llamacpp.saving.slot_cache import SlotCache

__all__ = ["IDLE_S", "LAST_S", "IdleSaving"]

IDLE_S: Final = 2.0
"""How long the model has had nothing to do before prompts are saved, s."""

LAST_S: Final = 5.0
"""How long saving may keep a model from being freed, s."""


class IdleSaving:
    """Has the keeper save once the model has had nothing to do for `IDLE_S`. For the model's thread. Mutable: `due_at`.

    Args:
        keeper: of the model.
        caches: returns what the model's slots hold.
        is_wanted: asked in between: whether somebody wants the model. Saving then goes on when it is idle again.

    Attributes:
        due_at: when there is something to do; infinite where not.
    """

    def __init__(
        self,
        keeper: PromptKeeper,
        caches: Callable[[], Sequence[SlotCache]],
        is_wanted: Callable[[], bool],
    ) -> None:
        self._keeper, self._caches, self._is_wanted = keeper, caches, is_wanted
        self.due_at = inf

    def worked(self, now: float) -> None:
        """Note that the model has computed."""
        self.due_at = now + IDLE_S

    def save(self, now: float) -> None:
        """Save what is worth it, until somebody wants the model."""
        self.due_at = inf

        def keeps_going() -> bool:
            if self._is_wanted():
                self.due_at = now + IDLE_S
                return False
            return True

        self._keeper.save(self._caches(), keeps_going)

    def last(self) -> None:
        """Save what is worth it before the model is freed, for `LAST_S` at most."""
        until = time.monotonic() + LAST_S
        self._keeper.save(self._caches(), lambda: time.monotonic() < until)
