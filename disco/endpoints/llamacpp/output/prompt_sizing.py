"""The job that counts a prompt's tokens, and those of them that are in the cache; it computes nothing."""

from __future__ import annotations

from collections.abc import Generator

from disco.candidate import PromptSize
from disco.endpoints.llamacpp.batching.answer_model import AnswerModel
from disco.endpoints.llamacpp.output.prompt_job import PromptJob
from disco.endpoints.llamacpp.prompting.prompt_tokens import build_prompt
from disco.request import Prefix

__all__ = ["PromptSizing"]


class PromptSizing(PromptJob):
    """Hands over one `PromptSize`. Args: see `PromptJob`."""

    def answer(self, model: AnswerModel) -> Generator[None]:
        conversation = self._renderer()(self._messages, check=self.check)
        ids = build_prompt(
            model, conversation.text, Prefix(), opening="", name=self._name, check=self.check
        ).ids
        reusable = model.reusable(ids) if model.keeper is None else model.keeper.reusable(model, ids)
        self.mail.put(PromptSize(len(ids), reusable))
        yield from ()  # it gives the model up nowhere
