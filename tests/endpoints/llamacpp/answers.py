"""Asking the model of this machine."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import pytest

from disco.endpoints.llamacpp import EngineEndpoint
from disco.errors import EndpointFailure
from disco.events import Ended, Started
from disco.request import Prefix, Request

NOTHING = Prefix()


def ask(content="Write two sentences about Paris.", history=(), max_tokens=20, **params):
    params = {"temperature": 0, "max_tokens": max_tokens, **params}
    return Request([*history, {"role": "user", "content": content}], "server-model", params)


async def complete(endpoint, request, prefix=NOTHING):
    """Text, deltas and the end of one attempt."""
    deltas = []
    async with endpoint.open(request, prefix) as attempt:
        async for event in attempt:
            if isinstance(event, Ended):
                assert event.usage == attempt.usage
                return "".join(delta.text for delta in deltas), deltas, event
            if not isinstance(event, Started):
                deltas += event
    raise AssertionError("no Ended")


async def fails(endpoint, request):
    """What it fails with; never with what the request says."""
    with pytest.raises(EndpointFailure) as caught:
        await complete(endpoint, request)
    assert "secret" not in str(caught.value.error)
    return caught.value


def refused(kind, named, what):
    with pytest.raises(EndpointFailure) as caught:
        what()
    assert caught.value.kind is kind
    assert named in str(caught.value.error)


def cached(endpoint):
    """What the cache holds of the newest answer, once that has ended."""
    return max(endpoint.engine._thread.scheduler.slots.all, key=lambda slot: slot.left_at).ids


@asynccontextmanager
async def fresh(kind=EngineEndpoint, **options):
    """An endpoint of a test's own."""
    endpoint = kind(**{"name": "device", "context_tokens": 512, "threads": 1, **options})
    try:
        yield endpoint
    finally:
        await endpoint.aclose()


async def until(what):
    with anyio.fail_after(60):
        while not what():  # noqa: ASYNC110 - it is another thread's or process's state
            await anyio.sleep(0.01)
