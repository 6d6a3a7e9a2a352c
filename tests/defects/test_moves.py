"""Attempts at their worst, moves without a pace, losers, and seams of answers that repeat themselves."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import anyio
import httpx2
import openai
import pytest
from defects.asking import ask, client, create, device, preset, prose, question, text_of, tried
from faults.in_memory import RESET, MemoryServer, Reply, anyio_backend, continuing, spoken  # noqa: F401 - a fixture
from faults.proxy_server.origin import begun_by
from scripted_device import ScriptedDevice
from scripted_server import chunk, sse

from disco import Backup, LocalModelError, Timeouts
from disco.endpoints.continuation import Continuation
from disco.errors import EndpointFailure, FailureKind
from disco.events import Delta, Ended, Usage
from disco.profiles import DeviceProfile

pytestmark = pytest.mark.anyio

WORDS = prose(300)
TEXT = "".join(WORDS)
SLOW = spoken(WORDS, first_s=0.2, gap_s=0.1)  # 30 s
FAST_DEVICE = DeviceProfile(name="fast", source="test", prefill_tps=1000.0, decode_tps=200.0, c_s=0.3)


async def unpaced(order: str, **profile):
    """An answer of a slow server that a fast, free device may go on with: its route, its text's times."""
    local = device(answer=TEXT, **{"ttft_s": 0.3, "decode_tps": 200.0, **profile})
    settings = {"timeouts": Timeouts(first_content_s=8.0), "device_profile": FAST_DEVICE}
    times, text = [], ""
    async with client(
        MemoryServer(SLOW), local=local, policy=preset("server_only", order=order), **settings
    ) as one:
        began_at = anyio.current_time()
        stream = await create(one, stream=True)
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                text += chunk.choices[0].delta.content
                times.append(anyio.current_time() - began_at)
    assert text == TEXT
    return stream.route, times


async def test_without_a_pace_make_before_break_moves_the_answer_as_break_before_make_does():
    broken, broken_times = await unpaced("break_before_make")
    made, made_times = await unpaced("make_before_break")
    assert [[t.outcome for t in route.migrations] for route in (broken, made)] == [["switched"]] * 2
    assert broken_times[-1] < 6.0
    assert made_times[-1] < broken_times[-1] + 1.0
    assert [t.endpoint for t in made.attempts] == ["server", "device"]
    assert made.seamless


async def test_without_a_pace_a_target_that_never_comes_is_given_its_time_and_no_more():
    route, times = await unpaced("make_before_break", ttft_s=math.inf)
    assert route.migrations
    assert all(t.outcome != "switched" for t in route.migrations)
    tries = [t for t in route.attempts if t.endpoint == "device"]
    assert max(t.ended_s - t.started_s for t in tries) >= 0.3  # as long as it was expected to take
    assert max(b - a for a, b in itertools.pairwise(times)) < 12.0  # first_content_s is 8
    assert times[-1] < 30.0 + 12.0


PREFILL_TPS = 100.0


def loser(*, parks: bool = True, crashes_at_s: float = math.inf, goes_on: bool = True):
    """A device that loses the race; what becomes of its first attempt then is the test's."""
    crash = EndpointFailure(FailureKind.CRASHED, LocalModelError("Out of memory."))
    on = [0.2, [Delta(" and so on.")], 0.2, Ended("stop", Usage(400, 1))]

    def script(prefix):
        return on if prefix and goes_on else [crashes_at_s, crash]

    return ScriptedDevice(script, parks=parks, prompt_tokens=0)


@pytest.mark.parametrize(
    ("local", "outcomes"),
    [(loser(crashes_at_s=1.0), None), (loser(parks=False), ["switched"])],
    ids=["parked, and crashed", "cannot be parked, and is cancelled"],
)
async def test_a_loser_does_not_hold_the_prompt(local, outcomes):
    """The server wins; its answer is long and the device is free, so it is worth moving whenever that is possible."""
    slow = DeviceProfile(name="slow", source="test", prefill_tps=PREFILL_TPS, decode_tps=50.0, c_s=0.05)
    server = MemoryServer(spoken(prose(100), first_s=0.3, gap_s=0.05))
    policy = preset("race", order="break_before_make")
    async with client(server, local=local, policy=policy, device_profile=slow) as one:
        route = (await create(one, question(400))).route
    assert route.winner == "server"
    assert outcomes in (None, [t.outcome for t in route.migrations])
    for transfer in route.migrations:
        full_s = (route.prompt_tokens + transfer.cut_tokens) / PREFILL_TPS
        assert transfer.expected_s >= full_s > 3.0


async def test_the_breaker_hears_of_parked_losers_that_crash():
    late = DeviceProfile(name="late", source="test", prefill_tps=PREFILL_TPS, decode_tps=50.0, c_s=3.0)
    # Paced, and too short for the slack that a move needs: the loser is parked, and nothing moves.
    policy = preset("race", order="make_before_break", pace_tps=12.0)
    server = MemoryServer(spoken(prose(24), first_s=0.1, gap_s=0.05))
    local = loser(crashes_at_s=0.5, goes_on=False)
    async with client(server, local=local, policy=policy, device_profile=late) as one:
        answers = [await ask(one) for _ in range(10)]
    assert not any(answer.route.migrations for answer in answers)
    rested = [(r.endpoint, r.failure) for answer in answers for r in answer.route.deprioritised]
    assert ("device", "crashed") in rested


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


