"""What every job with a prompt shares: its prefill, its counters, and how it ends."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from disco.endpoints.llamacpp.batching.answer_model import AnswerModel
from disco.endpoints.llamacpp.model.sampler import Keyed, LogProbabilities
from disco.endpoints.llamacpp.prompting.prompt_tokens import Renderer
from disco.endpoints.llamacpp.refusals import lone_surrogate
from disco.endpoints.llamacpp.runtime.job import Outbox
from disco.endpoints.llamacpp.runtime.steps import Stepwise, when_ready
from disco.events import Ended, Progress, Started, Usage

__all__ = ["PromptJob"]


class PromptJob(Stepwise):
    """A job that reads a conversation and answers it.

    Counters are written by the model's thread and read by the event loop: `prompt_tokens`, `cached_tokens`,
    `completion_tokens`, `progress`. `park` is set by the event loop and read by it.

    Args:
        mail: see `Job`.
        messages: as `plain_messages` makes them.
        renderer: gives the model's chat template; called in its thread, once the model is loaded.
        name: the endpoint's, for messages.
        keyed: see `Job`.
    """

    def __init__(
        self,
        mail: Outbox,
        messages: Sequence[Mapping[str, Any]],
        *,
        renderer: Callable[[], Renderer],
        name: str,
        keyed: Keyed | None = None,
    ) -> None:
        super().__init__(mail, keyed)
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

    def run(self, model: AnswerModel) -> bool:
        try:
            return super().run(model)
        except UnicodeEncodeError:  # its message quotes the text
            raise lone_surrogate(self._name, None) from None

    def steps(self, model: AnswerModel) -> Generator[None]:
        return self.answer(model)

    @abstractmethod
    def answer(self, model: AnswerModel) -> Generator[None]:
        """Read the prompt and answer it; in the thread that holds the model. Yields where it gives the model up."""

    def _give_way(self) -> Generator[None]:
        """Give the model up until the job is resumed or parked."""
        while self.paused:
            yield
            self.check()

    def read_again(self, tokens: int) -> None:
        self.prompt_tokens += tokens

    def _end(self, reason: str) -> None:
        self.mail.put(Ended(reason, self.usage))

    def _prefill(
        self, model: AnswerModel, ids: list[int], scored_from: int | None = None, *, fills_up: bool = False
    ) -> Generator[None, None, list[float]]:
        """Read `ids`; return the log probability of each of them from place `scored_from` on, and not of the first.

        Batches end where full ones end that are counted from the prompt's beginning: whatever is in the cache, the
        numbers are the same to the last bit. With `fills_up`, and once the job is to be parked, they need not be: the
        short batch then comes first, where it costs least, and some tokens are read again to fill it up where that is
        faster.
        """
        first = len(ids) if scored_from is None else max(scored_from, 1)
        model.prepare(ids)
        yield from when_ready(model)
        done = model.reuse(ids[:first])  # from here on, the logits before each token are computed
        logp, scores = [], LogProbabilities(model) if first < len(ids) else None
        if scores is not None and done == first:
            logp.append(scores.of(ids[first]))
        self.cached_tokens = self.prompt_tokens = done
        self.mail.put(Started(done))
        self.progressed(Progress(done, len(ids), 0.0))
        began_at = time.perf_counter()
        size = model.batch_tokens
        while done < len(ids):
            self.check()
            end = min(len(ids), (done // size + 1) * size)
            if fills_up or self.park:
                short = (len(ids) - done) % size
                end = done + (short or size)
                if short and end >= size and model.batch_costs.fills_up(short, done):
                    done = model.keep(end - size)
                    end = min(end, done + size)  # some models can keep nothing
            # Only the logits that are needed: of a small model they cost a sixth of the layers.
            wanted = max(first - 1 + len(logp) - done, 0)
            model.decode(ids[done:end], logits_from=wanted if wanted < end - done - 1 else None)
            yield from when_ready(model)
            model.batch_costs.took(end - done, done, model.took_s)
            if scores is not None:
                behind = range(done + wanted, min(end, len(ids) - 1))
                logp += [scores.of(ids[place + 1], place - done) for place in behind]
            self.prompt_tokens = done = end
            computed, took_s = done - self.cached_tokens, time.perf_counter() - began_at
            self.progressed(Progress(done, len(ids), computed / max(took_s, 1e-9)))
        return logp
