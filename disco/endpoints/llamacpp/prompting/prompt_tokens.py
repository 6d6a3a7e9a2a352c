"""Turns messages and the answer so far into token ids that end exactly where the model is to continue."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from disco.endpoints.chat_template import Allowance, ChatTemplate, TemplateLimitError
from disco.endpoints.llamacpp.model.stop_flag import Aborted
from disco.endpoints.llamacpp.prompting.template_messages import as_text, for_template, mention_tools
from disco.endpoints.llamacpp.refusals import malformed, unserved
from disco.endpoints.llamacpp.tool_calls.call_formats import GENERIC, CallFormat, form_of
from disco.endpoints.llamacpp.tool_calls.tool_request import Tools
from disco.errors import ConfigurationError, ContextLengthError, EndpointFailure, FailureKind
from disco.request import Prefix

if TYPE_CHECKING:
    from disco.endpoints.llamacpp.batching.answer_model import AnswerModel
    from disco.endpoints.llamacpp.batching.batch_model import BatchModel

__all__ = ["Prompt", "Rendered", "Renderer", "answer_ids", "build_prompt", "first_behind"]

_PROBE = "disco_probe"  # a text that no real conversation contains

_MARKER: Final = re.compile(r"(?<=\S)<[|｜][^<>\s]{1,40}[|｜]>")
_LONGEST_MARKER: Final = 64  # bytes; of known vocabularies, no control token's text is longer
_PIECE: Final = (
    16_384  # characters that llama.cpp is given at once where they can be counted or cut: some 10 ms
)


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
        self, model: BatchModel, override: str | None, check: Callable[[], None] = _no_check
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

    def end_of_answer(self, model: AnswerModel, check: Callable[[], None] = _no_check) -> int | None:
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
        variables: Mapping[str, Any] | None = None,
        check: Callable[[], None] = _no_check,
    ) -> Rendered:
        """Return the conversation up to the beginning of the answer.

        Args:
            messages: as `plain_messages` makes them.
            tools: the tools that the model may call.
            variables: further ones for the template (`Sampling.template`).
            check: called throughout the rendering; raises `Aborted` to stop it.

        Raises:
            EndpointFailure: BAD_REQUEST where the template refuses the messages. The template's own message may quote
                them, so it is only in the cause. UNSERVED where the template takes too much time or memory.
        """
        try:
            return self._rendered(messages, tools, variables, check)
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
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Tools | None,
        variables: Mapping[str, Any] | None,
        check: Callable[[], None],
    ) -> Rendered:
        with_calls, allowance = mention_tools(messages), Allowance()
        if self.form.native and (with_calls or tools is not None):
            offered = None if tools is None else tools.offered
            try:
                adapted = for_template(messages, self.form)
                text = self._template.render(
                    adapted, offered, extra=variables, check=check, allowance=allowance
                )
                return Rendered(text, self.form)
            except (Aborted, TemplateLimitError):
                raise
            except Exception:  # noqa: BLE001, S110 - such as two calls at once in a template for one
                pass
        if with_calls or tools is not None:
            messages = as_text(messages, tools)
        text = self._template.render(messages, extra=variables, check=check, allowance=allowance)
        return Rendered(text, GENERIC)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Attributes: ids of the conversation and of the answer so far, without its withheld end."""

    head: list[int] = field(repr=False)
    answer: list[int] = field(repr=False)

    @property
    def ids(self) -> list[int]:
        """All ids, in order."""
        return [*self.head, *self.answer]


def build_prompt(
    model: AnswerModel,
    conversation: str,
    prefix: Prefix,
    *,
    opening: str,
    name: str,
    check: Callable[[], None] = _no_check,
) -> Prompt:
    """Tokenize the conversation and the answer so far.

    Control tokens are recognised only in the template's text: `<|im_end|>` in an answer is ordinary text.

    Args:
        model: the tokenizer.
        conversation: as the model's template writes it.
        prefix: the answer so far.
        opening: the text that the answer must begin with, as the template would write it.
        name: the endpoint's, for messages.
        check: called between pieces of a long text; an exception that it raises passes through.

    Raises:
        EndpointFailure: CONTEXT_LENGTH where no room is left for a single token.
    """
    head = _tokenized(model, conversation, special=True, name=name, check=check)
    if model.wants_bos and head[:1] != [model.bos_token]:
        head.insert(0, model.bos_token)
    if opening:
        head += model.tokenize(opening, special=True)
    prompt = Prompt(head, _answer_ids(model, prefix, name, check))
    used = len(head) + len(prompt.answer)
    if used >= model.context_tokens:
        raise _too_long(used, model, name)
    return prompt


