"""What tests of the split endpoint ask, and of whom."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, fields

import anyio

from disco.endpoints.llamacpp import EngineEndpoint
from disco.endpoints.split.layer_link import LayerServer
from disco.endpoints.split.split_endpoint import SplitEndpoint
from disco.endpoints.split.split_options import SplitOptions
from disco.endpoints.split.wire import Dtype
from disco.events import Ended
from disco.request import Request

__all__ = ["Answer", "ask", "asked", "running", "split_of", "whole_of"]


@dataclass(frozen=True)
class Answer:
    """What came, all deltas together, and how it ended."""

    text: str
    tools: tuple[tuple[int, str], ...]
    logprobs: tuple[str, ...]
    finish_reason: str | None


def ask(content: str = "Hello there, how are you?", **params: object) -> Request:
    params = {"temperature": 0.0, "seed": 5, "max_tokens": 24, **params}
    return Request([{"role": "user", "content": content}], "tiny", params)


async def asked(endpoint, request, attempts: list | None = None) -> Answer:
    """The answer to a request."""
    attempt = endpoint.open(request)
    if attempts is not None:
        attempts.append(attempt)
    text, tools, logprobs = "", {}, []
    try:
        async for event in attempt:
            if isinstance(event, Ended):
                return Answer(text, tuple(sorted(tools.items())), tuple(logprobs), event.finish_reason)
            for delta in event if isinstance(event, list) else ():
                text += delta.text
                logprobs += [one["token"] for one in (delta.logprobs or {}).get("content") or ()]
                for call in delta.tool_calls:
                    tools[call.index] = tools.get(call.index, "") + (call.name or "") + call.arguments
    finally:
        await attempt.aclose()
    raise AssertionError("no end")


def split_of(
    tiny, server, *, drafted=False, patience_s=10.0, key=None, dtype=Dtype.F32, made=SplitEndpoint, **options
):
    """A split model in this process; with `made=HostSplit` in a host."""
    given = {"context_tokens": 1024, "branches": 0, "window": 4 if drafted else 0, "always": True, **options}
    where = LayerServer(base_url=server.base_url, api_key=key, dtype=dtype, patience_s=patience_s)
    chosen = {one.name: given.pop(one.name) for one in fields(SplitOptions) if one.name in given}
    return made(tiny.device if drafted else tiny.undrafted, where, SplitOptions(**chosen), **given)


def whole_of(tiny, **options) -> EngineEndpoint:
    given = {"slots": 2, "batch_tokens": 512, "context_tokens": 1024, **options}
    return EngineEndpoint(model=tiny.whole, name="whole", **given)


@asynccontextmanager
async def running(endpoint, *, warm=True):
    try:
        if warm:
            await endpoint.warm_up()
        yield endpoint
    finally:
        with anyio.CancelScope(shield=True):
            await endpoint.aclose()
