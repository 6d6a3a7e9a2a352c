"""What a host does with a request: served, refused by name, or left out without a word.

Each ability is a question to a real endpoint, asked as a client would: first whether the endpoint says that it serves
the request (`Capabilities.features`), then with an attempt. "ignored" is a fault of the host: an answer without what
was demanded.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import httpx2
import openai
from servers import smollm2_gguf

from disco.dispatch.request_features import features_of
from disco.endpoints.contract import Endpoint
from disco.endpoints.gguf_header import read_tokens
from disco.endpoints.host import HostEndpoint
from disco.errors import ConfigurationError, EndpointFailure
from disco.events import Delta, Progress
from disco.request import Prefix, Request
from disco.testing.asking import ask, collect, complete, fresh

__all__ = ["abilities", "ability_names"]

Ability = Callable[[Endpoint], Awaitable[str]]
_ABILITIES: dict[str, Ability] = {}

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Returns the weather of a town for a day, with wind, rain and the height of the waves.",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    },
}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
PIXEL = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def ability(name: str) -> Callable[[Ability], Ability]:
    """Enter a function in the table, under a name."""

    def entered(function: Ability) -> Ability:
        _ABILITIES[name] = function
        return function

    return entered


def ability_names() -> list[str]:
    """Return the names of the table's rows, in order."""
    return list(_ABILITIES)


async def abilities(endpoint: Endpoint) -> dict[str, str]:
    """Return what a host does, by the name of the ability."""
    await endpoint.warm_up()
    return {name: await tried(endpoint) for name, tried in _ABILITIES.items()}


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


async def _served(endpoint: Endpoint, request: Request, holds: Callable[[list[Delta], Any], bool]) -> str:
    able, needs = endpoint.capabilities(request.model), features_of(request, stream=True).needs
    if needs & able.lacks.keys() or (able.features is not None and not needs <= able.features):
        return "refused"
    try:
        async with endpoint.open(request) as attempt:
            deltas = [delta async for event in attempt if isinstance(event, list) for delta in event]
    except EndpointFailure as failure:
        if isinstance(failure.error, openai.APIStatusError):  # somebody has said no
            return "refused"
        raise
    return "yes" if holds(deltas, attempt) else "ignored"


def _choices(deltas: list[Delta]) -> list[Any]:
    return [choice for delta in deltas for choice in getattr(delta.raw, "choices", None) or []]


# ---------------------------------------------------------------------- requests


@ability("tools (SmolLM2's own template has no place for them)")
async def _tools(endpoint: Endpoint) -> str:
    sizes = []
    for tools in (
        [WEATHER],
        [WEATHER, {**WEATHER, "function": {**WEATHER["function"], "name": "weather_at_sea"}}],
    ):
        said = await _served(
            endpoint,
            ask("What is the weather in Rome?", max_tokens=1, tools=tools),
            lambda _, attempt: not sizes.append(attempt.usage.prompt_tokens),
        )
        if said != "yes":
            return said
    return "yes" if sizes[1] > sizes[0] + 20 else "ignored"


@ability('`tool_choice`: `"required"`')
async def _required(endpoint: Endpoint) -> str:
    request = ask("What is the weather in Rome?", max_tokens=40, tools=[WEATHER], tool_choice="required")
    return await _served(endpoint, request, lambda deltas, _: any(delta.tool_calls for delta in deltas))


@ability("`tool_choice`: a function")
async def _named(endpoint: Endpoint) -> str:
    named = {"type": "function", "function": {"name": "weather"}}
    request = ask("What is the weather in Rome?", max_tokens=40, tools=[WEATHER], tool_choice=named)
    return await _served(endpoint, request, lambda deltas, _: any(delta.tool_calls for delta in deltas))


@ability('`tool_choice`: `"none"`')
async def _no_call(endpoint: Endpoint) -> str:
    request = ask("What is the weather in Rome?", max_tokens=8, tools=[WEATHER], tool_choice="none")
    return await _served(endpoint, request, lambda deltas, _: not any(delta.tool_calls for delta in deltas))


@ability("`response_format`: a JSON schema")
async def _schema(endpoint: Endpoint) -> str:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}

    def is_valid(deltas: list[Delta], _: Any) -> bool:
        try:
            return isinstance(json.loads("".join(delta.text for delta in deltas))["n"], int)
        except (ValueError, KeyError, TypeError):
            return False

    return await _served(endpoint, ask("Give me a number.", max_tokens=40, response_format=form), is_valid)


@ability("`logprobs`")
async def _logprobs(endpoint: Endpoint) -> str:
    def has_some(deltas: list[Delta], _: Any) -> bool:
        given = (getattr(choice, "logprobs", None) for choice in _choices(deltas))
        return any(delta.logprobs for delta in deltas) or any(given)

    return await _served(endpoint, ask("Say yes.", max_tokens=3, logprobs=True, top_logprobs=2), has_some)


