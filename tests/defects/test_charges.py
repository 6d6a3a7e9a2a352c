"""C1: an answer is charged at the rates of its own preset, whatever is asked beside it."""

from __future__ import annotations

import anyio
import pytest
from defects.asking import client, device, question, streamed, text_of, virtually

HERE, THERE = question(20, "here"), question(20, "there")


def asker():
    return client(local=device(ttft_s=0.1, decode_tps=50.0, answer_tokens=40), policy="balanced")


async def alone(messages, **options):
    async with asker() as one:
        stream = await streamed(one, messages, **options)
        await text_of(stream)
        return stream.route


def own_price(route, reference) -> float:
    """What a route's tokens cost at the rates of an answer that nothing ran beside."""
    (rates,) = reference.endpoints
    (try_,) = route.attempts
    computed = try_.prompt_tokens - try_.cached_tokens
    return (
        rates.cost_in * (computed + rates.cached_share * try_.cached_tokens)
        + rates.cost_out * try_.completion_tokens
    )


@pytest.mark.parametrize(("first", "second"), [("balanced", "battery-saver"), ("battery-saver", "balanced")])
def test_a_request_with_another_preset_does_not_reprice_an_answer_that_runs(first, second):
    """On c5a62d7 the first answer cost 6.3e-04 USD instead of 2.5e-07 (balanced first), or the other way round."""

    async def main():
        reference, other_reference = await alone(HERE, policy=first), await alone(THERE, policy=second)
        assert reference.endpoints[0].cost_out != pytest.approx(other_reference.endpoints[0].cost_out)
        others = []

        async def ask_beside():
            stream = await streamed(one, THERE, policy=second)
            await text_of(stream)
            others.append(stream.route)

        async with asker() as one, anyio.create_task_group() as group:
            stream = await streamed(one, HERE, policy=first)
            group.start_soon(ask_beside)
            await anyio.sleep(0.1)  # it is planned, and waits for the device
            await text_of(stream)
        route = stream.route
        assert route.cost == pytest.approx(reference.cost)
        assert route.cost == pytest.approx(own_price(route, reference))
        assert route.endpoints == reference.endpoints
        (other,) = others
        assert other.cost == pytest.approx(own_price(other, other_reference))

    virtually(main)
