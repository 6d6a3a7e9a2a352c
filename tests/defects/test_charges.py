"""An answer is charged at the rates of its own preset, whatever is asked beside it."""

from __future__ import annotations

import anyio
import pytest
from defects.asking import ask, client, device, question, streamed, text_of
from faults.in_memory import anyio_backend  # noqa: F401 - a fixture

HERE, THERE = question(20, "here"), question(20, "there")


def asker():
    return client(local=device(ttft_s=0.1, decode_tps=50.0, answer_tokens=40), policy="balanced")


def own_price(route, reference) -> float:
    """What a route's tokens cost at the rates of an answer that nothing ran beside."""
    (rates,) = reference.endpoints
    (try_,) = route.attempts
    computed = try_.prompt_tokens - try_.cached_tokens
    read = rates.cost_in * (computed + rates.cached_share * try_.cached_tokens)
    return read + rates.cost_out * try_.completion_tokens


@pytest.mark.anyio
@pytest.mark.parametrize(("first", "second"), [("balanced", "battery-saver"), ("battery-saver", "balanced")])
async def test_a_request_with_another_preset_does_not_reprice_an_answer_that_runs(first, second):
    alone = []
    for messages, policy in ((HERE, first), (THERE, second)):
        async with asker() as one:
            alone.append((await ask(one, messages, policy=policy)).route)
    assert alone[0].endpoints[0].cost_out != pytest.approx(alone[1].endpoints[0].cost_out)
    others = []

    async def ask_beside():
        others.append((await ask(one, THERE, policy=second)).route)

    async with asker() as one, anyio.create_task_group() as group:
        stream = await streamed(one, HERE, policy=first)
        group.start_soon(ask_beside)
        await anyio.sleep(0.1)  # it is planned, and waits for the device
        await text_of(stream)
    route, (other,) = stream.route, others
    assert route.cost == pytest.approx(alone[0].cost)
    assert route.cost == pytest.approx(own_price(route, alone[0]))
    assert route.endpoints == alone[0].endpoints
    assert other.cost == pytest.approx(own_price(other, alone[1]))
