"""From messages and the answer so far to token ids that end exactly where the model is to go on."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from disco.endpoints.llamacpp.native import NativeModel
from disco.endpoints.llamacpp.params import refuse
from disco.errors import ConfigurationError, ContextLengthError, EndpointFailure, FailureKind
from disco.request import Prefix

__all__ = ["Prompt", "Render", "Renderer", "build_prompt"]

Render = Callable[[Sequence[Mapping[str, Any]]], str]


class Renderer:
    """A model's chat template, ready to use.

    Raises:
        ConfigurationError: the model has none and none was given, or it is not a Jinja template.
    """

    def __init__(self, model: NativeModel, override: str | None) -> None:
        template = override if override is not None else model.template
        if template is None:
            raise ConfigurationError(
                f"{model.path} has no chat template. Name an instruct model, or pass chat_template=..."
            )
        formats = importlib.import_module("llama_cpp.llama_chat_format")
        try:
            self._format = formats.Jinja2ChatFormatter(
                template=template, eos_token=model.eos_text, bos_token=model.bos_text
            )
        except Exception as exc:
            raise ConfigurationError(
                f"The chat template of {model.path} cannot be read ({type(exc).__name__}); "
                "pass another one as chat_template=..."
            ) from exc

    def __call__(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The conversation up to where the answer begins.

        Raises:
            EndpointFailure: BAD_REQUEST where the template refuses the messages. Its own words may quote
                them, so they are only in the cause.
        """
        try:
            return str(self._format(messages=list(messages)).prompt)
        except Exception as exc:
            raise refuse(
                "The model's chat template refuses these messages: their roles or their order.", "messages"
            ) from exc


@dataclass(frozen=True, slots=True)
class Prompt:
    """Attributes: ids of the conversation and of the answer so far, without its withheld end."""

    head: list[int]
    answer: list[int]

    @property
    def ids(self) -> list[int]:
        """All of it, in order."""
        return [*self.head, *self.answer]


def build_prompt(
    model: NativeModel, render: Render, messages: Sequence[Mapping[str, Any]], prefix: Prefix, *, name: str
) -> Prompt:
    """Tokenize the conversation and the answer so far.

    Control tokens are recognised in the template's text only: `<|im_end|>` that an answer quotes is text.

    Raises:
        EndpointFailure: CONTEXT_LENGTH where no room is left for a single token.
    """
    head = model.tokenize(render(messages), special=True)
    if model.wants_bos and head[:1] != [model.bos_token]:
        head.insert(0, model.bos_token)
    prompt = Prompt(head, _answer_ids(model, prefix))
    used = len(head) + len(prompt.answer)
    if used >= model.context_tokens:
        raise EndpointFailure(
            FailureKind.CONTEXT_LENGTH,
            ContextLengthError(
                f"The prompt and the answer so far are {used:,} tokens; endpoint {name!r} has a context of "
                f"{model.context_tokens:,}. Shorten the messages or raise context_tokens."
            ),
        )
    return prompt


def _answer_ids(model: NativeModel, prefix: Prefix) -> list[int]:
    text = prefix.sent
    if not text:
        return []
    shared = prefix.ids is not None and prefix.vocabulary is not None and not prefix.withheld
    if shared and prefix.vocabulary == model.vocabulary:
        ids = list(prefix.ids or ())
        if model.spell(ids) == text.encode():
            return ids
    ids = model.tokenize(text, special=False)
    if model.spell(ids) == b" " + text.encode() and text.startswith(" "):
        # SentencePiece models put a space before the first word; this text brought its own.
        ids = model.tokenize(text[1:], special=False)
    return ids
