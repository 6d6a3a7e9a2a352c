"""Requests to an endpoint under test, and what comes back; iteration and usage are checked on the way."""

from __future__ import annotations

import itertools
from typing import Any

from disco.endpoints.contract import Attempt, Endpoint, Event
from disco.errors import EndpointFailure
from disco.events import Alive, Delta, DeltaKind, Ended, Parked, Progress, Started
from disco.request import Prefix, Request
from disco.testing.subject import Subject

__all__ = [
    "ask",
    "collect",
    "complete",
    "endless",
    "failure_of",
    "first_content",
    "follower",
    "fresh",
    "it_has_stopped",
    "long_prompt",
    "next_event",
    "parked",
    "same",
    "text_of",
    "tokens_of",
]

_NUMBERS = itertools.count(1000)
_MODEL = "smollm2-135m"


def ask(
    text: str = "Write a long story about a river and a mill.", max_tokens: int | None = 12, **params: Any
) -> Request:
    """Return a request with one message."""
    params = {"temperature": 0.0, "seed": 1, "max_tokens": max_tokens, **params}
    return Request([{"role": "user", "content": text}], _MODEL, params)


def fresh(rows: int = 16, **params: Any) -> Request:
    """Return a request of about `4 * rows` tokens, with a prompt that no earlier check has left in a cache."""
    return ask(f"{next(_NUMBERS)} " + "river mill water stone " * rows, **params)


def long_prompt(subject: Subject) -> Request:
    """Return a request that is read for a while before the first word."""
    return fresh(subject.long_tokens // 4)


def endless(subject: Subject) -> Request:
    """Return a request whose answer goes on until it is stopped."""
    return ask(max_tokens=subject.context_tokens // 2)


async def collect(
    attempt: Attempt, progress: list[Progress] | None = None
) -> tuple[list[list[Delta]], Ended]:
    """Iterate to the end; return the batches and the end. `progress` gets what is told of the prefill."""
    batches: list[list[Delta]] = []
    ended: Ended | None = None
    first, before = True, attempt.usage
    async for event in attempt:
        assert ended is None, "something came after Ended"
        if isinstance(event, Alive):
            continue
        usage = attempt.usage
        assert 0 <= usage.cached_tokens <= usage.prompt_tokens
        assert usage.completion_tokens >= max(before.completion_tokens, tokens_of(batches))
        if isinstance(event, Started):
            assert first, "Started is not the first event"
        elif isinstance(event, Ended):
            ended = event
            assert event.usage in (None, usage)
        elif isinstance(event, Progress):
            assert progress is not None, "progress that was not asked for"
            assert not batches, "progress behind text"
            progress.append(event)
        else:
            assert isinstance(event, list)
            assert event, "an empty batch"
            assert all(isinstance(delta, Delta) for delta in event)
            batches.append(event)
            assert usage.completion_tokens >= tokens_of(batches)
        assert usage.prompt_tokens > 0 or not batches
        first, before = False, usage
    assert ended is not None, "iteration stopped without Ended"
    for delta in itertools.chain(*batches):
        assert "\ufffd" not in delta.text, "a character was cut in two"
        delta.text.encode("utf-8", errors="strict")
    for _ in range(3):
        await it_has_stopped(attempt)
    assert attempt.usage == before
    return batches, ended


async def it_has_stopped(attempt: Attempt) -> None:
    """Check that nothing more comes."""
    try:
        event = await anext(attempt)
    except StopAsyncIteration:
        return
    raise AssertionError(f"{type(event).__name__} came from an attempt that is over")


async def failure_of(attempt: Attempt) -> EndpointFailure:
    """Iterate an attempt that has to fail; return its failure."""
    try:
        await collect(attempt)
    except EndpointFailure as failure:
        return failure
    raise AssertionError("it did not fail")


async def next_event(attempt: Attempt) -> Event:
    """Return the next event that is neither `Started` nor `Alive`."""
    while isinstance(event := await anext(attempt), Started | Alive):
        pass
    return event


async def complete(
    endpoint: Endpoint, request: Request, prefix: Prefix | None = None
) -> tuple[str, int, Ended, Attempt]:
    """Return text, tokens, end and attempt of a whole answer."""
    async with endpoint.open(request) if prefix is None else endpoint.open(request, prefix) as attempt:
        batches, ended = await collect(attempt)
    return text_of(batches), tokens_of(batches), ended, attempt


def text_of(batches: list[list[Delta]]) -> str:
    """Return the text of an answer."""
    return "".join(delta.text for batch in batches for delta in batch)


def tokens_of(batches: list[list[Delta]]) -> int:
    """Return the tokens of an answer, roles apart."""
    return sum(d.tokens for batch in batches for d in batch if d.kind is not DeltaKind.ROLE)


async def first_content(attempt: Attempt) -> None:
    """Read up to the first text."""
    while True:
        event = await next_event(attempt)
        assert isinstance(event, list), f"{type(event).__name__} came before the first text"
        if any(delta.kind is not DeltaKind.ROLE for delta in event):
            return


def follower(endpoint: Endpoint, request: Request) -> Attempt:
    """Return an attempt that was told to follow."""
    attempt = endpoint.open(request)
    assert attempt.follow()
    return attempt


async def parked(attempt: Attempt) -> Parked:
    """Return the report that must come next."""
    event = await next_event(attempt)
    assert isinstance(event, Parked)
    return event


def same(subject: Subject, one: str, other: str) -> None:
    """Check that two answers to one question agree."""
    if subject.exact:
        assert one == other
    else:  # a cached prompt changes the arithmetic in its last digits, seldom the first word
        assert one.split()[:1] == other.split()[:1]