def _too_long(tokens: int, model: AnswerModel, name: str, *, at_least: bool = False) -> EndpointFailure:
    more = (
        f"Shorten the messages, or raise the context of endpoint {name!r} (context_tokens) where its model was trained "
        "with more."
    )
    error = ContextLengthError.of(model.context_tokens, tokens, at_least=at_least, more=more)
    return EndpointFailure(FailureKind.CONTEXT_LENGTH, error)


def _tokenized(
    model: AnswerModel, text: str, *, special: bool, name: str, check: Callable[[], None]
) -> list[int]:
    """Return a text's tokens. What is far too long for the context is found to be so before it is tokenized whole.

    llama.cpp cannot be interrupted. It takes seconds for a megabyte, and time in the square of the control tokens'
    number: 9 s for 44,000 of them.

    Raises:
        EndpointFailure: CONTEXT_LENGTH: the text has more tokens than the context holds.
    """
    most = model.context_tokens
    if len(text) > most and len(text.encode()) > most * max(model.index.longest, _LONGEST_MARKER):
        raise _too_long(most + 1, model, name, at_least=True)
    ids: list[int] = []
    for piece in _cut_at_markers(model, text) if special else (text,):
        check()
        if len(piece) > 4 * _PIECE:
            # Counted in parts, which may cut words in two: a few tokens more than there are.
            room = most * 5 // 4 - len(ids)
            for at in range(0, len(piece), _PIECE):
                check()
                room -= len(model.tokenize(piece[at : at + _PIECE], special=special))
                if room < 0:
                    raise _too_long(most + 1, model, name, at_least=True)
        if len(ids) > most:
            raise _too_long(most + 1, model, name, at_least=True)
        ids += model.tokenize(piece, special=special)
    return ids


def _cut_at_markers(model: AnswerModel, text: str) -> Iterator[str]:
    """Yield pieces of a long text whose tokens are together those of the text.

    A piece begins with a control token, which llama.cpp takes out of a text before it looks at the rest. No blank
    stands before it: some control tokens take blanks beside them away.
    """
    begin = 0
    if len(text) > _PIECE:
        known: dict[str, bool] = {}
        for found in _MARKER.finditer(text, _PIECE):
            if found.start() - begin < _PIECE:
                continue
            marker = found.group()
            if marker not in known:
                ids = model.tokenize(marker, special=True)
                known[marker] = len(ids) == 1 and not model.piece(ids[0])
            if known[marker]:
                yield text[begin : found.start()]
                begin = found.start()
    yield text[begin:]


def first_behind(model: AnswerModel, answer: Sequence[int], text: str, known_bytes: int) -> int:
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


def _answer_ids(model: AnswerModel, prefix: Prefix, name: str, check: Callable[[], None]) -> list[int]:
    text = prefix.sent
    if not text:
        return []
    shared = prefix.ids is not None and prefix.vocabulary is not None and not prefix.withheld
    if shared and prefix.vocabulary == model.vocabulary:
        ids = list(prefix.ids or ())
        if model.spell(ids) == text.encode():
            return ids
    return answer_ids(model, text, name=name, check=check)


def answer_ids(
    model: AnswerModel, text: str, *, name: str, check: Callable[[], None] = _no_check
) -> list[int]:
    """Return the tokens of a text that begins an answer; control tokens in it are ordinary text.

    Args:
        model: the tokenizer.
        text: the text.
        name: the endpoint's, for messages.
        check: see `build_prompt`.

    Raises:
        EndpointFailure: CONTEXT_LENGTH: the text alone has more tokens than the context holds.
    """
    ids = _tokenized(model, text, special=False, name=name, check=check)
    if model.spell(ids) == b" " + text.encode() and text.startswith(" "):
        # SentencePiece models put a space before the first word; this text already has one.
        ids = model.tokenize(text[1:], special=False)
    return ids
