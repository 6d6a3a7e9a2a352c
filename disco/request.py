"""One chat request inside disco: the body as the application gave it, and the prefix that a target continues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["MOST_CLASSES", "NO_LIMIT", "Prefix", "Request", "Timeouts", "check_classes", "whole_number"]

MOST_CLASSES = 256
"""Most classes of one request: the local model reads every one of them behind the prompt."""

NO_LIMIT = -1
"""As `max_tokens`: llama.cpp's server and others take it for "as long as the context holds"."""

_MOST_TOKENS = 2**53
"""No answer is as long. A limit above it is sent as it is, and may be too large for a plan to count with."""


def whole_number(value: object) -> int | None:
    """Return a JSON number as an integer, also where it is written as 50.0; None for anything else.

    Args:
        value: of a request's parameter.
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True, slots=True)
class Timeouts:
    """When an attempt has failed, in seconds; None: never. By default after the SDK's patience.

    Where another endpoint may take over, it starts long before that, beside the silent one
    (`session.switching.silence_rule`).

    Attributes:
        connect_s: until there is a connection, s.
        first_content_s: without a sign of life before the first content, s. As with the SDK, any bytes are such a sign,
            comments and empty deltas too.
        gap_s: the same behind it, s.
        total_s: for the whole answer, s.
    """

    connect_s: float | None = 5.0
    first_content_s: float | None = 600.0
    gap_s: float | None = 600.0
    total_s: float | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A `chat.completions.create` call.

    Attributes:
        messages: the conversation, as OpenAI message dicts.
        model: the *server's* model name, as the application wrote it.
        params: every other body parameter that was given (`max_tokens`, `temperature`, `tools`, ...),
            without `messages`, `model`, `stream`, `stream_options.include_usage` and `extra_body["disco"]`.
        extra_headers, extra_query: passed to the server unchanged; not in the repr, since they may contain secrets.
        timeouts: the clocks of each attempt.
        retries: how often the endpoint was asked before for this answer.
        first_connect_s: the same for the first connection to each endpoint, s; None: as `timeouts` say.
        is_last: it was asked before, and is not asked again, or is now asked without what its endpoint adds.
        responses: the body of the `/responses` request that the application made, without `stream` and
            `extra_body["disco"]`; None where it made a chat request. The other fields are its translation.
        classes: the complete answers to choose between (see `check_classes`); empty: free text.
        cap: disco's own limit on the tokens of the answer, for an endpoint that is to write only its beginning; None:
            there is none. The endpoint sends it under a name that its server takes.
        refined: the messages without the sentences that an heir need not read; None: every endpoint reads them all.
        redaction: what redacts the request on its way to any endpoint that is not on this device
            (`endpoints.redaction.Redaction`); None: nothing is redacted.
        added_tokens: the most tokens that the redaction adds to the prompt, as far as it is known.
        may_be_saved: whether a model on this machine may save on disk what it has read of the prompt, where the
            application chose that (`prompt_cache`). False: only where it saves private prompts, too.
        unusual: by parameter (or "messages"), how an endpoint refuses its value that takes the API's own values only.
        streams, counts: whether the application asked for a stream, and in it for the usage. disco asks for both in
            any case, and may do without where a server refuses them.
        drafts: where a budget limits a pair of drafter and verify server: how many tokens its drafter may process
            besides the prompt, and its server in vain; None: as many as they like.
    """

    messages: Sequence[Mapping[str, Any]] = field(repr=False)
    model: str
    params: Mapping[str, Any] = field(default_factory=dict, repr=False)
    extra_headers: Mapping[str, str] | None = field(default=None, repr=False)
    extra_query: Mapping[str, object] | None = field(default=None, repr=False)
    timeouts: Timeouts = field(default_factory=Timeouts)
    retries: int = 0
    first_connect_s: float | None = None
    is_last: bool = False
    responses: Mapping[str, Any] | None = field(default=None, repr=False)
    classes: tuple[str, ...] = field(default=(), repr=False)
    cap: int | None = None
    refined: Sequence[Mapping[str, Any]] | None = field(default=None, repr=False)
    redaction: Any = field(default=None, repr=False, compare=False)
    added_tokens: int = 0
    may_be_saved: bool = False
    unusual: Mapping[str, Exception] = field(default_factory=dict, repr=False, compare=False)
    streams: bool = False
    counts: bool = False
    drafts: int | None = None

    def due_in(self, deadline_s: float) -> Request:
        """Return the request with another limit on the time of the whole answer, in seconds.

        Args:
            deadline_s: the limit, s.
        """
        return replace(self, timeouts=replace(self.timeouts, total_s=deadline_s))

    @property
    def connect_s(self) -> float | None:
        """Until there is a connection, s. Who is asked again has the caller's time: nobody else may be left."""
        is_first = self.first_connect_s is not None and not self.retries
        return self.first_connect_s if is_first else self.timeouts.connect_s

    @property
    def may_be_empty(self) -> bool:
        """Whether the request itself explains an answer without content: stop strings, or a limit of one token."""
        return bool(self.stops) or self.max_tokens in (0, 1)

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts at which the answer stops. An empty one is none; what is no text is left out."""
        given = self.params.get("stop")
        several = (given,) if isinstance(given, str) else given if isinstance(given, list | tuple) else ()
        return tuple(text for text in several if isinstance(text, str) and text)

    @property
    def max_tokens(self) -> int | None:
        """The answer's length limit in tokens: the application's, under either of its two names, else the cap."""
        for name in ("max_completion_tokens", "max_tokens"):
            limit = whole_number(self.params.get(name))
            if limit is not None and limit > NO_LIMIT:
                return min(limit, _MOST_TOKENS)
        return self.cap

    def capped(self, tokens: int) -> Request:
        """Return the request with a limit on its answer that applies even where the application set none.

        Args:
            tokens: the limit.
        """
        limit = self.max_tokens
        cap = tokens if limit is None else min(limit, tokens)
        return replace(self.limited(cap), cap=cap)

    def limited(self, max_tokens: int) -> Request:
        """Return the request with another limit, under each name under which it has one; unchanged without a limit.

        Args:
            max_tokens: the limit.
        """
        names = ("max_completion_tokens", "max_tokens")
        given = {name: max_tokens for name in names if self.params.get(name) is not None}
        responses = self.responses
        if responses is not None and responses.get("max_output_tokens") is not None:
            responses = {**responses, "max_output_tokens": max_tokens}
        return replace(self, params={**self.params, **given}, responses=responses)


def check_classes(classes: Sequence[str]) -> None:
    """Check the answers that a request lets an endpoint choose between.

    Args:
        classes: the texts of the classes.

    Raises:
        ValueError: there are fewer than 2 or more than 256, one is blank, or two are equal, spaces around them apart.
            The message quotes none of them: they may be the application's data.
    """
    if not 2 <= len(classes) <= MOST_CLASSES:
        raise ValueError(f"{len(classes)} classes were given; name at least 2 and at most {MOST_CLASSES}")
    if not all(text.strip() for text in classes):
        raise ValueError("a class is empty; write out the complete answer that each class stands for")
    if len({text.strip() for text in classes}) < len(classes):
        raise ValueError("two classes are equal but for spaces around them; name each answer once")


@dataclass(frozen=True, slots=True)
class Prefix:
    """The answer so far; a target continues it exactly at its end.

    Attributes:
        text: the answer so far. A target gets all of it except `withheld`.
        tokens: length of the text in the tokens of its writers; lowers the target's `max_tokens`.
        ids: token ids of the text, where source and target share a tokenizer; else None.
        vocabulary: fingerprint of the tokenizer of `ids`.
        withheld: the end of `text`, from the whitespace before its last, perhaps incomplete, word. The reader has
            seen this word already, so the target must write it again first, and the repetition is swallowed.
            Empty when the reader had not seen the last word and it could be dropped.
        ends_in_word: the text may end inside a word that the reader has seen, so that the target may go on with the
            rest of that word.
        asked_again: the target was asked before and did not begin where it should have.
    """

    text: str = field(default="", repr=False)
    tokens: int = 0
    ids: tuple[int, ...] | None = field(default=None, repr=False)
    vocabulary: str | None = None
    withheld: str = field(default="", repr=False)
    ends_in_word: bool = False
    asked_again: bool = False

    def __bool__(self) -> bool:
        return bool(self.text)

    @property
    def sent(self) -> str:
        """The part that a target is given: `text` without `withheld`."""
        return self.text[: len(self.text) - len(self.withheld)]

    def shared_chars(self, text: str) -> int:
        """Return how many characters `sent` and `text` have in common at their beginning."""
        sent = self.sent
        if sent.startswith(text):
            return len(text)
        return next((at for at, (a, b) in enumerate(zip(sent, text, strict=False)) if a != b), len(sent))
