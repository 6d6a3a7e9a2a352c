"""Whatever a server says it has used, the answer completes, is charged and gives its reservation back."""

from __future__ import annotations

import json
import math

import pytest
from defects.asking import MemoryServer, Reply, ask, client, preset
from faults.in_memory import anyio_backend  # noqa: F401 - a fixture
from scripted_server import chunk, sse

BUDGET = {"server_tokens": 2000, "window_s": 3600.0}
# Tokens of the prompt, of the answer, and how many of the prompt were cached.
ODD = {
    "negative": (-500, -7),
    "negative prompt": (-500, 3),
    "negative answer": (9, -7),
    "words": ("nine", "three"),
    "digits": ("9", "3"),
    "fractions": (9.5, 3.5),
    "not a number": (math.nan, math.nan),
    "infinite": (math.inf, math.inf),
    "minus infinite": (-math.inf, 3),
    "huge": (10**30, 10**30),
    "lists": ([9], {"three": 3}),
    "true": (True, False),
    "nothing": (None, None),
    "negative cached": (9, 3, -5),
    "cached in words": (9, 3, "five"),
    "cached not a number": (9, 3, math.nan),
    "huge cached": (9, 3, 10**30),
}


def answering(prompt, completion, cached=None):
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt}
    if cached is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    last = {**chunk(), "choices": [], "usage": counts}
    return MemoryServer(Reply([sse(chunk("The sea "), chunk("is wide."), chunk(finish="stop"), last)]))


@pytest.mark.anyio
@pytest.mark.parametrize("budget", [None, BUDGET], ids=["free", "budget"])
@pytest.mark.parametrize("name", ODD)
async def test_an_answer_with_odd_usage_completes_and_is_charged(name, budget):
    spent = 0.0
    async with client(answering(*ODD[name]), policy=preset("server_only"), budget=budget) as one:
        # A huge usage may use the budget up.
        for stream in [True, False, True, False][: 1 if name == "huge" and budget else 4]:
            answer = await ask(one, stream=stream)
            route = answer.route
            assert answer.text == "The sea is wide."
            assert route.finish_reason == "stop"
            assert 0 <= route.cost < math.inf
            (only,) = route.attempts
            assert only.failure is None
            assert min(only.prompt_tokens, only.completion_tokens, only.cached_tokens) >= 0
            json.loads(route.to_json())
            if budget:
                facts = route.budget["server_tokens"]
                spent += facts["spent"]
                assert facts["spent"] >= 0
                assert 0 <= facts["left"] <= budget["server_tokens"]
                if name != "huge":  # what was not used came back
                    assert facts["spent"] <= 100  # a prompt of some ten tokens and an answer of a few
                    assert facts["left"] == budget["server_tokens"] - spent
