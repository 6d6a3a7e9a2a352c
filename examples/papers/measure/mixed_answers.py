"""Answers of one model, and answers that one model begins and another ends, by the way that a session moves answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from disco.endpoints.contract import Endpoint
from disco.errors import ConfigurationError, EndpointFailure
from disco.events import Delta, Ended, Usage
from disco.playback import Playback, last_word_start
from disco.request import Prefix, Request

__all__ = [
    "WrittenAnswer",
    "check_continues",
    "common_length",
    "continue_answer",
    "cut_answer",
    "write_answer",
]


@dataclass(frozen=True, slots=True)
class WrittenAnswer:
    """An answer, or the rest of one.

    Attributes:
        text: the whole answer, the part of an earlier writer included.
        deltas: what the last writer wrote, in order.
        finish: the finish reason.
        prompt_tokens: length of the prompt, without any part of the answer; 0 where a server reports no usage.
        kept_tokens, kept_chars: the part of an earlier writer.
    """

    text: str = field(repr=False)
    deltas: tuple[Delta, ...] = field(repr=False)
    finish: str
    prompt_tokens: int
    kept_tokens: int = 0
    kept_chars: int = 0

    @property
    def tokens(self) -> int:
        """Length of the whole answer, in tokens of its writers."""
        return self.kept_tokens + sum(delta.tokens for delta in self.deltas)

    @property
    def ids(self) -> tuple[int, ...] | None:
        """Token ids of what the last writer wrote; None where its endpoint does not report them."""
        parts = [delta.ids for delta in self.deltas if delta.tokens]
        known = [ids for ids in parts if ids is not None]
        return tuple(token for ids in known for token in ids) if len(known) == len(parts) else None


async def write_answer(endpoint: Endpoint, request: Request) -> WrittenAnswer:
    """Let one model write the whole answer.

    Raises:
        OpenAIError: the model failed, or the prompt does not fit its context.
    """
    return await _write(endpoint, request, Prefix())


async def continue_answer(endpoint: Endpoint, request: Request, prefix: Prefix) -> WrittenAnswer:
    """Let a model write the rest of an answer.

    Args:
        endpoint: of the model; it gets the prefix in the way in which it continues any answer.
        request: the request of the whole answer.
        prefix: the answer so far, as `cut_answer` makes it.

    Raises:
        OpenAIError: the model failed.
    """
    return await _write(endpoint, request, prefix)


async def _write(endpoint: Endpoint, request: Request, prefix: Prefix) -> WrittenAnswer:
    deltas: list[Delta] = []
    finish, usage = "", Usage()
    try:
        async with endpoint.open(request, prefix) as attempt:
            async for event in attempt:
                if isinstance(event, list):
                    deltas += event
                elif isinstance(event, Ended):
                    finish, usage = event.finish_reason, event.usage or attempt.usage
    except EndpointFailure as failure:
        raise failure.error from failure
    text = prefix.text + "".join(delta.text for delta in deltas)
    prompt_tokens = max(0, usage.prompt_tokens - prefix.tokens)
    return WrittenAnswer(text, tuple(deltas), finish, prompt_tokens, prefix.tokens, len(prefix.text))


def cut_answer(answer: WrittenAnswer, tokens: int, source: Endpoint, target: Endpoint) -> Prefix | None:
    """Return the prefix that a hand-over after so many tokens gives to the target, by the session's own rule.

    The last word may be incomplete, so it is dropped and the target writes it. A prefix without a complete word is
    empty: the target then begins the answer anew.

    Args:
        answer: a complete answer of the source's.
        tokens: after how many of its tokens the hand-over comes.
        source: the model that wrote it.
        target: the model that goes on. Token ids are passed on where both have the same vocabulary.

    Returns:
        The prefix; None where the answer has no more tokens than that, so that nothing is left to hand over.
    """
    begun, count = list[Delta](), 0
    for delta in answer.deltas:
        if count >= tokens:
            break
        begun.append(delta)
        count += delta.tokens
    if len(begun) == len(answer.deltas):
        return None
    playback = Playback(None)
    for delta in begun:
        playback.push(0.0, delta)
    playback.retract(last_word_start("".join(delta.text for delta in begun)))
    kept = playback.release(0.0)
    ids: tuple[int, ...] | None = None
    vocabulary = target.capabilities().vocabulary
    known = [delta.ids for delta in kept if delta.ids is not None]
    if vocabulary is not None and vocabulary == source.capabilities().vocabulary and len(known) == len(kept):
        ids = tuple(token for each in known for token in each) or None
    text, tokens = "".join(delta.text for delta in kept), sum(delta.tokens for delta in kept)
    return Prefix(text, tokens, ids, None if ids is None else vocabulary)


def check_continues(endpoint: Endpoint) -> None:
    """Check that the model can end what another one began; it must be warm.

    Raises:
        ConfigurationError: it is not known to continue.
    """
    if not endpoint.capabilities().continues:
        raise ConfigurationError(
            f"{endpoint.name} is not known to continue a half-written answer, so nothing can be handed to it. Name "
            "another model, or a server that continues answers (docs/concepts/continuation.md)."
        )


def common_length(one: str | tuple[int, ...], other: str | tuple[int, ...]) -> int:
    """Return how long the common beginning of two texts, or of two sequences of tokens, is."""
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length
