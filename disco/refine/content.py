"""Which text of a conversation may be left out: prose of user and tool messages, never a question.

A conversation is cut into turns, each beginning with an assistant's message. A turn is refined by its own question and
by what came before it. So nothing changes in a turn once it was answered: the prompt of the next request begins as the
last one did, and the KV cache serves it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from disco.dispatch.request_features import estimate_tokens
from disco.errors import ConfigurationError
from disco.refine.units import UNIT_TOKENS, Unit, split_units

__all__ = ["LEAST_TOKENS", "Passage", "Turn", "turns_of"]

LEAST_TOKENS: Final = 64
"""A turn with fewer tokens of prose than this, by estimate, stays whole: it saves nothing, or is an example."""

_ROLES = ("user", "tool", "function")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
_EXAMPLE_NAME = "example"  # OpenAI's names of few-shot messages: example_user, example_assistant


@dataclass(frozen=True, slots=True)
class Passage:
    """One text of a message, in units.

    Attributes:
        message: the message's index.
        part: the index of the part that holds the text; None where the message's content is a text.
        units: joined they are the text.
        optional: of each unit, whether it may be left out.
    """

    message: int
    part: int | None
    units: tuple[Unit, ...]
    optional: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """The messages from one answer to the next.

    Attributes:
        passages: its texts that may lose units; none where nothing may.
        question: what its user asks; in a turn without a user's message, what the last user asked.
        earlier: the questions and answers of the two turns before, and this turn's calls of tools.
    """

    passages: tuple[Passage, ...]
    question: str = field(repr=False)
    earlier: str = field(repr=False)

    def optional(self) -> list[Unit]:
        """Return the units that may be left out, in order."""
        return [
            unit
            for passage in self.passages
            for unit, optional in zip(passage.units, passage.optional, strict=True)
            if optional
        ]


@dataclass(frozen=True, slots=True)
class _Text:
    message: int
    part: int | None
    text: str


def turns_of(messages: Sequence[Mapping[str, Any]], named: Sequence[int] | None = None) -> list[Turn]:
    """Return the turns of a conversation.

    Args:
        messages: OpenAI message dicts; not changed.
        named: indices of the messages whose prose may be left out, whatever their role and length; negative ones count
            from the end. The question of a turn stays in any case. None: prose of user and tool messages.

    Raises:
        ConfigurationError: there is no message with a named index.
    """
    chosen = None if named is None else _checked(named, len(messages))
    turns: list[Turn] = []
    question, asked = "", list[str]()
    for start, end in _runs(messages):
        said = _joined(messages[start]) if messages[start].get("role") == "assistant" else ""
        asked.append(said)
        earlier = "\n".join([*asked[-4:], _calls(messages[start])])
        passages, own = _turn_passages(messages, range(start, end), chosen)
        question = own or question
        asked.append(own)
        turns.append(Turn(passages, question, earlier))
    return turns


def _checked(named: Sequence[int], count: int) -> frozenset[int]:
    wrong = [index for index in named if not -count <= index < count]
    if wrong:
        raise ConfigurationError(
            f"refine names message {wrong[0]}; the conversation has {count} messages, 0 to {count - 1}."
        )
    return frozenset(index % count for index in named)


def _runs(messages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, int]]:
    starts = [0, *(n for n, message in enumerate(messages) if n and message.get("role") == "assistant")]
    if messages:
        yield from zip(starts, [*starts[1:], len(messages)], strict=True)


def _turn_passages(
    messages: Sequence[Mapping[str, Any]], turn: range, chosen: frozenset[int] | None
) -> tuple[tuple[Passage, ...], str]:
    """Return the passages of a turn and its question; no question where no user speaks."""
    last_user = next((n for n in reversed(turn) if messages[n].get("role") == "user"), None)
    texts = [text for n in turn for text in _texts(messages[n], n) if _may_refine(messages[n], n, chosen)]
    asking = [] if last_user is None else _texts(messages[last_user], last_user)
    before = sum(estimate_tokens(one.text) for one in texts if last_user is None or one.message < last_user)
    whole = before > sum(estimate_tokens(one.text) for one in asking)
    heads, tails = _asking(asking, whole=whole)
    passages = []
    for one in texts:
        head, tail = 0, len(one.text)
        if one.message == last_user:
            head, tail = heads[one.part], tails[one.part]
        stays, between, asks = (
            split_units(text) for text in (one.text[:head], one.text[head:tail], one.text[tail:])
        )
        optional = [False] * len(stays) + [not unit.fixed for unit in between] + [False] * len(asks)
        if any(optional):
            passages.append(Passage(one.message, one.part, (*stays, *between, *asks), tuple(optional)))
    question = "\n".join(
        piece
        for one in asking
        for piece in (one.text[: heads[one.part]], one.text[tails[one.part] :])
        if piece
    )
    found = Turn(tuple(passages), "", "")
    if chosen is None and sum(unit.tokens for unit in found.optional()) < LEAST_TOKENS:
        return (), question
    return found.passages, question


def _may_refine(message: Mapping[str, Any], index: int, chosen: frozenset[int] | None) -> bool:
    if chosen is not None:
        return index in chosen
    return message.get("role") in _ROLES and not str(message.get("name") or "").startswith(_EXAMPLE_NAME)


def _asking(texts: Sequence[_Text], *, whole: bool) -> tuple[dict[int | None, int], dict[int | None, int]]:
    """Return, for each text of a user's message, where what stays at its beginning ends, and at its end begins.

    What stays is the question: the last paragraph, and the first one if it is short (an instruction); or all of it,
    where an earlier message of the turn holds the content.
    """
    heads = {one.part: 0 for one in texts}
    tails = {one.part: 0 if whole else len(one.text) for one in texts}
    spoken = [one for one in texts if one.text.strip()]
    if whole or not spoken:
        return heads, tails
    first, last = spoken[0], spoken[-1]
    gap = _BLANK_LINE.search(first.text, len(first.text) - len(first.text.lstrip()))
    end = len(first.text) if gap is None or not first.text[gap.end() :].strip() else gap.end()
    if estimate_tokens(first.text[:end]) <= UNIT_TOKENS:
        heads[first.part] = end
    gaps = [found.end() for found in _BLANK_LINE.finditer(last.text.rstrip())]
    tails[last.part] = gaps[-1] if gaps else 0
    if first is last:
        heads[first.part] = min(heads[first.part], tails[first.part])
    return heads, tails


def _texts(message: Mapping[str, Any], index: int) -> list[_Text]:
    content = message.get("content")
    if isinstance(content, str):
        return [_Text(index, None, content)]
    if not isinstance(content, Sequence):
        return []
    return [
        _Text(index, number, part["text"])
        for number, part in enumerate(content)
        if isinstance(part, Mapping)
        and part.get("type") in ("text", "input_text")
        and isinstance(part.get("text"), str)
    ]


def _joined(message: Mapping[str, Any]) -> str:
    return "\n".join(one.text for one in _texts(message, 0))


def _calls(message: Mapping[str, Any]) -> str:
    calls = message.get("tool_calls")
    functions = (
        [call.get("function") for call in calls if isinstance(call, Mapping)]
        if isinstance(calls, list)
        else []
    )
    return "\n".join(str(one.get("arguments", "")) for one in functions if isinstance(one, Mapping))
