"""The model is measured through its slots, and alone: whoever comes meanwhile waits."""

from __future__ import annotations

import anyio
import pytest

from tests.endpoints.llamacpp.answers import ask, complete

pytestmark = [pytest.mark.real, pytest.mark.anyio]


async def test_the_model_is_measured_behind_an_answer_that_is_written_and_before_one_that_comes_later(
    slots_model,
):
    request = ask("Count to a thousand.", max_tokens=60, logit_bias={"2": -100, "0": -100})
    order, steps = [], []

    async def write(name):
        _, _, ended = await complete(slots_model, request)
        assert ended.usage.completion_tokens == 60
        order.append(name)

    async def measure():
        numbers = {"prompt_tokens": (16, 100, 10**6), "depths": (40,), "decode_tokens": 4, "repeats": 2}
        found = await slots_model.measure(**numbers, progress=lambda *step: steps.append(step))
        assert [one.tokens for one in found.prefill] == [16, 100] * 2  # what does not fit is left out
        assert [one.depth_tokens for one in found.decode] == [40] * 2
        assert all(one.seconds_s > 0 for one in found.prefill)
        assert all(one.tps > 0 for one in found.decode)
        assert (found.load_s > 0, found.threads, found.context_tokens) == (True, 1, 2048)
        order.append("measured")

    async with anyio.create_task_group() as group, slots_model.open(request) as attempt:
        await anext(attempt)  # it is being written
        group.start_soon(measure)
        group.start_soon(write, "late")
        events = [event async for event in attempt]
    assert events[-1].usage.completion_tokens == 60
    assert order == ["measured", "late"]
    assert steps == [(done, 6) for done in range(1, 7)]
