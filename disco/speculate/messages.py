"""What a client and a verify server say to each other, as plain data and as JSON.

One round: the client sends what its drafter guesses comes next, and the server replies with what its own model chose,
up to and including the first difference. Positions count tokens of the answer, from 0. So a message may come twice,
or late: the server compares it with what it has, and tokens that are settled are sent again instead of computed.

A server that no longer has an answer refuses the round with the error code `answer_lost`. The client then sends the
round again with an `Opening`, in which `ids` are the answer so far. Ids mean nothing to another model, and an answer
has one writer: a server whose model is another one by now refuses the opening with `model_changed`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

__all__ = ["LONGEST_DRAFT", "BadMessageError", "Opening", "Round", "Verdict", "VerifierFacts"]

LONGEST_DRAFT: Final = 64
"""Most drafted tokens of one round."""
_KEY: Final = re.compile(r"[0-9a-f]{32}")


class BadMessageError(ValueError):
    """A message breaks the protocol; the text names the field, and quotes none of its content."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What an answer is made from.

    Attributes:
        messages, params: as in a chat request. Neither they nor `prefix` are checked here (`disco.request_checks`).
        seed: of the keyed noise; see `coupled`.
        prefix: the fields of `request.Prefix` that differ from its defaults; empty where the answer has no beginning.
        ids: the tokens that the answer has so far, behind the prefix; they are read and not chosen again.
        fingerprint: the server's model must be this one (`VerifierFacts.fingerprint`); None: any.
    """

    messages: Sequence[Mapping[str, Any]] = field(repr=False)
    params: Mapping[str, Any] = field(default_factory=dict, repr=False)
    seed: int = 0
    prefix: Mapping[str, Any] = field(default_factory=dict, repr=False)
    ids: tuple[int, ...] = field(default=(), repr=False)
    fingerprint: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the opening as JSON values."""
        whole = {"messages": list(self.messages), "params": dict(self.params), "seed": self.seed}
        whole |= {"prefix": dict(self.prefix), "ids": list(self.ids)}
        return whole if self.fingerprint is None else {**whole, "fingerprint": self.fingerprint}

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Read an opening.

        Raises:
            BadMessageError: it breaks the protocol.
        """
        document = _document(content, "opening")
        messages = document.get("messages")
        if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
            raise BadMessageError("opening.messages must be a list of objects")
        return cls(
            messages=messages,
            params=_document(document.get("params", {}), "opening.params"),
            seed=_number(document, "seed", 0, lowest=-(2**63), highest=2**64 - 1),
            prefix=_document(document.get("prefix", {}), "opening.prefix"),
            ids=_ids(document.get("ids", []), "opening.ids", 2**20),
            fingerprint=_text_or_none(document, "fingerprint", "opening.fingerprint"),
        )


@dataclass(frozen=True, slots=True)
class Round:
    """One window of drafted tokens, and where they stand.

    Attributes:
        key: names the answer: 32 hexadecimal digits, chosen at random by the client.
        number: counts the answer's rounds, from 0.
        at: position of the first drafted token.
        draft: the drafted tokens; may be empty.
        alone: after the verdict on the draft, the server goes on alone for so many tokens, and replies as it goes.
        opening: with the first round, and where the server has lost the answer.
        wants_prompt: reply with the ids of the rendered prompt.
    """

    key: str
    number: int
    at: int
    draft: tuple[int, ...] = ()
    alone: int = 0
    opening: Opening | None = None
    wants_prompt: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the round as JSON values; fields with usual values are left out."""
        content: dict[str, Any] = {"key": self.key, "number": self.number, "at": self.at}
        if self.draft:
            content["draft"] = list(self.draft)
        if self.alone:
            content["alone"] = self.alone
        if self.opening is not None:
            content["opening"] = self.opening.to_json()
        if self.wants_prompt:
            content["wants_prompt"] = True
        return content

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Read a round.

        Raises:
            BadMessageError: it breaks the protocol.
        """
        document = _document(content, "the round")
        key = document.get("key")
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise BadMessageError("key must be 32 hexadecimal digits")
        opening = document.get("opening")
        return cls(
            key=key,
            number=_number(document, "number", None),
            at=_number(document, "at", None),
            draft=_ids(document.get("draft", []), "draft", LONGEST_DRAFT),
            alone=_number(document, "alone", 0),
            opening=None if opening is None else Opening.from_json(opening),
            wants_prompt=document.get("wants_prompt") is True,
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the server's model chose, from a position on.

    Attributes:
        number: of the round.
        at: position of `ids[0]`; where the round's own position lies beyond the answer's end (an earlier window was
            cut short), the answer's length, and `ids` is empty.
        ids: the tokens of the answer from there on; the round's drafted tokens that were right, and one more. Empty
            where the answer ended.
        deltas: the text of those tokens as it may be shown, each as the API's delta with what it lacks beside it
            (`event_coding.coded`). Text is held back where a stop string may begin. Each has `at` besides: the position
            of the token that it came with (at the answer's end, the answer's length). A verdict may overlap what the
            client has, and by `at` it knows which deltas are new.
        finish_reason: how the answer ended; None while it goes on.
        judged: drafted tokens that were compared: the right ones, and the first that differed.
        accepted: how many of them were right.
        rows: tokens computed for this verdict, the rejected ones included.
        prompt_tokens, cached_tokens, completion_tokens: the answer's usage so far, as `events.Usage` has it.
        rejected_tokens: drafted tokens computed in vain so far.
        prompt_ids: the rendered prompt, where it was asked for.
        queue_s, compute_s: how long the round waited for the model, and how long its batch took, s.
        waiting: rounds that waited for the model when this one was done.
    """

    number: int
    at: int
    ids: tuple[int, ...] = ()
    deltas: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    finish_reason: str | None = None
    judged: int = 0
    accepted: int = 0
    rows: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    rejected_tokens: int = 0
    prompt_ids: tuple[int, ...] | None = field(default=None, repr=False)
    queue_s: float = 0.0
    compute_s: float = 0.0
    waiting: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON values; fields with usual values are left out."""
        content = {one.name: (getattr(self, one.name), one.default) for one in fields(self)}
        return {name: value for name, (value, usual) in content.items() if value != usual}

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Read a verdict.

        Raises:
            BadMessageError: it breaks the protocol.
        """
        document = _document(content, "the verdict")
        whole = {name: _number(document, name, 0) for name in _WHOLE}
        prompt_ids = document.get("prompt_ids")
        deltas = document.get("deltas", [])
        if not isinstance(deltas, list) or not all(isinstance(one, dict) for one in deltas):
            raise BadMessageError("deltas must be a list of objects")
        return cls(
            **whole,
            ids=_ids(document.get("ids", []), "ids", 2**20),
            deltas=tuple(deltas),
            finish_reason=_text_or_none(document, "finish_reason"),
            prompt_ids=None if prompt_ids is None else _ids(prompt_ids, "prompt_ids", 2**24),
            queue_s=_seconds(document, "queue_s"),
            compute_s=_seconds(document, "compute_s"),
        )


