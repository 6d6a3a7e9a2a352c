"""A4: whatever a server says it has used, the answer completes, is charged and gives its reservation back."""

from __future__ import annotations

import json
import math

import pytest
from defects.asking import Reply, Server, client, preset, streamed, text_of, virtually, whole
from scripted_server import chunk, sse

SERVER_ONLY = preset("server_only")
BUDGET = {"server_tokens": 2000, "window_s": 3600.0}
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
}


def answering(prompt, completion, cached=None):
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt}
    if cached is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    last = {**chunk(), "choices": [], "usage": counts}
    return Server(Reply([sse(chunk("The sea "), chunk("is wide."), chunk(finish="stop"), last)]))


async def ask(one, *, streams: bool):
    if streams:
        chunks = await streamed(one)
        return await text_of(chunks), chunks.route
    got = await whole(one)
    return got.choices[0].message.content, got.route


def check_route(route) -> None:
    assert route.finish_reason == "stop"
    assert math.isfinite(route.cost)
    assert route.cost >= 0
    (only,) = route.attempts
    assert only.failure is None
    assert only.prompt_tokens >= 0
    assert only.completion_tokens >= 0
    assert only.cached_tokens >= 0
    json.loads(route.to_json())


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("name", ODD)
def test_an_answer_with_odd_usage_completes_and_has_its_route(name, streams):
    """On c5a62d7 negative counts: "finish_reason" of None, or no route for ever (ValueError in the ledger); words, NaN,
    infinities and lists: APIConnectionError "failed with ValueError" after the whole text. What can be made a number
    (digits, fractions, huge, true) and nothing at all did no harm, and must not.
    """

    async def main():
        async with client(answering(*ODD[name]), policy=SERVER_ONLY) as one:
            text, route = await ask(one, streams=streams)
        assert text == "The sea is wide."
        check_route(route)

    virtually(main)


@pytest.mark.parametrize("cached", [-5, "five", math.nan, 10**30], ids=str)
def test_odd_counts_of_cached_tokens_are_no_failure(cached):
    """On c5a62d7 -5: no route for ever; "five" and NaN: APIConnectionError after the whole text. 10**30 did no harm."""

    async def main():
        async with client(answering(9, 3, cached), policy=SERVER_ONLY) as one:
            text, route = await ask(one, streams=True)
        assert text == "The sea is wide."
        check_route(route)

    virtually(main)


@pytest.mark.parametrize("name", [n for n in ODD if n != "huge"])
def test_a_budget_gets_back_what_an_answer_with_odd_usage_did_not_use(name):
    """On c5a62d7 negative counts: "ValueError: nothing costs less than nothing" and the reservation was kept for good;
    words, NaN, infinities and lists: APIConnectionError after the whole text. The others did no harm.
    """

    async def main():
        async with client(answering(*ODD[name]), policy=SERVER_ONLY, budget=BUDGET) as one:
            spent = 0.0
            for _ in range(4):
                text, route = await ask(one, streams=True)
                assert text == "The sea is wide."
                check_route(route)
                facts = route.budget["server_tokens"]
                assert 0 <= facts["spent"] <= 100  # a prompt of some ten tokens and an answer of a few
                spent += facts["spent"]
                assert facts["left"] == BUDGET["server_tokens"] - spent

    virtually(main)


def test_a_huge_usage_leaves_the_budget_in_order():
    """It may use the budget up, or be taken for nonsense; the numbers stay numbers. Passes on c5a62d7."""

    async def main():
        async with client(answering(10**30, 10**30), policy=SERVER_ONLY, budget=BUDGET) as one:
            text, route = await ask(one, streams=True)
        assert text == "The sea is wide."
        check_route(route)
        facts = route.budget["server_tokens"]
        assert 0 <= facts["left"] <= BUDGET["server_tokens"]
        assert facts["spent"] >= 0

    virtually(main)
