"""Divided answers meet servers and devices that fail, in virtual time: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from faults.dividing import (
    ANSWER,
    NAMES,
    PIECES,
    Fault,
    device,
    dividing,
    question,
    whole,
    writes,
)
from faults.in_memory import MemoryServer, Reply
from faults.lab import get

from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault as DeviceFault
from disco.errors import DiscoError, FailureKind

pytestmark = pytest.mark.anyio


def limits_sent(server: MemoryServer) -> list[dict[str, int]]:
    return [{name: body[name] for name in NAMES if name in body} for body in server.requests]


def at_rest(server: MemoryServer, local: SimulatedEndpoint) -> None:
    assert (server.open, local.busy, local._slots.following) == (0, 0, [])


async def divided(fault: Fault, local: SimulatedEndpoint | None = None, **more: Any) -> Any:
    server, local = MemoryServer(writes(fault)), local or device()
    async with dividing(server, local, **more) as client:
        got = await get(client, messages=question())
    at_rest(server, local)
    return got, server


async def test_the_server_begins_and_the_device_goes_on():
    got, server = await divided(Fault())
    whole(got)
    assert got.writers == ["server", "device"]
    assert got.route.finish_reason == "stop"
    share = got.route.assist.tokens
    assert limits_sent(server) == [{"max_tokens": share}]
    assert got.route.attempts[0].completion_tokens == share
    assert got.route.pace.late_tokens == 0


@pytest.mark.parametrize("after", [0, 3, -1])
async def test_when_the_server_dies_the_device_goes_on(after):
    """Before its first token, early, and with all of its tokens but one."""
    share = (await divided(Fault()))[0].route.assist.tokens
    got, server = await divided(Fault(dies_after=after % share))
    whole(got)
    assert len(server.requests) == 1
    assert got.writers == (["server", "device"] if after else ["device"])
    assert got.route.assist.outcome == ("handed_over" if after else "heir_first")


async def test_a_server_that_ignores_the_limit_is_stopped_and_sent_the_other_name_and_then_not_divided():
    server, local = MemoryServer(writes(Fault(ignores=NAMES, gap_s=0.0))), device()
    async with dividing(server, local) as client:
        answers = [await get(client, messages=question(about=f"sea {n}")) for n in range(3)]
    for got in answers:
        whole(got)
    share = answers[0].route.assist.tokens
    assert share < len(PIECES) - 10
    assert [got.route.assist.over_limit for got in answers[:2]] == [True, True]
    assert limits_sent(server)[:2] == [{"max_tokens": share}, {"max_completion_tokens": share}]
    assert answers[0].route.attempts[0].tokens <= share + 6
    assert answers[2].route.assist.why == "endpoints"
    assert not any(limits_sent(server)[2:])
    at_rest(server, local)


async def test_a_server_that_refuses_one_name_is_sent_the_other_which_is_remembered():
    server, local = MemoryServer(writes(Fault(refuses=("max_tokens",)))), device()
    async with dividing(server, local) as client:
        answers = [await get(client, messages=question(about=f"sea {n}")) for n in range(2)]
    for got in answers:
        whole(got)
        assert got.writers == ["server", "device"]
    assert [list(sent) for sent in limits_sent(server)] == [[NAMES[0]], [NAMES[1]], [NAMES[1]]]


async def test_a_server_that_refuses_both_names_is_stopped_by_hand_and_then_not_divided():
    server, local = MemoryServer(writes(Fault(refuses=NAMES))), device()
    async with dividing(server, local) as client:
        answers = [await get(client, messages=question(about=f"sea {n}")) for n in range(2)]
    for got in answers:
        whole(got)
    assert [list(sent) for sent in limits_sent(server)][:3] == [[NAMES[0]], [NAMES[1]], []]
    assert answers[0].writers == ["server", "device"]
    assert answers[0].route.pace.ttft_released_s < 3.0
    assert answers[1].route.assist.why == "endpoints"


async def test_an_answer_that_ends_early_is_complete():
    text = "".join(PIECES[:5])
    server, local = MemoryServer(writes(Fault(ends_after=5))), device()
    async with dividing(server, local) as client:
        got = await get(client, messages=question())
    whole(got, text)
    assert (got.writers, got.route.assist.outcome) == (["server"], "complete")
    assert got.route.finish_reason == "stop"
    at_rest(server, local)


async def test_a_server_that_uses_its_tokens_up_for_hidden_thoughts_is_asked_again_without_a_limit():
    server, local = MemoryServer(writes(Fault(hidden=85))), device()
    async with dividing(server, local) as client:
        got = await get(client, messages=question())
        again = await get(client, messages=question(about="lake"))
    for one in (got, again):
        whole(one)
    assert (got.writers, got.route.assist.outcome) == (["server"], "not_text")
    assert [bool(sent) for sent in limits_sent(server)][:2] == [True, False]
    assert again.route.assist.why == "endpoints"
    at_rest(server, local)


async def test_an_error_about_a_prompt_that_is_too_long_does_not_tell_of_the_limits_name():
    said = "'max_tokens' is too large: 50. This model's maximum context length is 512 tokens."
    body = json.dumps({"error": {"message": said}}).encode()
    refusal = Reply([body], 400, {"content-type": "application/json"})
    server, local = MemoryServer(refusal, writes()), device()
    async with dividing(server, local) as client:
        answers = [await get(client, messages=question(about=f"sea {n}")) for n in range(2)]
    for got in answers:
        whole(got)
    assert [list(sent) for sent in limits_sent(server)] == [[NAMES[0]]] * 2
    assert [got.writers for got in answers] == [["device"], ["server", "device"]]


THOUGHT = {"reasoning_content": "Let me see."}
CALL = {
    "tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}]
}


@pytest.mark.parametrize("begins", [THOUGHT, CALL], ids=["a thought", "a call"])
async def test_a_server_that_begins_with_no_text_is_asked_again_without_a_limit(begins):
    server, local = MemoryServer(writes(Fault(begins=(begins,) * 3))), device()
    async with dividing(server, local) as client:
        got = await get(client, messages=question())
        again = await get(client, messages=question(about="lake"))
    whole(got)
    assert (got.writers, got.route.assist.outcome) == (["server"], "not_text")
    assert [bool(sent) for sent in limits_sent(server)][:2] == [True, False]
    whole(again)
    if begins is THOUGHT:  # the next one may be text, where the first one was a call
        assert again.route.assist.why == "endpoints"
    at_rest(server, local)


@pytest.mark.parametrize("at_s", [0.1, 2.0])
async def test_when_the_device_dies_while_it_reads_the_server_goes_on(at_s):
    broken = DeviceFault(0, kind=FailureKind.CRASHED, silence_s=at_s, at_once=True)
    got, server = await divided(Fault(), device(fault=broken))
    whole(got)
    assert set(got.writers) == {"server"}
    assert got.route.assist.outcome == "heir_lost"
    assert len(server.requests) == 2


async def test_a_device_that_is_ready_first_writes_the_whole_answer():
    got, server = await divided(Fault(first_s=9.0))
    whole(got)
    assert (got.writers, got.route.assist.outcome) == (["device"], "heir_first")
    assert len(server.requests) == 1


async def test_the_end_of_the_servers_part_is_not_shown():
    """Neither as a finish reason, nor as a usage of its own."""
    server, local = MemoryServer(writes()), device()
    asked: Any = {"model": "m", "messages": question()}
    async with dividing(server, local) as client:
        stream = await client.chat.completions.create(
            stream=True, stream_options={"include_usage": True}, **asked
        )
        chunks = [chunk async for chunk in stream]
        async with client.chat.completions.stream(**asked) as helped:
            final = await helped.get_final_completion()
        events = [
            event
            async for event in await client.responses.create(model="m", input=asked["messages"], stream=True)
        ]
    assert stream.route.assist.outcome == "handed_over"
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices]
    assert [reason for reason in reasons if reason is not None] == ["stop"]
    assert sum(choice.delta.role is not None for chunk in chunks for choice in chunk.choices) == 1
    (counted,) = [chunk.usage for chunk in chunks if chunk.usage is not None]
    assert counted.completion_tokens == stream.route.answer_tokens
    assert len({chunk.id for chunk in chunks}) == 1
    assert final.choices[0].finish_reason == "stop"
    assert final.choices[0].message.content == ANSWER
    assert [event.type for event in events if event.type.endswith(("completed", "incomplete"))][-1:] == [
        "response.completed"
    ]
    assert events[-1].response.output_text == ANSWER
    assert events[-1].response.status == "completed"


@pytest.mark.parametrize("limit", [20, 85])
async def test_the_applications_own_limit_holds_for_the_whole_answer(limit):
    server, local = MemoryServer(writes()), device()
    async with dividing(server, local) as client:
        got = await get(client, messages=question(), max_tokens=limit)
    whole(got, "".join(PIECES[:limit]).rstrip() if got.writers == ["device"] else got.text)
    assert ANSWER.startswith(got.text)
    assert got.route.answer_tokens == limit
    assert got.route.finish_reason == "length"
    assert (got.route.assist.outcome == "handed_over") == (limit == 85)
    at_rest(server, local)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"], indirect=True)
async def test_a_reader_may_leave_at_any_moment():
    """While both are silent, at each token, at the hand-over, and while the device writes."""
    routes: list[Any] = []
    for after_s in (0.0, 0.2, 0.5, 0.51, 0.9, 1.5, 1.55, 2.5, 3.2, 3.36, 3.376, 3.4, 4.4):
        server, local = MemoryServer(writes()), device()
        async with dividing(server, local, on_route=routes.append) as client:
            with anyio.move_on_after(after_s):
                await get(client, messages=question())
            await anyio.sleep(1.0)
            at_rest(server, local)
    assert {route.finish_reason for route in routes} == {"cancelled"}
    assert all(a.outcome != "running" and a.ended_s is not None for route in routes for a in route.attempts)


async def test_a_client_that_is_closed_leaves_nothing_behind():
    server, local = MemoryServer(writes()), device()
    client = dividing(server, local)
    ends: list[object] = []

    async def ask() -> None:
        try:
            ends.append(await get(client, messages=question()))
        except DiscoError as error:
            ends.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        tasks.start_soon(ask)
        await anyio.sleep(1.2)
        assert server.open + local.busy > 0
        await client.close()
    assert len(ends) == 2
    at_rest(server, local)


async def test_two_answers_at_once_share_the_device():
    """It reads one prompt after the other; both answers are whole, and neither has the other's text."""
    server, local = MemoryServer(writes()), device()
    got: list[Any] = []

    async def ask(about: str) -> None:
        got.append(await get(client, messages=question(about=about)))

    async with dividing(server, local) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(ask, "sea")
        tasks.start_soon(ask, "lake")
    for one in got:
        whole(one)
    at_rest(server, local)