_WHOLE: Final = (
    "number",
    "at",
    "judged",
    "accepted",
    "rows",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "rejected_tokens",
    "waiting",
)


@dataclass(frozen=True, slots=True)
class VerifierFacts:
    """What a verify server says of itself.

    Attributes:
        model: its name.
        vocabulary: fingerprint of its tokenizer; a drafter needs the same.
        context_tokens: prompt and answer together.
        slots: answers whose caches it keeps at the same time.
        verify_s: (rows, seconds) of one batch, rising in rows; measured, on an idle server.
        waiting: rounds that wait for the model now.
        busy: answers that hold a slot now.
        fingerprint: of all that decides which tokens come: weights, tokenizer and chat template.
    """

    model: str
    vocabulary: str | None
    context_tokens: int
    slots: int
    verify_s: tuple[tuple[int, float], ...] = ()
    waiting: int = 0
    busy: int = 0
    fingerprint: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON values."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    @classmethod
    def from_json(cls, content: Any) -> Self:
        """Read the facts.

        Raises:
            BadMessageError: they break the protocol.
        """
        document = _document(content, "the facts")
        model = document.get("model")
        if not isinstance(model, str):
            raise BadMessageError("model must be a text")
        curve = document.get("verify_s", [])
        try:
            points = tuple((int(rows), float(seconds)) for rows, seconds in curve)
        except (TypeError, ValueError, OverflowError):
            raise BadMessageError("verify_s must be a list of pairs of numbers") from None
        if any(rows < 1 or not 0 <= seconds < 3600 for rows, seconds in points):
            raise BadMessageError("verify_s has rows or seconds that no batch can have")
        return cls(
            model=model,
            vocabulary=_text_or_none(document, "vocabulary"),
            context_tokens=_number(document, "context_tokens", None),
            slots=_number(document, "slots", None),
            verify_s=points,
            waiting=_number(document, "waiting", 0),
            busy=_number(document, "busy", 0),
            fingerprint=_text_or_none(document, "fingerprint"),
        )


def _document(content: Any, what: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise BadMessageError(f"{what} must be a JSON object")
    return content


def _number(
    document: Mapping[str, Any], name: str, usual: int | None, *, lowest: int = 0, highest: int = 2**40
) -> int:
    value = document.get(name, usual)
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise BadMessageError(f"{name} must be a whole number between {lowest} and {highest}")
    return value


def _text_or_none(document: Mapping[str, Any], name: str, called: str = "") -> str | None:
    value = document.get(name)
    if not isinstance(value, str | None):
        raise BadMessageError(f"{called or name} must be a text")
    return value


def _seconds(document: Mapping[str, Any], name: str) -> float:
    value = document.get(name, 0.0)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e9:
        raise BadMessageError(f"{name} must be a number of seconds")
    return float(value)


def _ids(content: Any, name: str, most: int) -> tuple[int, ...]:
    if not isinstance(content, list) or len(content) > most:
        raise BadMessageError(f"{name} must be a list of at most {most} token ids")
    if not all(type(one) is int and 0 <= one < 2**31 for one in content):
        raise BadMessageError(f"{name} must hold token ids only")
    return tuple(content)
