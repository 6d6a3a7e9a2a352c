"""What every job with a prompt shares: its prefill, its counters, and how it ends."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from disco.endpoints.llamacpp.model.native import NativeModel
from disco.endpoints.llamacpp.prompting.prompt_tokens import Renderer
from disco.endpoints.llamacpp.refusals import malformed
from disco.endpoints.llamacpp.runtime.job import Job, Outbox
from disco.events import Ended, Progress, Started, Usage

__all__ = ["PromptJob"]


class PromptJob(Job):
    """A job that reads a conversation and answers it.

    Counters are written by the worker and read by the event loop: `prompt_tokens`, `cached_tokens`,
    `completion_tokens`, `progress`. `park` is set by the event loop and read by the worker.

    Args:
        mail: see `Job`.
        messages: as `plain_messages` makes them.
        renderer: gives the model's chat template; called in the worker, once the model is loaded.
        name: the endpoint's, for messages.
    """

    def __init__(
        self,
        mail: Outbox,
        messages: Sequence[Mapping[str, Any]],
        *,
        renderer: Callable[[], Renderer],
        name: str,
    ) -> None:
        super().__init__(mail)
        self._messages = messages
        self._renderer = renderer
        self._name = name
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0

    @property
    def usage(self) -> Usage:  # type: ignore[override] # computed from the counters
        """The tokens computed so far."""
        return Usage(self.prompt_tokens, self.completion_tokens, self.cached_tokens)

    def used(self, usage: Usage) -> None:
        self.prompt_tokens, self.cached_tokens = usage.prompt_tokens, usage.cached_tokens
        self.completion_tokens = usage.completion_tokens

    def run(self, model: NativeModel) -> None:
        try:
            self.answer(model)
        except UnicodeEncodeError:  # its message quotes the text
            raise malformed(
                f"Endpoint {self._name!r}: the request holds a lone surrogate (half of a character). Remove it."
            ) from None

    @abstractmethod
    def answer(self, model: NativeModel) -> None:
        """Read the prompt and answer it; in the thread that holds the model."""

    def _end(self, reason: str) -> None:
        self.mail.put(Ended(reason, self.usage))

    def _prefill(self, model: NativeModel, ids: list[int]) -> None:
        done = model.reuse(ids)
        self.cached_tokens = self.prompt_tokens = done
        self.mail.put(Started(done))
        self.progressed(Progress(done, len(ids), 0.0))
        began_at = time.perf_counter()
        # Where the cache ends inside a batch, the first batch is shorter. Later batches then begin where they
        # always do, and give the same numbers as without a cache.
        while done < len(ids):
            self.check()
            end = min(len(ids), (done // model.batch_tokens + 1) * model.batch_tokens)
            model.decode(ids[done:end])
            self.prompt_tokens = done = end
            computed, took_s = done - self.cached_tokens, time.perf_counter() - began_at
            self.progressed(Progress(done, len(ids), computed / max(took_s, 1e-9)))
