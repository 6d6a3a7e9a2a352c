"""Renders a conversation so that the prompt ends in the middle of the assistant's answer.

The rendered prompt is checked: it must end with exactly the text that was sent. Limits:

- The answer so far is part of the prompt as text. A completions endpoint tokenises it with control tokens
  recognised, so an answer that contains one of the template's own markers (`<|im_end|>`, ...) is refused.
  The same markers in the conversation's earlier messages are treated as the server's chat endpoint treats
  them, which mostly recognises them too.
- Up to three renderings are needed. Together they may take as long as one.
- No BOS is written unless `bos_token` is given: completions endpoints add it themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from disco.endpoints.chat_template import Allowance, ChatTemplate, TemplateLimitError

__all__ = ["CannotContinueError", "RenderedPrompt", "marker_in", "render_prefix"]


class CannotContinueError(Exception):
    """This answer cannot be continued by this method; the message says why, without quoting it."""


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt that ends with the answer so far.

    Attributes:
        text: the prompt.
        end_of_turn: the text that the template writes when the assistant's turn ends; empty when unknown.
    """

    text: str = field(repr=False)
    end_of_turn: str = ""


# A placeholder answer, which shows what a template writes around an answer.
_SENTINEL = "disco-sentinel"
_MARKER = re.compile(r"<[|｜][^<>\s]{1,40}[|｜]>|</?[a-z_]{1,20}_of_[a-z_]{1,20}>|\[/?INST\]|</?s>")


def render_prefix(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    sent: str,
    *,
    bos_token: str = "",
    eos_token: str = "",
    tools: Sequence[Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    check: Callable[[], None] = lambda: None,
) -> RenderedPrompt:
    """Render `messages` and `sent`, the beginning of the answer to them; may take seconds of processor time.

    Args:
        template: the model's chat template (Jinja source).
        messages: the conversation.
        sent: the answer so far; not empty.
        bos_token: value of the template's variable of this name.
        eos_token: value of the template's variable of this name.
        tools: the request's.
        extra: further variables of the template (`chat_template_kwargs`).
        check: called throughout; raises to stop the rendering, which then counts as refused.

    Raises:
        CannotContinueError: the template is not valid, refuses the conversation, takes too much time or memory,
            trims or rewrites the answer, or the answer contains one of its markers.
    """
    found = marker_in(template, sent)
    if found is not None:
        raise CannotContinueError(
            f"the answer contains {found!r}, which the model would read as control token"
        )
    compiled = _compiled(template, bos_token, eos_token)
    render = partial(compiled.render, tools=tools, extra=extra, check=check, allowance=Allowance())

    def rendered(turns: Sequence[Mapping[str, Any]], *, opens_turn: bool) -> str:
        try:
            return render(turns, opens_turn=opens_turn)
        except TemplateLimitError as error:
            raise CannotContinueError(f"the chat template was stopped: {error}") from error
        except Exception as error:  # noqa: BLE001 - a template can raise anything
            # The message may quote the conversation; its type does not.
            raise CannotContinueError(
                f"the chat template refused the conversation ({type(error).__name__})"
            ) from None

    def written(answer: str) -> str:
        return rendered([*messages, {"role": "assistant", "content": answer}], opens_turn=False)

    head = rendered(messages, opens_turn=True)
    closed = written(_SENTINEL)
    if closed.startswith(head + _SENTINEL):
        # Both turns open the same way: nothing is written between the header and the answer.
        return RenderedPrompt(head + sent, closed[len(head) + len(_SENTINEL) :].strip())
    # Some templates (for thinking models) write another header for a new turn than for a past one: use the past one.
    before, _, after = closed.partition(_SENTINEL)
    if written(sent) != before + sent + after:
        raise CannotContinueError("the chat template trims or rewrites the assistant's text")
    return RenderedPrompt(before + sent, after.strip())


def marker_in(template: str, text: str) -> str | None:
    """Return the first of the template's markers that occurs in `text`; None when there is none."""
    return next((marker for marker in _markers(template) if marker in text), None)


@lru_cache(maxsize=32)
def _markers(template: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_MARKER.findall(template)))


@lru_cache(maxsize=32)
def _compiled(template: str, bos_token: str, eos_token: str) -> ChatTemplate:
    import jinja2  # noqa: PLC0415 - needed only where a prompt is rendered here

    try:
        return ChatTemplate(template, eos_text=eos_token, bos_text=bos_token)
    except jinja2.TemplateSyntaxError as error:
        raise CannotContinueError(f"the chat template is not valid Jinja (line {error.lineno})") from error
