"""How a model that is cut in two reads and drafts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from disco.speculate.chunks import Chunks, Reply
from disco.speculate.windows.answer_windows import window_for
from disco.speculate.windows.contract import Window

__all__ = ["SplitOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitOptions:
    """What can be chosen of a split model, beside its files and its server.

    Attributes:
        chunks, reply: see `SplitModel`.
        window: name of the rule for the number of drafted tokens, or a fixed number of them; 0 drafts nothing.
        max_window: most drafted tokens of a round.
        eta: of the window "confidence": a draft ends at a token that is less sure. The paper's is 0.6.
        min_gain: the share of the time per token that drafting has to save.
        always: draft whatever is predicted.
        branches, steps: see `SplitDrafter`.
    """

    chunks: Chunks = "makespan"
    reply: Reply = "last"
    window: str | int = "optimal"
    max_window: int = 8
    eta: float = 0.6
    min_gain: float = 0.05
    always: bool = False
    branches: int = 2
    steps: int = 8

    def windows(self) -> Callable[[], Window]:
        """Return what makes each answer's window.

        Raises:
            ConfigurationError: there is no such rule, or a number is out of range.
        """
        return window_for(
            self.window or "optimal",  # where nothing is drafted, no window is asked
            most=self.max_window,
            parallel=1,
            min_gain=None if self.always else self.min_gain,
            eta=self.eta,
        )
