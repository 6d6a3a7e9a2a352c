"""Rendering a conversation so that the prompt ends in the middle of the assistant's answer.

The rendered prompt is proved, not hoped: it must end with exactly the text that was sent. Limits:

- The answer so far stands in the prompt as text. A completions endpoint tokenises it with control tokens
  recognised, so an answer that contains one of the template's own markers (`<|im_end|>`, ...) is refused.
  The same markers in the conversation's earlier messages are treated as the server's chat endpoint treats
  them, which is mostly no better.
- No BOS is written unless `bos_token` is given: completions endpoints add it themselves.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

__all__ = ["CannotContinueError", "RenderedPrompt", "marker_in", "render_prefix"]


class CannotContinueError(Exception):
    """This answer cannot be continued by this method; the message says why, without quoting it."""


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt that ends with the answer so far.

    Attributes:
        text: the prompt.
        end_of_turn: what the template writes when the assistant's turn ends; empty when unknown.
    """

    text: str = field(repr=False)
    end_of_turn: str = ""


# Stands in for an answer to see what a template writes around one.
_SENTINEL = "disco-sentinel"
_MARKER = re.compile(r"<[|｜][^<>\s]{1,40}[|｜]>|</?[a-z_]{1,20}_of_[a-z_]{1,20}>|\[/?INST\]|</?s>")


def render_prefix(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    sent: str,
    *,
    bos_token: str = "",
    eos_token: str = "",
    extra: Mapping[str, Any] | None = None,
) -> RenderedPrompt:
    """Render `messages` and the beginning `sent` of the answer to them.

    Args:
        template: the model's chat template (Jinja source).
        messages: the conversation.
        sent: the answer so far; not empty.
        bos_token: what the template's variable of this name stands for.
        eos_token: likewise.
        extra: further template variables (`tools`, `chat_template_kwargs`).

    Raises:
        CannotContinueError: the template is not valid, refuses the conversation, trims or rewrites the
            answer, or the answer contains one of its markers.
    """
    found = marker_in(template, sent)
    if found is not None:
        raise CannotContinueError(
            f"the answer contains {found!r}, which the model would read as control token"
        )
    variables = {**(extra or {}), "bos_token": bos_token, "eos_token": eos_token}
    conversation = [dict(message) for message in messages]
    head = _render(template, conversation, variables, add_generation_prompt=True)
    closed = _render(
        template,
        [*conversation, {"role": "assistant", "content": _SENTINEL}],
        variables,
        add_generation_prompt=False,
    )
    if closed.startswith(head + _SENTINEL):
        # The turn opens the same way in both: nothing lies between the header and the answer.
        return RenderedPrompt(head + sent, closed[len(head) + len(_SENTINEL) :].strip())
    # The header of a new turn differs from that of a past one (thinking templates): take the past one.
    before, _, after = closed.partition(_SENTINEL)
    written = _render(
        template,
        [*conversation, {"role": "assistant", "content": sent}],
        variables,
        add_generation_prompt=False,
    )
    if written != before + sent + after:
        raise CannotContinueError("the chat template trims or rewrites the assistant's text")
    return RenderedPrompt(before + sent, after.strip())


def marker_in(template: str, text: str) -> str | None:
    """The first of the template's markers that occurs in `text`; None when there is none."""
    return next((marker for marker in _markers(template) if marker in text), None)


@lru_cache(maxsize=32)
def _markers(template: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_MARKER.findall(template)))


def _render(
    template: str,
    messages: list[dict[str, Any]],
    variables: Mapping[str, Any],
    *,
    add_generation_prompt: bool,
) -> str:
    import jinja2  # noqa: PLC0415 - only needed by those who render

    try:
        compiled = _compiled(template)
        return str(
            compiled.render(
                {**variables, "messages": messages, "add_generation_prompt": add_generation_prompt}
            )
        )
    except jinja2.TemplateSyntaxError as error:
        raise CannotContinueError(f"the chat template is not valid Jinja (line {error.lineno})") from error
    except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
        # The message may quote the conversation; its type does not.
        raise CannotContinueError(
            f"the chat template refused the conversation ({type(error).__name__})"
        ) from None


@lru_cache(maxsize=32)
def _compiled(template: str) -> Any:
    import jinja2  # noqa: PLC0415
    from jinja2.ext import loopcontrols  # noqa: PLC0415
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def now(pattern: str) -> str:
        return dt.datetime.now().astimezone().strftime(pattern)

    # The settings chat templates are written for (transformers, llama.cpp).
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.globals.update(raise_exception=refuse, strftime_now=now)
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "sort_keys": False}
    return environment.from_string(template)
