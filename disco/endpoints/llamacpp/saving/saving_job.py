"""The job that saves prompts while the model has nothing else to do."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from disco.endpoints.llamacpp.model.native import NativeModel
from disco.endpoints.llamacpp.runtime.job import Job, Outbox

__all__ = ["SavePrompts"]


class _NoMail:
    """An outbox that nobody reads."""

    abandoned = False

    def put(self, item: Any) -> None:
        """Drop an item."""

    def close(self) -> None:
        """Do nothing."""


class SavePrompts(Job):
    """Save what the model's cache holds and is worth it; see `PromptKeeper.save`. The flag ends it early.

    Args:
        within_s: after so many seconds it ends, too.
        mail: nothing is put there.
        still_works: called now and then.
    """

    def __init__(
        self,
        within_s: float = inf,
        mail: Outbox | None = None,
        still_works: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(_NoMail() if mail is None else mail)
        self._within_s = within_s
        self._still_works = still_works

    def order(self) -> tuple[str, Mapping[str, Any]]:
        return "save_prompts", {"within_s": None if self._within_s == inf else self._within_s}

    def run(self, model: NativeModel) -> bool:
        until = time.monotonic() + self._within_s

        def keeps_going() -> bool:
            if self._still_works is not None:
                self._still_works()
            return not self.flag.is_set() and time.monotonic() < until

        if model.keeper is not None:
            model.keeper.save(model, keeps_going)
        return True
