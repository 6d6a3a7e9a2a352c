"""The job that writes one answer, or the rest of one, in the worker's thread."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from disco.endpoints.contract import Progress
from disco.endpoints.llamacpp.constraints import grammar_text, json_rule
from disco.endpoints.llamacpp.model.native import NativeModel
from disco.endpoints.llamacpp.model.sampler import LogProbabilities, Sampler, logprob_entry, most_probable
from disco.endpoints.llamacpp.output.text_assembly import TextAssembler
from disco.endpoints.llamacpp.prompting.prompt_tokens import Prompt, Renderer, build_prompt
from disco.endpoints.llamacpp.prompting.token_healing import Healer
from disco.endpoints.llamacpp.refusals import malformed
from disco.endpoints.llamacpp.request_params import Sampling
from disco.endpoints.llamacpp.runtime.job import Job, Outbox
from disco.endpoints.llamacpp.tool_calls.call_stream import CallWriter
from disco.errors import EndpointFailure, FailureKind, IncompleteAnswerError
from disco.events import Delta, Ended, Started, Usage
from disco.request import Prefix

__all__ = ["Generation"]


class Generation(Job):
    """Prefill, then write until the answer ends.

    Counters are written by the worker and read by the event loop: `prompt_tokens`, `cached_tokens`,
    `completion_tokens`, `progress`. `park` is set by the event loop and read by the worker.

    Args:
        mail: see `Job`.
        messages: as `plain_messages` makes them.
        prefix: the answer so far.
        sampling: the request's parameters.
        renderer: gives the model's chat template; called in the worker, once the model is loaded.
        name: the endpoint's, for messages.
        wants: what the attempt asks for besides the text: "logp" or nothing.
    """

    def __init__(
        self,
        mail: Outbox,
        messages: Sequence[Mapping[str, Any]],
        prefix: Prefix,
        sampling: Sampling,
        *,
        renderer: Callable[[], Renderer],
        name: str,
        wants: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(mail)
        self._messages = messages
        self._prefix = prefix
        self._sampling = sampling
        self._renderer = renderer
        self._name = name
        self._wants = wants
        self._logp: LogProbabilities | None = None
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

    def order(self) -> tuple[str, Mapping[str, Any]]:
        content = {"messages": self._messages, "prefix": self._prefix, "sampling": self._sampling}
        return "generate", {**content, "name": self._name, "wants": sorted(self._wants), "park": self.park}

    def run(self, model: NativeModel) -> None:
        try:
            self._run(model)
        except UnicodeEncodeError:  # its message quotes the text
            raise malformed(
                f"Endpoint {self._name!r}: the request holds a lone surrogate (half of a character). Remove it."
            ) from None

    def _run(self, model: NativeModel) -> None:
        tools = self._sampling.tools
        conversation = self._renderer()(self._messages, tools, check=self.check)
        calls = None
        if tools is not None:
            calls = CallWriter(model, conversation.form, tools, behind_text=bool(self._prefix))
        required = calls is not None and tools is not None and tools.required
        opening = conversation.form.open if required else ""
        prompt = build_prompt(model, conversation.text, self._prefix, opening=opening, name=self._name)
        self._prefill(model, prompt.ids)
        if self.park:
            self._end("parked")
            return
        if "logp" in self._wants:
            self._logp = LogProbabilities(model)
        with Sampler(model, self._sampling, prompt.answer) as sampler:
            if calls is not None and required:
                sampler.constrain(calls.grammar)
                room = model.context_tokens - len(prompt.ids)
                self._end(self._write_calls(model, sampler, calls, room))
                return
            schema = self._sampling.schema
            if schema is not None and calls is not None:
                sampler.constrain(calls.grammar_beside(schema))
            elif schema is not None:
                sampler.constrain(grammar_text("document", {"document": json_rule(schema)}))
            self._end(self._write(model, sampler, prompt, calls))

    def _end(self, reason: str) -> None:
        self.mail.put(Ended(reason, self.usage))

    def _prefill(self, model: NativeModel, ids: list[int]) -> None:
        done = model.reuse(ids)
        self.cached_tokens = self.prompt_tokens = done
        self._progressed(Progress(done, len(ids), 0.0))
        self.mail.put(Started(done))
        began_at = time.perf_counter()
        # Where the cache ends inside a batch, the first batch is shorter. Later batches then begin where they
        # always do, and give the same numbers as without a cache.
        while done < len(ids):
            self.check()
            end = min(len(ids), (done // model.batch_tokens + 1) * model.batch_tokens)
            model.decode(ids[done:end])
            self.prompt_tokens = done = end
            computed, took_s = done - self.cached_tokens, time.perf_counter() - began_at
            self._progressed(Progress(done, len(ids), computed / max(took_s, 1e-9)))

    def _progressed(self, progress: Progress) -> None:
        self.progress = progress
        if self.on_progress is not None:
            self.on_progress(progress)

    def _allowed(self) -> int:
        """Return how many tokens may be written; the context may hold fewer."""
        limit = self._sampling.max_tokens
        return sys.maxsize if limit is None else limit - self._prefix.tokens

    def _assembler(self, calls: CallWriter | None) -> TextAssembler:
        stop, before = self._sampling.stop, self._prefix.text
        if calls is None:
            return TextAssembler(stop, before=before)
        # Structured output may contain the opening as text; it begins calls only in place of the document.
        only_first = calls.only_first or self._sampling.schema is not None
        opening = calls.opening
        return TextAssembler((*stop, opening), before=before, only_first=opening if only_first else None)

    def _write(self, model: NativeModel, sampler: Sampler, prompt: Prompt, calls: CallWriter | None) -> str:
        """Write until the answer ends; return the finish reason."""
        text = self._assembler(calls)
        room = model.context_tokens - len(prompt.ids)
        allowed = self._allowed()
        healer = Healer(model.index, self._prefix.withheld.encode())
        reason = "length"
        while room > 0:
            if healer.done:
                token = sampler.sample()
                if model.ends_answer(token):
                    reason = "stop"
                    break
                piece, exact = model.piece(token), True
                if not piece and calls is not None:
                    piece = calls.piece(token)
            else:
                token = self._heal(model, sampler, healer)
                piece, exact = healer.accept(model.piece(token)), False
            room -= 1
            if piece or exact:
                self.completion_tokens += 1
                deltas = text.push(
                    token, piece, exact=exact, logprob=self._logprob(model, token), logp=self._log_p(token)
                )
                self._send(deltas if calls is None else calls.text(deltas))
            else:
                self.prompt_tokens += 1  # the token only repeats text of the prefix
            if text.stopped:
                if calls is None or text.stopped_by != calls.opening:
                    break
                if self.completion_tokens >= allowed:
                    return "length"
                self._open_calls(model, sampler, calls, token, piece, text.beyond)
                return self._write_calls(model, sampler, calls, room)
            if sampler.over:
                reason = "stop"
                break
            if self.completion_tokens >= allowed:
                break
            self.check()
            if self.park:
                return "parked"
            model.decode((token,))
        deltas = text.flush()
        self._send(deltas if calls is None else calls.text(deltas, last=True))
        return "stop" if text.stopped else reason

    def _open_calls(
        self, model: NativeModel, sampler: Sampler, calls: CallWriter, token: int, piece: bytes, beyond: bytes
    ) -> None:
        """Constrain the text after the opening of calls, which the model has written, to a call."""
        self.check()
        ids: Sequence[int] = (token,)
        if sampler.constrained:  # from the answer's beginning, so what follows is part of a call
            self._send(calls.push(beyond))
        else:
            sampler.constrain(calls.grammar)
            if beyond and piece.endswith(beyond) and piece != beyond:
                # The last token goes beyond the opening: replace it by one that ends there, then follow the grammar.
                # Without such a token it stays, because several tokens in its place might not fit the context.
                ids = model.index.spelling(piece[: -len(beyond)])[:1] or ids
        model.decode(ids)

    def _write_calls(self, model: NativeModel, sampler: Sampler, calls: CallWriter, room: int) -> str:
        """Write calls until they end; return the finish reason."""
        allowed = self._allowed()
        while room > 0 and self.completion_tokens < allowed:
            token = sampler.sample()
            if model.ends_answer(token):
                break
            room -= 1
            self.completion_tokens += 1
            self._send(calls.push(calls.piece(token), 1, self._log_p(token)))
            if calls.over:
                break
            self.check()
            if self.park:
                return "parked"
            if self.completion_tokens < allowed:
                model.decode((token,))
        return "tool_calls" if calls.whole else "length"

    def _heal(self, model: NativeModel, sampler: Sampler, healer: Healer) -> int:
        choices = healer.allowed()
        if not choices:
            message = f"The vocabulary of endpoint {self._name!r} cannot spell the last word."
            raise EndpointFailure(FailureKind.SEAM, IncompleteAnswerError(message))
        token = most_probable(model.logits(), choices)
        sampler.accept(token)
        return token

    def _logprob(self, model: NativeModel, token: int) -> dict[str, Any] | None:
        if self._sampling.top_logprobs is None:
            return None
        return logprob_entry(model, model.logits(), token, self._sampling.top_logprobs)

    def _log_p(self, token: int) -> float | None:
        return None if self._logp is None else self._logp.of(token)

    def _send(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            self.mail.put(delta)