@ability("`logit_bias`")
async def _logit_bias(endpoint: Endpoint) -> str:
    plain = (await complete(endpoint, ask("Count from 1 to 9.", max_tokens=4)))[0]
    first = plain.split()[0].encode()
    # Its first word in any spelling, and what it begins with.
    spelled = [token.removeprefix("\u0120".encode()) for token in read_tokens(smollm2_gguf())]
    bans = {str(number): -100 for number, token in enumerate(spelled) if token and first.startswith(token)}
    request = ask("Count from 1 to 9.", max_tokens=4, logit_bias=bans)
    return await _served(endpoint, request, lambda deltas, _: "".join(d.text for d in deltas) != plain)


@ability("`n`: several answers")
async def _several(endpoint: Endpoint) -> str:
    request = ask("Say yes.", max_tokens=3, n=2)
    return await _served(
        endpoint, request, lambda deltas, _: {getattr(c, "index", 0) for c in _choices(deltas)} == {0, 1}
    )


@ability("images (SmolLM2 sees none)")
async def _images(endpoint: Endpoint) -> str:
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    request = Request([{"role": "user", "content": parts}], "smollm2-135m", {"max_tokens": 3})
    return await _served(endpoint, request, lambda *_: False)


@ability("images, with a projector (`mmproj=`)")
async def _projector(endpoint: Endpoint) -> str:
    return _of_host(endpoint, mmproj=smollm2_gguf())


@ability("LoRA adapters (`lora=`)")
async def _lora(endpoint: Endpoint) -> str:
    return _of_host(endpoint, lora=[smollm2_gguf()])


def _of_host(endpoint: Endpoint, **option: Any) -> str:
    """Return whether a host of disco's takes a file beside its model; `host/test_added_files.py` uses some."""
    if not isinstance(endpoint, HostEndpoint):
        return "as it was started"
    try:
        HostEndpoint(runtime=endpoint.runtime, **option)
    except ConfigurationError:
        return "refused"
    return "yes"


@ability("a hint: `reasoning_effort`")
async def _hint(endpoint: Endpoint) -> str:
    said = await _served(endpoint, ask("Say yes.", max_tokens=3, reasoning_effort="low"), lambda *_: True)
    return "answered" if said == "yes" else said


# ---------------------------------------------------------------------- what disco uses


@ability("usage at the end of a stream")
async def _usage(endpoint: Endpoint) -> str:
    _, _, ended, _ = await complete(endpoint, ask(max_tokens=3))
    return _yes(ended.usage is not None and ended.usage.prompt_tokens > 0)


@ability("tells its context")
async def _context(endpoint: Endpoint) -> str:
    return _yes(endpoint.capabilities().context_tokens == 2048)


@ability("continues half an answer")
async def _continues(endpoint: Endpoint) -> str:
    if not endpoint.capabilities().continues:
        return "no"
    text, *_ = await complete(
        endpoint, ask(max_tokens=24), Prefix("Once upon a time there was a small ", tokens=9)
    )
    return _yes(bool(text) and not text.startswith("Once"))


@ability("log probabilities for disco's own use")
async def _logp(endpoint: Endpoint) -> str:
    async with endpoint.open(ask(max_tokens=4), wants=frozenset({"logp"})) as attempt:
        batches, _ = await collect(attempt)
    return _yes(any(delta.logp for batch in batches for delta in batch))


@ability("progress of a prefill")
async def _progress(endpoint: Endpoint) -> str:
    told: list[Progress] = []
    async with endpoint.open(fresh(50, max_tokens=1), wants=frozenset({"progress"})) as attempt:
        await collect(attempt, told)
    return _yes(bool(told))


@ability("park: read a prompt and keep it")
async def _parks(endpoint: Endpoint) -> str:
    return await _told(endpoint, "park")


@ability("follow: read another's answer along")
async def _follows(endpoint: Endpoint) -> str:
    return await _told(endpoint, "follow")


@ability("pause: stop writing, and go on")
async def _pauses(endpoint: Endpoint) -> str:
    return _yes(endpoint.capabilities().pauses)


async def _told(endpoint: Endpoint, what: str) -> str:
    async with endpoint.open(ask(max_tokens=3)) as attempt:
        return _yes(getattr(attempt, what)())


@ability("counts a prompt beforehand")
async def _counts(endpoint: Endpoint) -> str:
    for _ in range(100):  # an engine that still ends another answer does not count
        if await endpoint.prompt_size(ask(), 10.0) is not None:
            return "yes"
        await anyio.sleep(0.02)
    return "no"


@ability("drafts for another model")
async def _drafts(endpoint: Endpoint) -> str:
    return _yes(endpoint.drafter() is not None)


@ability("tells whether its model is loaded")
async def _tells(endpoint: Endpoint) -> str:
    able = endpoint.capabilities()
    return "always loaded" if not able.loads else "yes"


@ability("`/v1/embeddings` (SmolLM2 is a chat model)")
async def _embeddings(endpoint: Endpoint) -> str:
    client = getattr(endpoint, "client", None)
    if client is None:
        return "no"
    try:
        response = await client.post(
            "/embeddings", body={"model": endpoint.served_model, "input": "sea"}, cast_to=httpx2.Response
        )
    except openai.APIStatusError:
        return "no"
    return _yes("data" in response.json())
