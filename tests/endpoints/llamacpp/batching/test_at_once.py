"""The real model with several slots: answers at once are those that are written one by one."""

from __future__ import annotations

import anyio
import pytest

from disco.errors import EndpointFailure, LocalModelError
from disco.events import Ended, Parked
from disco.request import Prefix, Request
from disco.testing.asking import first_content, next_event, parked
from tests.endpoints.llamacpp.answers import complete, fresh, until

pytestmark = [pytest.mark.real, pytest.mark.anyio]

# Rows beside others differ from rows alone in the last bits. So no two tokens may come close: with these seeds the two
# best scores are 0.38 apart everywhere.
ASKED = {
    "Tell me about rivers.": 4,
    "Write two sentences about Paris.": 4,
    "Name three colours.": 17,
    "What is a mill?": 4,
    "Count to ten.": 0,
    "Tell me about the sea.": 1,
    "Who was Ada Lovelace?": 1,
    "Say hello in French.": 12,
}
NO_END = {"0": -100, "2": -100}


def request_of(content, tokens=12, **params):
    given = {"temperature": 0.8, "max_tokens": tokens, "logit_bias": NO_END, **params}
    return Request([{"role": "user", "content": content}], "m", given)


async def all_at_once(endpoint, asked):
    found = {}

    async def one(content, seed):
        found[content] = await complete(endpoint, request_of(content, seed=seed))

    async with anyio.create_task_group() as group:
        for content, seed in asked.items():
            group.start_soon(one, content, seed)
    return found


async def test_eight_at_once_are_to_the_byte_what_they_are_one_by_one(slots_model):
    alone = {
        content: await complete(slots_model, request_of(content, seed=seed))
        for content, seed in ASKED.items()
    }
    passes = slots_model.pulse[1]
    found = await all_at_once(slots_model, ASKED)
    # 96 tokens, in passes of up to four rows.
    assert slots_model.pulse[1] - passes < 90
    for content, (text, deltas, ended) in found.items():
        expected, parts, end = alone[content]
        assert (text, [delta.ids for delta in deltas]) == (expected, [delta.ids for delta in parts])
        assert (ended.finish_reason, ended.usage.completion_tokens) == (end.finish_reason, 12)
    assert slots_model.capabilities().waiting == 0


async def test_others_write_on_while_one_is_paused_one_follows_one_is_parked_and_one_leaves(slots_model):
    rivers, paris, *others = ASKED
    expected = {
        content: (await complete(slots_model, request_of(content, seed=ASKED[content])))[0]
        for content in (rivers, paris, *others[:4])
    }
    texts = {}
    async with anyio.create_task_group() as group:
        paused = slots_model.open(request_of(rivers, seed=ASKED[rivers]))
        async with paused, slots_model.open(request_of(others[4])) as follower:
            texts[rivers] = "".join(delta.text for delta in await next_event(paused))
            assert paused.pause()
            assert follower.follow()
            await parked(follower)

            async def write(content):
                texts[content] = (await complete(slots_model, request_of(content, seed=ASKED[content])))[0]

            async def is_parked():
                async with slots_model.open(request_of("Say nothing.")) as attempt:
                    assert attempt.park()
                    async for event in attempt:
                        if isinstance(event, Ended):
                            assert event.finish_reason == "parked"

            for content in others[:4]:
                group.start_soon(write, content)
            group.start_soon(is_parked)
            async with slots_model.open(request_of("Tell me a story.", 500)) as leaving:
                await first_content(leaving)
            assert follower.extend(Prefix("The sea is", tokens=3))
            while not isinstance(await anext(follower), Parked):
                pass
            await until(lambda: all(content in texts for content in others[:4]))
            assert paused.resume()
            async for event in paused:
                if isinstance(event, list):
                    texts[rivers] += "".join(delta.text for delta in event)
    assert texts == {content: expected[content] for content in (rivers, *others[:4])}


async def test_a_load_goes_on_when_who_asked_has_left_and_its_failure_reaches_all_who_wait(tmp_path):
    async with fresh(slots=2) as endpoint:
        with anyio.move_on_after(0.02):
            await complete(endpoint, request_of("Hello!"))
        await until(lambda: endpoint.capabilities().ready)
        assert endpoint.capabilities().load_s > 0
    async with fresh(model=tmp_path / "none.gguf") as endpoint:
        failures = []

        async def fails():
            try:
                await complete(endpoint, request_of("Hello!"))
            except EndpointFailure as failure:
                failures.append(failure)

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(fails)
        assert len(failures) == 5
        assert all("no model file" in str(failure.error) for failure in failures)
        assert not any(isinstance(failure.error, LocalModelError) for failure in failures)
        assert endpoint.capabilities().waiting == 0
