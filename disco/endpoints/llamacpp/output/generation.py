"""The job that writes one answer, or the rest of one, in the model's thread."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from disco.endpoints.llamacpp.batching.answer_model import AnswerModel
from disco.endpoints.llamacpp.constraints import grammar_text, json_rule
from disco.endpoints.llamacpp.model.sampler import Keyed, LogProbabilities, Sampler, logprob_entry
from disco.endpoints.llamacpp.output.prompt_job import PromptJob
from disco.endpoints.llamacpp.output.text_assembly import TextAssembler
from disco.endpoints.llamacpp.prompting.prompt_tokens import Prompt, Renderer, build_prompt, first_behind
from disco.endpoints.llamacpp.prompting.token_healing import Healer
from disco.endpoints.llamacpp.request_params import Sampling
from disco.endpoints.llamacpp.runtime.job import Outbox
from disco.endpoints.llamacpp.runtime.steps import when_ready
from disco.endpoints.llamacpp.tool_calls.call_stream import CallWriter
from disco.errors import EndpointFailure, FailureKind, IncompleteAnswerError
from disco.events import Delta, Parked
from disco.request import Prefix

if TYPE_CHECKING:
    from disco.endpoints.llamacpp.saving.prompt_keeper import PromptKeeper

__all__ = ["Generation"]

_OTHER = "\u2060?"  # a question that begins as no other one does


class Generation(PromptJob):
    """Prefill, then write until the answer ends.

    Args:
        mail, messages, renderer, name: see `PromptJob`.
        prefix: the answer so far.
        sampling: the request's parameters.
        wants: what the attempt asks for besides the text: "logp" or nothing.
        known_bytes: a follower's: report the log probability of each token of the prefix that begins behind so many
            bytes of it, in a `Parked`. None: nothing is reported.
        may_be_saved: whether prompt and answer may be saved where prompts are saved; if not, only with private ones.
        keyed: the noise, and the tokens to follow; None: noise of the request's seed, or of any.
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
        known_bytes: int | None = None,
        may_be_saved: bool = False,
        keyed: Keyed | None = None,
    ) -> None:
        keyed = (
            Keyed(secrets.randbits(63) if sampling.seed is None else sampling.seed)
            if keyed is None
            else keyed
        )
        super().__init__(mail, messages, renderer=renderer, name=name, keyed=keyed)
        self._prefix = prefix
        self._sampling = sampling
        self._wants = wants
        self._known_bytes = known_bytes
        self._may_be_saved = may_be_saved
        self._logp: LogProbabilities | None = None

    def answer(self, model: AnswerModel) -> Generator[None]:
        tools = self._sampling.tools
        variables = self._sampling.template
        conversation = self._renderer()(self._messages, tools, variables=variables, check=self.check)
        calls = None
        if tools is not None:
            calls = CallWriter(model, conversation.form, tools, behind_text=bool(self._prefix))
        required = calls is not None and tools is not None and tools.required
        opening = conversation.form.open if required else ""
        prompt = build_prompt(
            model, conversation.text, self._prefix, opening=opening, name=self._name, check=self.check
        )
        scored_from = None
        if self._known_bytes is not None:
            text = self._prefix.sent
            scored_from = len(prompt.head) + first_behind(model, prompt.answer, text, self._known_bytes)
        # A follower's text, and one that continues another model's, need not stay the same to the last bit.
        logp = yield from self._prefill(
            model, prompt.ids, scored_from, fills_up=self.park or bool(self._prefix)
        )
        keeper = self._note(model, prompt.ids)
        if self.park:
            if scored_from is not None:
                self.mail.put(Parked(self.usage, tuple(logp)))
            self._end("parked")
            return
        if "logp" in self._wants:
            self._logp = LogProbabilities(model)
        with Sampler(model, self._sampling, prompt.answer, keyed=self.keyed) as sampler:
            if calls is not None and required:
                sampler.constrain(calls.grammar)
                room = model.context_tokens - len(prompt.ids)
                reason = yield from self._write_calls(model, sampler, calls, room)
                self._wrote(model, keeper, reason)
                return
            schema = self._sampling.schema
            if schema is not None and calls is not None:
                sampler.constrain(calls.grammar_beside(schema))
            elif schema is not None:
                sampler.constrain(grammar_text("document", {"document": json_rule(schema)}))
            reason = yield from self._write(model, sampler, prompt, calls)
            self._wrote(model, keeper, reason)

    def _note(self, model: AnswerModel, ids: list[int]) -> PromptKeeper | None:
        """Let the model's keeper know of a prompt that was read; return the keeper where the prompt may be saved."""
        keeper = model.keeper
        if keeper is None or not (self._may_be_saved or keeper.saves_private):
            return None
        assert self.progress is not None
        read_tokens = self.prompt_tokens - self.cached_tokens
        leading = partial(self._leading_tokens, model, ids)
        keeper.note(ids, leading, read_tokens=read_tokens, prefill_tps=self.progress.prefill_tps)
        return keeper

    def _leading_tokens(self, model: AnswerModel, ids: list[int]) -> int:
        """Return how many of the prompt's first tokens are the same for another question, after a system message."""
        roles = ("system", "developer")
        first = list(takewhile(lambda message: message["role"] in roles, self._messages))
        if not first and self._sampling.tools is None:
            return 0
        try:
            messages = [*first, {"role": "user", "content": _OTHER}]
            variables = self._sampling.template
            text = self._renderer()(messages, self._sampling.tools, variables=variables).text
        except EndpointFailure:
            return 0
        other = build_prompt(model, text, Prefix(), opening="", name=self._name).ids
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ids, other, strict=False)))

    def _wrote(self, model: AnswerModel, keeper: PromptKeeper | None, reason: str) -> None:
        if keeper is not None:
            keeper.wrote(model.cached)
        self._end(reason)

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

    def _write(
        self, model: AnswerModel, sampler: Sampler, prompt: Prompt, calls: CallWriter | None
    ) -> Generator[None, None, str]:
        """Write until the answer ends; return the finish reason."""
        text = self._assembler(calls)
        room = model.context_tokens - len(prompt.ids)
        allowed = self._allowed()
        healer = Healer(model.index, self._prefix.withheld.encode())
        reason = "length"
        while room > 0:
            if self.paused:
                yield from self._give_way()
                if self.park:
                    return "parked"
            if healer.done:
                token = sampler.sample(model.length)
                if model.ends_answer(token):
                    reason = "stop"
                    break
                piece, exact = model.piece(token), True
                if not piece and calls is not None:
                    piece = calls.piece(token)
            else:
                token = self._heal(sampler, healer)
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
                yield from when_ready(model)
                return (yield from self._write_calls(model, sampler, calls, room))
            if sampler.over:
                reason = "stop"
                break
            if self.completion_tokens >= allowed:
                break
            self.check()
            if self.park:
                return "parked"
            model.decode((token,))
            yield from when_ready(model)
        deltas = text.flush()
        self._send(deltas if calls is None else calls.text(deltas, last=True))
        return "stop" if text.stopped else reason

    def _open_calls(
        self, model: AnswerModel, sampler: Sampler, calls: CallWriter, token: int, piece: bytes, beyond: bytes
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

    def _write_calls(
        self, model: AnswerModel, sampler: Sampler, calls: CallWriter, room: int
    ) -> Generator[None, None, str]:
        """Write calls until they end; return the finish reason."""
        allowed = self._allowed()
        while room > 0 and self.completion_tokens < allowed:
            if self.paused:
                yield from self._give_way()
                if self.park:
                    return "parked"
            token = sampler.sample(model.length)
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
                yield from when_ready(model)
        return "tool_calls" if calls.whole else "length"

    def _heal(self, sampler: Sampler, healer: Healer) -> int:
        choices = healer.allowed()
        if not choices:
            message = f"The vocabulary of endpoint {self._name!r} cannot spell the last word."
            raise EndpointFailure(FailureKind.SEAM, IncompleteAnswerError(message))
        return sampler.most_probable(choices)

    def _logprob(self, model: AnswerModel, token: int) -> dict[str, Any] | None:
        if self._sampling.top_logprobs is None:
            return None
        return logprob_entry(model, model.logits(), token, self._sampling.top_logprobs)

    def _log_p(self, token: int) -> float | None:
        return None if self._logp is None else self._logp.of(token)

    def _send(self, deltas: Sequence[Delta]) -> None:
        for delta in deltas:
            self.mail.put(delta)
