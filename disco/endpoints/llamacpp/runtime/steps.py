"""Jobs in steps: between two of them, a model that many answers share computes for others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator

from disco.endpoints.llamacpp.batching.answer_model import AnswerModel
from disco.endpoints.llamacpp.model.sampler import Keyed
from disco.endpoints.llamacpp.runtime.job import Job, Outbox

__all__ = ["Stepwise", "when_ready"]

_OVER = object()


def when_ready(model: AnswerModel) -> Generator[None]:
    """Give up control until the model has a place for the prompt, or the logits behind its newest token.

    The logits are there until the next time that control is given up.
    """
    while not model.ready:
        yield


class Stepwise(Job):
    """A job as a generator. Mutable: `_steps`, in the model's thread."""

    def __init__(self, mail: Outbox, keyed: Keyed | None = None) -> None:
        super().__init__(mail, keyed)
        self._steps: Generator[None] | None = None

    def run(self, model: AnswerModel) -> bool:
        if self._steps is None:
            self._steps = self.steps(model)
        return next(self._steps, _OVER) is _OVER

    def close(self) -> None:
        if self._steps is not None:
            self._steps.close()

    @abstractmethod
    def steps(self, model: AnswerModel) -> Generator[None]:
        """Do the job; in the model's thread. Yields where it gives the model up."""
