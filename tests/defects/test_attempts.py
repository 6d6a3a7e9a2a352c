"""What attempts do at their worst: stop without a word, run beside one of other rates, report nonsense as usage."""

from __future__ import annotations

import json
import math

import anyio
import openai
import pytest
from defects.asking import (
    MemoryServer,
    Reply,
    ask,
    client,
    continuing,
    create,
    device,
    preset,
    question,
    text_of,
    tried,
)
from defects.parts import ScriptedDevice
from faults.in_memory import anyio_backend  # noqa: F401 - a fixture
from scripted_server import chunk, sse

from disco.events import Delta

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("words", [[], ["The", " sea"]], ids=["before any text", "in mid-answer"])
async def test_an_attempt_that_stops_without_an_end_has_failed(words, stream):
    quitting = ScriptedDevice(lambda _: [0.1, *([Delta(word)] for word in words), 0.1])
    server = MemoryServer(continuing("The sea is wide."))
    with anyio.fail_after(10):
        async with client(server, local=quitting, policy=preset("device_only")) as one:
            answer = await ask(one, stream=stream)
        async with client(local=quitting, policy=preset("device_only")) as one:
            with pytest.raises(openai.OpenAIError) as caught:
                await ask(one, stream=stream)
    assert (answer.text, [name for name, _ in tried(answer)]) == ("The sea is wide.", ["device", "server"])
    assert answer.route.attempts[0].failure is not None
    assert (caught.value.partial_text, caught.value.route.finish_reason) == ("".join(words), None)


@pytest.mark.parametrize(("first", "second"), [("balanced", "battery-saver"), ("battery-saver", "balanced")])
async def test_a_request_with_another_preset_does_not_reprice_an_answer_that_runs(first, second):
    here, there = question(20, "here"), question(20, "there")
    alone, others = [], []

    def asker():
        return client(local=device(ttft_s=0.1, decode_tps=50.0, answer_tokens=40), policy="balanced")

    for messages, policy in ((here, first), (there, second)):
        async with asker() as one:
            alone.append((await ask(one, messages, policy=policy)).route)
    assert alone[0].endpoints[0].cost_out != pytest.approx(alone[1].endpoints[0].cost_out)

    async def ask_beside():
        others.append((await ask(one, there, policy=second)).route)

    async with asker() as one, anyio.create_task_group() as group:
        stream = await create(one, here, stream=True, disco={"policy": first})
        group.start_soon(ask_beside)
        await anyio.sleep(0.1)  # it is planned, and waits for the device
        await text_of(stream)
    assert stream.route.cost == pytest.approx(alone[0].cost)
    assert (stream.route.endpoints, others[0].endpoints) == (alone[0].endpoints, alone[1].endpoints)
    (other,), (rates,) = others[0].attempts, alone[1].endpoints
    read = other.prompt_tokens - (1 - rates.cached_share) * other.cached_tokens
    assert others[0].cost == pytest.approx(rates.cost_in * read + rates.cost_out * other.completion_tokens)


# Tokens of the prompt, of the answer, and how many of the prompt were cached.
ODD = {
    "negative prompt": (-500, 3),
    "negative answer": (9, -7),
    "words": ("nine", "three"),
    "fractions": (9.5, 3.5),
    "not a number": (math.nan, math.nan),
    "infinite": (math.inf, -math.inf),
    "huge": (10**30, 10**30),
    "lists": ([9], {"three": 3}),
    "nothing": (None, True),
    "negative cached": (9, 3, -5),
    "cached not a number": (9, 3, math.nan),
    "huge cached": (9, 3, 10**30),
}


@pytest.mark.parametrize("name", ODD)
async def test_an_answer_with_odd_usage_completes_is_charged_and_gives_its_reservation_back(name):
    prompt, completion, *cached = ODD[name]
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt}
    if cached:
        counts["prompt_tokens_details"] = {"cached_tokens": cached[0]}
    end = {**chunk(), "choices": [], "usage": counts}
    server = MemoryServer(Reply([sse(chunk("The sea "), chunk("is wide."), chunk(finish="stop"), end)]))
    spent, budget = 0.0, {"server_tokens": 2000, "window_s": 3600.0}
    for given in (None, budget):
        async with client(server, policy=preset("server_only"), budget=given) as one:
            for stream in [True, False, True][: 1 if name == "huge" else 3]:  # which may use the budget up
                answer = await ask(one, stream=stream)
                route = answer.route
                assert (answer.text, tried(answer), route.finish_reason) == (
                    "The sea is wide.",
                    [("server", None)],
                    "stop",
                )
                assert 0 <= route.cost < math.inf
                (only,) = route.attempts
                assert min(only.prompt_tokens, only.completion_tokens, only.cached_tokens) >= 0
                json.loads(route.to_json())
                if given:
                    facts = route.budget["server_tokens"]
                    spent += facts["spent"]
                    assert facts["spent"] >= 0
                    if name == "huge":
                        assert 0 <= facts["left"] <= 2000
                    else:  # some ten tokens of a prompt and a few of an answer; what was not used came back
                        assert (facts["spent"] <= 100, facts["left"]) == (True, 2000 - spent)
