"""The job that scores texts: how probable each token of a given answer is under the model."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from disco.endpoints.llamacpp.batching.answer_model import AnswerModel
from disco.endpoints.llamacpp.output.label_scoring import token_log_probabilities
from disco.endpoints.llamacpp.output.prompt_job import PromptJob
from disco.endpoints.llamacpp.prompting.prompt_tokens import Renderer, answer_ids, build_prompt
from disco.endpoints.llamacpp.runtime.job import Outbox
from disco.errors import ContextLengthError, EndpointFailure, FailureKind
from disco.events import Delta
from disco.request import Prefix

__all__ = ["TextScoring"]


class TextScoring(PromptJob):
    """Prefill once, then read each text as the answer; nothing is written.

    The job hands over one delta without text for each text, in their order: its `logp` has the log probability of
    every token of the text, from the model's own logits.

    Args:
        mail, messages, renderer, name: see `PromptJob`.
        texts: the answers to score; an empty one has no token.
    """

    def __init__(
        self,
        mail: Outbox,
        messages: Sequence[Mapping[str, Any]],
        texts: Sequence[str],
        *,
        renderer: Callable[[], Renderer],
        name: str,
    ) -> None:
        super().__init__(mail, messages, renderer=renderer, name=name)
        self._texts = tuple(texts)

    def answer(self, model: AnswerModel) -> Generator[None]:
        conversation = self._renderer()(self._messages, check=self.check)
        prompt = build_prompt(
            model, conversation.text, Prefix(), opening="", name=self._name, check=self.check
        ).ids
        spelled = [answer_ids(model, text, name=self._name, check=self.check) for text in self._texts]
        self._check_room(model, len(prompt) + max(map(len, spelled), default=0))
        yield from self._prefill(model, prompt)
        texts = [ids for ids in spelled if ids]
        scored = yield from token_log_probabilities(model, prompt, texts, on_read=self._read)
        found = iter(scored)
        for ids in spelled:
            self.mail.put(Delta("", len(ids), logp=next(found) if ids else ()))
        self._end("stop")

    def _check_room(self, model: AnswerModel, needed: int) -> None:
        if needed > model.context_tokens:
            more = (
                "The longest text is counted with them. Shorten them, or raise the context (context_tokens)."
            )
            error = ContextLengthError.of(model.context_tokens, needed, more=more, param="texts")
            raise EndpointFailure(FailureKind.CONTEXT_LENGTH, error)

    def _read(self, tokens: int) -> None:
        self.prompt_tokens += tokens
        self.check()
