"""Several choices (`n`) where no single server writes them all: each is an answer of its own, in virtual time."""

from __future__ import annotations

import anyio
import anyio.to_thread
import httpx2
import openai
import pytest
from defects.asking import client, create, device, preset
from faults.in_memory import MemoryServer, Reply, anyio_backend, spoken  # noqa: F401 - a fixture

from disco import NoEndpointError

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def in_the_loop(monkeypatch):
    """A hook that redacts runs in a thread; a clock that jumps would not wait for it."""

    async def inline(function, *arguments, **how):
        del how
        return function(*arguments)

    monkeypatch.setattr(anyio.to_thread, "run_sync", inline)


SEEDS = {"seed": 5, "max_tokens": 50}


def by_seed(**more):
    """A device whose answer tells the seed that it was given."""
    return device(
        answer=lambda asked: f"one two three of {asked.params.get('seed')} {asked.params.get('n')}",
        decode_tps=10.0,
        features=None,
        **more,
    )


def alone(**more):
    return client(local=by_seed(), preset="private", default_options={"pace_tps": "off"}, **more)


async def test_each_choice_is_an_answer_of_its_own_with_its_own_seed_and_record():
    records = []
    async with alone(on_route=records.append) as one:
        answer = await create(one, n=6, **SEEDS)
    texts = [choice.message.content for choice in answer.choices]
    assert texts == [f"one two three of {5 + at} None" for at in range(6)]
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert len(records) == 6
    assert answer.route in records
    alike = [record.attempts[0] for record in records]
    assert answer.usage.completion_tokens == sum(attempt.completion_tokens for attempt in alike)
    assert answer.usage.prompt_tokens == alike[0].prompt_tokens


async def test_a_stream_has_the_choices_side_by_side_under_one_identity():
    async with alone() as one:
        stream = await create(one, n=6, stream=True, stream_options={"include_usage": True}, **SEEDS)
        chunks = [chunk async for chunk in stream]
    assert len({(chunk.id, chunk.model, chunk.created) for chunk in chunks}) == 1
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    told = [(chunk.choices[0].index, chunk.choices[0]) for chunk in chunks[:-1]]
    for at in range(6):
        mine = [choice for index, choice in told if index == at]
        assert "".join(choice.delta.content or "" for choice in mine) == f"one two three of {5 + at} None"
        assert [choice.delta.role for choice in mine][:2] == ["assistant", None]
        assert [choice.finish_reason for choice in mine] == [None] * (len(mine) - 1) + ["stop"]
    order = [index for index, _ in told]
    assert set(order[: order.index(4)]) == {0, 1, 2, 3}, "four are written at once"
    assert stream.route.finish_reason == "stop"


async def test_the_sdk_s_other_forms_have_them_too():
    async with alone() as one:
        completions = one.chat.completions
        asked = {"model": "m", "messages": [{"role": "user", "content": "Hi."}], "n": 2, **SEEDS}
        raw = await completions.with_raw_response.create(**asked)
        assert [choice["index"] for choice in raw.http_response.json()["choices"]] == [0, 1]
        async with completions.with_streaming_response.create(stream=True, **asked) as response:
            lines = [line async for line in response.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert sum('"finish_reason":"stop"' in line for line in lines) == 2
        async with completions.stream(**asked) as events:
            final = await events.get_final_completion()
        assert [choice.message.content[-6:-5] for choice in final.choices] == ["5", "6"]


async def test_a_server_that_may_be_asked_writes_them_itself():
    whole = b'{"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": []}'
    server = MemoryServer(Reply([whole], headers={"content-type": "application/json"}))
    async with client(server, local=by_seed(), policy=preset("race")) as one:
        await create(one, n=2)
    assert [asked["n"] for asked in server.requests] == [2]


async def test_a_hook_that_redacts_and_a_preset_that_forbids_servers_are_kept():
    server = MemoryServer(spoken(["Hello [NAME_1]."]))
    async with client(server, policy=preset("server_only"), redact=lambda _: {"Ann": "NAME"}) as one:
        answer = await create(one, [{"role": "user", "content": "Ann?"}], n=2, seed=1)
    assert [choice.message.content for choice in answer.choices] == ["Hello Ann."] * 2
    assert [asked["messages"][0]["content"] for asked in server.requests] == ["[NAME_1]?"] * 2
    assert [(asked.get("n"), asked["seed"]) for asked in server.requests] == [(None, 1), (None, 2)]
    async with client(server, local=by_seed(), preset="private") as one:
        assert len((await create(one, n=2)).choices) == 2
    assert len(server.requests) == 2


async def test_the_choices_of_a_stream_are_redacted_and_restored_each_for_itself():
    words = ["Hello [NA", "ME_1]."]  # the placeholder comes in two pieces
    server = MemoryServer(spoken(words))
    async with client(server, policy=preset("server_only"), redact=lambda _: {"Ann": "NAME"}) as one:
        stream = await create(one, [{"role": "user", "content": "Ann?"}], n=2, stream=True)
        chunks = [chunk async for chunk in stream]
    for at in (0, 1):
        mine = [
            choice.delta.content or "" for chunk in chunks for choice in chunk.choices if choice.index == at
        ]
        assert "".join(mine) == "Hello Ann."
        assert not any("[" in text for text in mine)
    assert [asked["messages"][0]["content"] for asked in server.requests] == ["[NAME_1]?"] * 2
    assert "Ann" not in str(server.requests)


async def read(stream):
    async for _ in stream:
        pass


@pytest.mark.parametrize("stream", [False, True])
async def test_a_choice_that_fails_fails_the_answer_and_ends_the_others(stream):
    broken = Reply([*spoken(["I "]).steps[:2], httpx2.ReadError("reset")])
    records = []
    server = MemoryServer(spoken(["A long ", "story."], gap_s=100.0), broken)
    hook = {"redact": lambda _: {}, "on_route": records.append}
    async with client(server, policy=preset("server_only"), **hook) as one:
        started_at = anyio.current_time()
        with pytest.raises(openai.APIConnectionError):
            await read(await create(one, n=2, stream=stream))
        assert anyio.current_time() - started_at < 50
        await anyio.sleep(1)
        assert server.open == 0
    assert len(records) == 2


async def test_a_stream_that_is_closed_early_leaves_nothing_running_and_starts_no_more():
    records = []
    async with alone(on_route=records.append) as one:
        stream = await create(one, n=20, stream=True, **SEEDS)
        await anext(stream)
        await stream.close()
        assert [record.finish_reason for record in records] == ["cancelled"] * 4
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


@pytest.mark.parametrize(
    ("number", "code"), [(129, "integer_above_max_value"), (0, "integer_below_min_value")]
)
async def test_a_number_out_of_range_is_refused_by_name(number, code):
    async with alone() as one:
        with pytest.raises(NoEndpointError) as refused:
            await create(one, n=number)
    assert (refused.value.param, refused.value.code) == ("n", code)