SPARED = str(Path(__file__).parents[1] / "golden" / "battery-saver.toml")  # prices energy otherwise


@pytest.mark.parametrize(("first", "second"), [("balanced", SPARED), (SPARED, "balanced")])
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
    assert stream.route.policy_cost == pytest.approx(alone[0].policy_cost)
    assert (stream.route.endpoints, others[0].endpoints) == (alone[0].endpoints, alone[1].endpoints)
    (other,), (rates,) = others[0].attempts, alone[1].endpoints
    read = other.prompt_tokens - (1 - rates.cached_share) * other.cached_tokens
    assert others[0].policy_cost == pytest.approx(
        rates.cost_in * read + rates.cost_out * other.completion_tokens
    )


# Tokens of the prompt, of the answer, and how many of the prompt were cached.
ODD = {
    "negative prompt": (-500, 3),
    "negative answer": (9, -7),
    "not a number": (math.nan, math.nan),
    "huge": (10**30, 10**30),
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
    async with client(server, policy=preset("server_only"), budget=budget) as one:
        for stream in [True, False, True][: 1 if name == "huge" else 3]:  # which may use the budget up
            answer = await ask(one, stream=stream)
            told = (answer.text, tried(answer), answer.route.finish_reason)
            assert told == ("The sea is wide.", [("server", None)], "stop")
            assert 0 <= answer.route.policy_cost < math.inf
            (only,) = answer.route.attempts
            assert min(only.prompt_tokens, only.completion_tokens, only.cached_tokens) >= 0
            json.loads(answer.route.to_json())
            facts = answer.route.budget["server_tokens"]
            spent += facts["spent"]
            assert facts["spent"] >= 0
            if name == "huge":
                assert 0 <= facts["left"] <= 2000
            else:  # some ten tokens of a prompt and a few of an answer; what was not used came back
                assert (facts["spent"] <= 100, facts["left"]) == (True, 2000 - spent)


# With the number of characters that the first server writes, about a third.
REPEATS = [("哈" * 200 + "。", 67), ("ACGT" * 60 + ".fa.", 81), ("=" * 240, 80), ("加油！" * 70, 70)]
PROSE = (
    "The quick brown fox jumps over the lazy dog, and then it runs into the wood where nobody sees it again."
)
UNKNOWN = Continuation("trailing")


async def moved(answer: str, dies_at: int, continuation: Continuation, *, repeats: int = 0):
    """The text that arrives and its route, when the first server dies behind `dies_at` characters of `answer`.

    The second one writes what the message it is sent lacks; before that, the last `repeats` characters of the sent
    text again, or all of them (-1).
    """

    def write_on(body):
        sent = begun_by(body)
        assert answer.startswith(sent)
        rest = answer[0 if repeats < 0 else len(sent) - repeats :]
        chunks = [chunk(rest[at : at + 7]) for at in range(0, len(rest), 7)]
        return Reply([sse(*chunks[:3], done=False), sse(*chunks[3:], chunk(finish="stop"))])

    begun = [sse(chunk(answer[at : min(at + 5, dies_at)]), done=False) for at in range(0, dies_at, 5)]
    server = MemoryServer(Reply([*begun, 0.05, RESET]))
    second = Backup(
        base_url=server.also(write_on),
        api_key="none",
        model="m",
        continuation=continuation,
        http_client=httpx2.AsyncClient(transport=server),
    )
    async with client(server, backups=[second], policy=preset("server_only")) as one:
        chunks = await create(one, stream=True)
        text = await text_of(chunks)
    assert [p.endpoint for p in chunks.route.segments] == ["server", "backup-1"]
    return text, chunks.route


WAYS = {
    "flags": (Continuation("flags"), 0, "continued"),
    "told no echo": (Continuation("trailing", echoes=False), 0, "continued"),
    "repeats as declared": (Continuation("prefix", echoes=True), -1, "echo"),
    "nobody knows": (UNKNOWN, 0, "unproved"),
}


@pytest.mark.parametrize(
    ("answer", "dies_at", "continuation", "repeats", "seam"),
    [
        *((*case, *way) for case in REPEATS for way in WAYS.values()),
        # By the word shown last.
        (PROSE, 40, UNKNOWN, -1, "echo"),
        (PROSE, 40, UNKNOWN, 0, "continued"),
    ],
)
async def test_the_whole_answer_arrives_and_a_seam_that_nobody_knows_is_called_unproved(
    answer, dies_at, continuation, repeats, seam
):
    text, route = await moved(answer, dies_at, continuation, repeats=repeats)
    last = route.attempts[-1]
    assert (text, last.seam, route.seamless) == (answer, seam, seam != "unproved")
    assert last.written_chars - last.swallowed_chars == last.text_chars
    assert repeats == 0 or last.swallowed_chars == last.prefix_chars


async def test_text_that_stands_there_twice_is_not_called_seamless():
    """The server repeats a part of what it was sent, which may be what the answer says."""
    text, route = await moved("Row: " + "=" * 240, 80, UNKNOWN, repeats=40)
    assert text.count("=") >= 240
    assert not route.seamless
