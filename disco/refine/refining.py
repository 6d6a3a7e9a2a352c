"""Refines a conversation: keeps a share of its prose, in whole units and in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from disco.dispatch.request_features import estimate_tokens
from disco.errors import ConfigurationError
from disco.refine.content import Passage, Turn, turns_of
from disco.refine.mask import decode_mask, encode_mask
from disco.refine.selectors import choose, scores_of

__all__ = ["Refined", "apply_mask", "keep_units", "refine"]


@dataclass(frozen=True, slots=True)
class Refined:
    """A conversation without some of its units.

    Attributes:
        messages: the conversation. Messages that lost nothing are the given ones.
        kept_share: the kept share of the text that might be left out, in tokens by estimate; 1 where there is none.
        prompt_share: the kept share of the text of all messages, in tokens by estimate.
        mask: which units were kept; `apply_mask` makes the same conversation of it. Depends on the text: never logged.
    """

    messages: list[Mapping[str, Any]] = field(repr=False)
    kept_share: float
    prompt_share: float
    mask: str = field(repr=False)


def refine(
    messages: Sequence[Mapping[str, Any]],
    *,
    keep: float,
    selector: str = "lexical",
    hints: str = "",
    named: Sequence[int] | None = None,
) -> Refined:
    """Keep a share of the prose of a conversation. Pure and deterministic.

    Every turn keeps that share of its own units. What a turn keeps depends on nothing that follows its answer.

    Args:
        messages: OpenAI message dicts; not changed.
        keep: the share of the tokens to keep, in (0, 1]. Units are whole, so the share is met roughly; a turn keeps at
            least one unit.
        selector: a name in `SELECTORS`.
        hints: the first words of the answer, from a server; the selector "feedback" looks for them in the last turn.
        named: indices of the messages that may lose units (see `turns_of`).

    Raises:
        ConfigurationError: `keep` is out of range, or a selector or message does not exist.
    """
    if not 0.0 < keep <= 1.0:
        raise ConfigurationError(f"keep must be above 0 and at most 1, not {keep}")
    turns = turns_of(messages, named)
    kept: list[bool] = []
    for number, turn in enumerate(turns):
        scores = scores_of(turn, selector, hints if number == len(turns) - 1 else "")
        kept += choose([unit.tokens for unit in turn.optional()], scores, keep)
    return keep_units(messages, turns, kept)


def apply_mask(
    messages: Sequence[Mapping[str, Any]],
    mask: str,
    *,
    named: Sequence[int] | None = None,
    read_share: float = 0.0,
) -> list[Mapping[str, Any]]:
    """Return the messages of the conversation that a mask keeps.

    Args:
        messages: those that the mask was made for.
        mask: from `Refined.mask`, of this process or of a server.
        named: as given to `refine`.
        read_share: the share of the prompt that the device has read before the mask came, 0 to 1. Units in this part
            stay, whatever the mask says: what was read serves the answer, and leaving it out would lose the KV cache.

    Raises:
        WrongMaskError: the mask is for another text, or damaged.
    """
    turns = turns_of(messages, named)
    kept = decode_mask(turns, mask)
    if read_share > 0.0:
        read = _read_units(messages, turns, read_share)
        kept = [one or place < read for place, one in enumerate(kept)]
    return keep_units(messages, turns, kept).messages


def keep_units(messages: Sequence[Mapping[str, Any]], turns: Sequence[Turn], kept: Sequence[bool]) -> Refined:
    """Return the conversation with these units, and what is not optional.

    Args:
        messages: the conversation.
        turns: from `turns_of`, of the same messages.
        kept: of each optional unit of all turns, in order.
    """
    short = [*messages]
    all_tokens = sum(_tokens(message) for message in messages)
    optional = [unit for turn in turns for unit in turn.optional()]
    gone = sum(unit.tokens for unit, one in zip(optional, kept, strict=True) if not one)
    place = 0
    emptied: list[tuple[int, int]] = []
    for passage in (passage for turn in turns for passage in turn.passages):
        count = sum(passage.optional)
        own = kept[place : place + count]
        place += count
        if all(own):
            continue
        text = _shortened(passage, own)
        message = short[passage.message]
        if passage.part is None:
            short[passage.message] = {**message, "content": text}
            continue
        parts = [*message["content"]]
        parts[passage.part] = {**parts[passage.part], "text": text}
        short[passage.message] = {**message, "content": parts}
        if not text.strip():
            emptied.append((passage.message, passage.part))
    for number, part in reversed(emptied):  # a part of a message must not be empty
        parts = [*short[number]["content"]]
        if len(parts) > 1:
            del parts[part]
            short[number] = {**short[number], "content": parts}
    total = sum(unit.tokens for unit in optional)
    return Refined(
        messages=short,
        kept_share=1.0 - gone / total if total else 1.0,
        prompt_share=1.0 - gone / all_tokens if all_tokens else 1.0,
        mask=encode_mask(turns, kept),
    )


def _shortened(passage: Passage, kept: Sequence[bool]) -> str:
    """Return the passage without some units. Line breaks behind a left-out unit stay, so that paragraphs stay apart."""
    verdicts = iter(kept)
    text = ""
    for unit, optional in zip(passage.units, passage.optional, strict=True):
        if not optional or next(verdicts):
            text += unit.text
            continue
        body = unit.text.rstrip()
        breaks = unit.text[len(body) :].lstrip(" \t")
        if "\n" in breaks and text.strip() and len(text) - len(text.rstrip("\n")) < breaks.count("\n"):
            text = text.rstrip() + breaks
    return text


def _tokens(message: Mapping[str, Any]) -> float:
    content = message.get("content")
    if isinstance(content, str):
        return estimate_tokens(content)
    if not isinstance(content, Sequence):
        return 0.0
    texts = (part.get("text") for part in content if isinstance(part, Mapping))
    return sum(estimate_tokens(text) for text in texts if isinstance(text, str))


def _read_units(messages: Sequence[Mapping[str, Any]], turns: Sequence[Turn], read_share: float) -> int:
    """Return how many optional units, from the first, lie or begin in the part of the prompt that was read."""
    before: list[float] = [0.0]
    for message in messages:
        before.append(before[-1] + _tokens(message))
    limit = read_share * before[-1]
    count = 0
    within: dict[int, float] = {}  # tokens of a message's passages so far
    for passage in (passage for turn in turns for passage in turn.passages):
        at = within.get(passage.message, 0.0)
        for unit, optional in zip(passage.units, passage.optional, strict=True):
            if before[passage.message] + at >= limit:
                return count
            at += unit.tokens
            count += optional
        within[passage.message] = at
    return count
