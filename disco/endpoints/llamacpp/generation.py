"""One answer, or the rest of one, as the worker's thread writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from disco.endpoints.llamacpp.healing import Healer
from disco.endpoints.llamacpp.native import NativeModel
from disco.endpoints.llamacpp.params import Sampling
from disco.endpoints.llamacpp.prompt import Prompt, Render, build_prompt
from disco.endpoints.llamacpp.sampler import Sampler, logprob_entry, most_probable
from disco.endpoints.llamacpp.text import TextAssembler
from disco.endpoints.llamacpp.worker import Job
from disco.errors import EndpointFailure, FailureKind, IncompleteAnswerError
from disco.request import Prefix
from disco.session.events import Delta, Ended, Usage

__all__ = ["Generation"]


class Generation(Job):
    """Prefill, then write until the answer ends.

    Counters are written by the worker and read by the event loop: `prompt_tokens`, `cached_tokens`,
    `completion_tokens`. `park` is set by the event loop and read by the worker.

    Args:
        messages: roles and plain strings.
        prefix: the answer so far.
        sampling: the request's parameters.
        render: the model's chat template; called in the worker, once the model is loaded.
        name: the endpoint's, for messages.
    """

    def __init__(
        self,
        messages: Sequence[Mapping[str, Any]],
        prefix: Prefix,
        sampling: Sampling,
        *,
        render: Render,
        name: str,
    ) -> None:
        super().__init__()
        self._messages = messages
        self._prefix = prefix
        self._sampling = sampling
        self._render = render
        self._name = name
        self.park = False
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0

    @property
    def usage(self) -> Usage:
        """What has been computed so far."""
        return Usage(self.prompt_tokens, self.completion_tokens, self.cached_tokens)

    def run(self, model: NativeModel) -> None:
        prompt = build_prompt(model, self._render, self._messages, self._prefix, name=self._name)
        self._prefill(model, prompt.ids)
        if self.park:
            self._end("parked")
            return
        with Sampler(model, self._sampling, prompt.answer) as sampler:
            self._end(self._write(model, sampler, prompt))

    def _end(self, reason: str) -> None:
        self.mail.put(Ended(reason, self.usage))

    def _prefill(self, model: NativeModel, ids: list[int]) -> None:
        done = model.reuse(ids)
        self.cached_tokens = self.prompt_tokens = done
        # Where the cache ends inside a batch, the first one is shorter: later batches then begin where
        # they always do, and give the same numbers as without a cache.
        while done < len(ids):
            self.check()
            end = min(len(ids), (done // model.batch_tokens + 1) * model.batch_tokens)
            model.decode(ids[done:end])
            self.prompt_tokens = done = end

    def _write(self, model: NativeModel, sampler: Sampler, prompt: Prompt) -> str:
        """Write until the answer ends; return the finish reason."""
        text = TextAssembler(self._sampling.stop, before=self._prefix.text)
        room = model.context_tokens - len(prompt.ids)
        allowed = room
        if self._sampling.max_tokens is not None:
            allowed = self._sampling.max_tokens - self._prefix.tokens
        healer = Healer(model.index, self._prefix.withheld.encode())
        reason = "length"
        while room > 0:
            if healer.done:
                token = sampler.sample()
                if model.ends_answer(token):
                    reason = "stop"
                    break
                piece, exact = model.piece(token), True
            else:
                token = self._heal(model, sampler, healer)
                piece, exact = healer.accept(model.piece(token)), False
            room -= 1
            if piece or exact:
                self.completion_tokens += 1
                self._send(text.push(token, piece, exact=exact, logprob=self._logprob(model, token)))
            else:
                self.prompt_tokens += 1  # it only wrote again what the prefix says
            if text.stopped:
                return "stop"
            if self.completion_tokens >= allowed:
                break
            self.check()
            if self.park:
                return "parked"
            model.decode((token,))
        self._send(text.flush())
        return reason

    def _heal(self, model: NativeModel, sampler: Sampler, healer: Healer) -> int:
        choices = healer.allowed()
        if not choices:
            message = f"The vocabulary of endpoint {self._name!r} cannot spell the last word."
            raise EndpointFailure(FailureKind.SEAM, IncompleteAnswerError(message))
        token = most_probable(model.logits(), choices)
        if self._sampling.json_schema is None:
            sampler.accept(token)
        return token

    def _logprob(self, model: NativeModel, token: int) -> dict[str, Any] | None:
        if self._sampling.top_logprobs is None:
            return None
        return logprob_entry(model, model.logits(), token, self._sampling.top_logprobs)

    def _send(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            self.mail.put(delta)
