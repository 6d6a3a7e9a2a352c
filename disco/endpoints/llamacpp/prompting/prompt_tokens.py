"""Turns messages and the answer so far into token ids that end exactly where the model is to continue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from disco.endpoints.chat_template import ChatTemplate, TemplateLimitError
from disco.endpoints.llamacpp.model.native import Aborted, NativeModel
from disco.endpoints.llamacpp.prompting.template_messages import as_text, for_template, mention_tools
from disco.endpoints.llamacpp.refusals import malformed, unserved
from disco.endpoints.llamacpp.tool_calls.call_formats import GENERIC, CallFormat, form_of
from disco.endpoints.llamacpp.tool_calls.tool_request import Tools
from disco.errors import ConfigurationError, ContextLengthError, EndpointFailure, FailureKind
from disco.request import Prefix

if TYPE_CHECKING:
    from disco.endpoints.llamacpp.batching.batch_model import BatchModel

__all__ = ["Prompt", "Rendered", "Renderer", "answer_ids", "build_prompt", "first_behind"]

_PROBE = "disco_probe"  # a text that no real conversation contains


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation up to the beginning of the answer, and the form in which the model is to write calls."""

    text: str = field(repr=False)
    form: CallFormat


def _no_check() -> None:
    pass


class Renderer:
    """A model's chat template, ready to use.

    Args:
        model: has the template and the texts of its control tokens.
        override: a template in place of the model's own.
        check: called while the template is checked; an exception that it raises passes through.

    Raises:
        ConfigurationError: the model has no template and none was given, or the template is not valid Jinja.
    """

    def __init__(
        self, model: NativeModel | BatchModel, override: str | None, check: Callable[[], None] = _no_check
    ) -> None:
        template = override if override is not None else model.template
        if template is None:
            raise ConfigurationError(
                f"{model.path} has no chat template. Name an instruct model, or pass chat_template=..."
            )
        try:
            self._template = ChatTemplate(template, eos_text=model.eos_text, bos_text=model.bos_text)
        except Exception as exc:
            raise ConfigurationError(
                f"The chat template of {model.path} cannot be read ({type(exc).__name__}); "
                "pass another one as chat_template=..."
            ) from exc
        self.form = form_of(template)
        if self.form.native and not self._writes_tools(check):
            self.form = GENERIC

    def _writes_tools(self, check: Callable[[], None]) -> bool:
        """Return whether the template really writes tools: some only mention them."""
        function = {"name": _PROBE, "description": "", "parameters": {"type": "object", "properties": {}}}
        tools = [{"type": "function", "function": function}]
        try:
            return _PROBE in self._template.render([{"role": "user", "content": "?"}], tools, check=check)
        except Aborted:
            raise
        except Exception:  # noqa: BLE001 - any error means that the template does not work with tools
            return False

    def end_of_answer(self, model: NativeModel, check: Callable[[], None] = _no_check) -> int | None:
        """Return the token that the template writes behind a complete answer; None where it writes none."""
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _PROBE}]
        try:
            text = self._template.render(turns, opens_turn=False, check=check)
        except Aborted:
            raise
        except Exception:  # noqa: BLE001 - a template that cannot write a past answer shows no end of one
            return None
        behind = model.tokenize(text.rpartition(_PROBE)[2].lstrip(), special=True)[:1]
        return behind[0] if behind and model.ends_answer(behind[0]) else None

    def __call__(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Tools | None = None,
        *,
        check: Callable[[], None] = _no_check,
    ) -> Rendered:
        """Return the conversation up to the beginning of the answer.

        Args:
            messages: as `plain_messages` makes them.
            tools: the tools that the model may call.
            check: called throughout the rendering; raises `Aborted` to stop it.

        Raises:
            EndpointFailure: BAD_REQUEST where the template refuses the messages. The template's own message may quote
                them, so it is only in the cause. UNSERVED where the template takes too much time or memory.
        """
        try:
            return self._rendered(messages, tools, check)
        except Aborted:
            raise
        except TemplateLimitError as exc:
            raise unserved(
                f"The model's chat template was stopped: {exc}. Give another one as chat_template=..., or send "
                "fewer messages."
            ) from exc
        except Exception as exc:
            raise malformed(
                "The model's chat template refuses these messages: their roles or their order.", "messages"
            ) from exc

    def _rendered(
        self, messages: Sequence[Mapping[str, Any]], tools: Tools | None, check: Callable[[], None]
    ) -> Rendered:
        with_calls = mention_tools(messages)
        if self.form.native and (with_calls or tools is not None):
            offered = None if tools is None else tools.offered
            try:
                adapted = for_template(messages, self.form)
                return Rendered(self._template.render(adapted, offered, check=check), self.form)
            except (Aborted, TemplateLimitError):
                raise
            except Exception:  # noqa: BLE001, S110 - such as two calls at once in a template for one
                pass
        if with_calls or tools is not None:
            messages = as_text(messages, tools)
        return Rendered(self._template.render(messages, check=check), GENERIC)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Attributes: ids of the conversation and of the answer so far, without its withheld end."""

    head: list[int] = field(repr=False)
    answer: list[int] = field(repr=False)

    @property
    def ids(self) -> list[int]:
        """All ids, in order."""
        return [*self.head, *self.answer]


def build_prompt(model: NativeModel, conversation: str, prefix: Prefix, *, opening: str, name: str) -> Prompt:
    """Tokenize the conversation and the answer so far.

    Control tokens are recognised only in the template's text: `<|im_end|>` in an answer is ordinary text.

    Args:
        model: the tokenizer.
        conversation: as the model's template writes it.
        prefix: the answer so far.
        opening: the text that the answer must begin with, as the template would write it.
        name: the endpoint's, for messages.

    Raises:
        EndpointFailure: CONTEXT_LENGTH where no room is left for a single token.
    """
    head = model.tokenize(conversation, special=True)
    if model.wants_bos and head[:1] != [model.bos_token]:
        head.insert(0, model.bos_token)
    if opening:
        head += model.tokenize(opening, special=True)
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


def first_behind(model: NativeModel, answer: Sequence[int], text: str, known_bytes: int) -> int:
    """Return the place of the first token of `answer` that begins behind the first `known_bytes` of its text.

    Args:
        model: the tokenizer.
        answer: tokens that spell `text`, perhaps with a space before it.
        text: the answer so far.
        known_bytes: UTF-8 bytes at the beginning of `text`.
    """
    at = len(text.encode())
    for place in range(len(answer) if known_bytes else 0, 0, -1):
        at -= len(model.piece(answer[place - 1]))
        if at < known_bytes:
            return place
    return 0


def _answer_ids(model: NativeModel, prefix: Prefix) -> list[int]:
    text = prefix.sent
    if not text:
        return []
    shared = prefix.ids is not None and prefix.vocabulary is not None and not prefix.withheld
    if shared and prefix.vocabulary == model.vocabulary:
        ids = list(prefix.ids or ())
        if model.spell(ids) == text.encode():
            return ids
    return answer_ids(model, text)


def answer_ids(model: NativeModel, text: str) -> list[int]:
    """Return the tokens of a text that begins an answer; control tokens in it are ordinary text."""
    ids = model.tokenize(text, special=False)
    if model.spell(ids) == b" " + text.encode() and text.startswith(" "):
        # SentencePiece models put a space before the first word; this text already has one.
        ids = model.tokenize(text[1:], special=False)
    return ids
