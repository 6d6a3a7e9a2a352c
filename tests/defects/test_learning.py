"""What a client learns from its answers is true; what it believes is seen in the moves of its route records."""

from __future__ import annotations

import anyio
import pytest
from defects.asking import ask, client, create, device, preset, prose, question, tried
from faults.in_memory import MemoryServer, Reply, anyio_backend, spoken  # noqa: F401 - a fixture
from scripted_server import chunk, sse

from disco import Timeouts
from disco.candidate import TTFT_QUANTILES
from disco.client.endpoint_catalog.observed.statistics import REFIT_EVERY, EndpointStatistics
from disco.endpoints.contract import Capabilities
from disco.profiles import DeviceProfile, Empirical, FlopsPerToken, Rolling
from disco.rates import Rates

pytestmark = pytest.mark.anyio

SERVER_FIRST = preset("server_only", order="break_before_make")
WRITES = spoken(prose(60), first_s=0.2, gap_s=0.02)
HERE = {"local_only": True}


async def believed_s(one, words: int) -> tuple[float, int]:
    """How soon the device is believed to write after so many tokens (the second figure) when an answer moves there."""
    route = (await create(one, question(words, f"probe-{words}"))).route
    (move,) = route.migrations
    assert move.target == "device"
    return move.expected_s, route.prompt_tokens + move.cut_tokens


async def at_once(one, prompts, **disco) -> list:
    """Streams that are all asked for at the same moment."""
    answers = []

    async def read(prompt):
        answers.append(await ask(one, prompt, **disco))

    async with anyio.create_task_group() as group:
        for prompt in prompts:
            group.start_soon(read, prompt)
    return answers


LENGTHS = [60, 900, 300, 1500, 120, 2000, 600, 1200]


async def test_the_fixed_overhead_of_a_device_is_learnt():
    """The learnt line predicts TTFT within 10 %, for short and long prompts, and its rate is that of the device."""
    local = device(overhead_s=0.4, prefill_tps=1000.0, decode_tps=200.0, answer_tokens=20)
    async with client(MemoryServer(WRITES), local=local, policy=SERVER_FIRST) as one:
        for i in range(80):
            await create(one, question(LENGTHS[i % 8] + i, f"number-{i}"), disco=HERE)
        lines = [await believed_s(one, words) for words in (100, 500, 2000)]
    for believed, tokens in lines:
        assert believed == pytest.approx(0.4 + tokens / 1000.0, rel=0.1)
    (short_s, few), _, (long_s, many) = lines
    assert (many - few) / (long_s - short_s) == pytest.approx(1000.0, rel=0.1)


async def test_waiting_for_a_device_is_no_part_of_its_prefill():
    """Eight requests at once, of different lengths, to a device that does one at a time."""
    local = device(overhead_s=0.05, prefill_tps=1000.0, decode_tps=50.0, answer_tokens=20)
    clocks = Timeouts(first_content_s=None)  # that queueing is no silence is the next test's
    async with client(MemoryServer(WRITES), local=local, policy=SERVER_FIRST, timeouts=clocks) as one:
        for turn in range(4):
            answers = await at_once(one, [question(n, f"turn-{turn}-{n}") for n in LENGTHS], **HERE)
            assert [tried(answer) for answer in answers] == [[("device", None)]] * 8
        for words in (500, 2000):
            believed, tokens = await believed_s(one, words)
            assert believed == pytest.approx(0.05 + tokens / 1000.0, rel=0.2)


async def test_waiting_for_a_device_is_no_silence_of_it():
    """Eight at once, of 4 s each, where a silence may last 10 s: the others wait, and the device is never silent."""
    local = device(overhead_s=2.0, decode_tps=10.0, answer_tokens=20)
    clocks = Timeouts(first_content_s=10.0, gap_s=10.0, total_s=None)
    policy = preset("device_only")
    async with client(MemoryServer(WRITES), local=local, policy=policy, timeouts=clocks) as one:
        answers = await at_once(one, [question(10, f"number-{i}") for i in range(8)])
        last = (await create(one)).route
    assert [tried(answer) for answer in answers] == [[("device", None)]] * 8
    assert (last.deprioritised, last.winner) == ((), "device")


# A move costs the device's prefill, so it pays only where enough of the answer is to be expected.
PRICED = DeviceProfile(
    name="priced",
    source="test",
    prefill_tps=1000.0,
    decode_tps=50.0,
    flops=FlopsPerToken(prompt_tokens=(128.0,), prefill=(5e8,), decode=1e9),
)
PAYS_FOR_LONG = preset("server_only", order="break_before_make", rate=1e-10)


async def expects_much(one) -> bool:
    """Whether an answer of the server is moved once it has ten tokens: some thirty more must be expected for that."""
    return bool((await create(one, question(300, "probe"))).route.migrations)


async def test_answer_lengths_are_learnt_once_there_are_as_many_as_are_kept(monkeypatch):
    monkeypatch.setattr("disco.client.endpoint_catalog.observed.statistics.MOST_ANSWERS", 100)

    def length(request) -> str:
        return "".join(prose(400 if "long" in request.messages[0]["content"] else 6))

    local = device(ttft_s=0.01, gap_s=0.0, packet_tokens=400, answer=length)
    async with client(MemoryServer(WRITES), local=local, policy=PAYS_FOR_LONG, device_profile=PRICED) as one:
        assert await expects_much(one)  # so says the profile that it starts with
        for about, answers, much in (("short", 100, False), ("long", 48, True)):
            for _ in range(answers):
                await create(one, question(5, about), disco=HERE)
            assert await expects_much(one) is much


def calling(**what):
    return sse(chunk(tool_calls=[{"index": 0, **what}]), done=False)


CALLS = Reply(
    [
        calling(id="c", type="function", function={"name": "f", "arguments": ""}),
        *(calling(function={"arguments": part}) for part in ('{"a"', ": 1", "}")),
        sse(chunk(finish="tool_calls")),
    ]
)
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


async def test_a_tool_call_is_a_whole_answer_with_a_winner_and_counts_where_lengths_are_learnt():
    settings = {"local": device(answer_tokens=20), "policy": PAYS_FOR_LONG, "device_profile": PRICED}
    async with client(MemoryServer(*[CALLS] * 48, WRITES), **settings) as one:
        for _ in range(48):
            got = await create(one, tools=TOOLS)
        assert not await expects_much(one)
    assert got.choices[0].message.tool_calls[0].function.arguments == '{"a": 1}'
    async with client(MemoryServer(CALLS), policy=preset("server_only")) as one:
        stream = await create(one, tools=TOOLS, stream=True)
        assert any([c.choices[0].delta.tool_calls async for c in stream if c.choices])
    assert [(g.route.finish_reason, g.route.winner) for g in (got, stream)] == [("tool_calls", "server")] * 2


DEVICE_FIRST = """
dispatch.policy = "device_only"
cost.exchange_rate = 1e-8
migration.order = "break_before_make"
playback.pace_tps = "off"
"""


async def test_servers_at_two_addresses_have_statistics_of_their_own(tmp_path):
    """The first writes after 0.2 s, the other one after 6 s."""
    device_first = tmp_path / "device-first.toml"
    device_first.write_text(DEVICE_FIRST)
    quick, slow = (spoken(prose(3), first_s=s, gap_s=0.01) for s in (0.2, 6.0))
    server, believed = MemoryServer(quick), []
    other = server.also(slow)
    local = device(ttft_s=0.1, decode_tps=20.0, answer_tokens=100)
    async with client(server, local=local, policy=preset("server_only")) as first:
        both = (first, first.with_options(base_url=other))
        for asker in both:
            for _ in range(100):
                await create(asker)
        for asker in both:
            (move,) = (await create(asker, disco={"policy": str(device_first)})).route.migrations
            assert move.target == "server"
            believed.append(move.expected_s)
    quick_s, slow_s = believed  # something of the profile that both began with is left
    assert 0.2 <= quick_s < 1.0
    assert 5.0 < slow_s < 7.0


def test_the_quantiles_of_a_servers_first_token_follow_what_was_measured():
    known = EndpointStatistics(ttft=Rolling(prior=Empirical.from_samples([0.5]), prior_weight=1.0))
    assert known.ttft is not None

    def quantiles():
        return known.candidate("server", "any", Rates(), Capabilities()).ttft_quantiles

    assert quantiles() == pytest.approx([0.5] * TTFT_QUANTILES, rel=0.03)
    for _ in range(4 * REFIT_EVERY):
        known.ttft.observe(2.0)
    assert quantiles()[1:] == pytest.approx([2.0] * (TTFT_QUANTILES - 1), rel=0.03)


async def test_a_change_of_the_servers_times_changes_the_next_plans_and_not_only_every_sixteenth():
    """The device waits for the slowest twentieth of the server's answers: soon as long as the slow server takes."""
    takes_s = 0.3
    server = MemoryServer(lambda _: spoken(prose(3), first_s=takes_s, gap_s=0.01))
    local = device(ttft_s=30.0, decode_tps=20.0, answer_tokens=10)
    tail = preset("wait_time", budget=0.05, tail=0.05, rate=1.0)
    async with client(server, local=local, policy=tail) as one:
        for _ in range(5 * REFIT_EVERY + 1):
            route = (await create(one)).route
        assert waits_s(route) < 0.5
        takes_s = 3.0
        for _ in range(8):
            route = (await create(one)).route
        assert waits_s(route) > 2.5
        takes_s = 0.3
        for _ in range(8):
            route = (await create(one)).route
        assert waits_s(route) < 0.5


def waits_s(route) -> float:
    return dict(route.starts)["device"]


async def test_a_server_that_is_always_late_does_not_make_the_device_exceed_its_budget():
    """By the first plans, all requests use the device: the server was never known to be that slow."""
    local = device(ttft_s=0.1, decode_tps=200.0, answer_tokens=10)
    read, used = 0, 0
    async with client(
        MemoryServer(spoken(prose(3), first_s=20.0, gap_s=0.01)),
        local=local,
        policy=preset("wait_time", budget=0.2, rate=1.0),
    ) as one:
        for number in range(60):
            route = (await create(one, question(300 if number % 4 else 100))).route
            read += route.prompt_tokens
            used += route.prompt_tokens * any(attempt.endpoint == "device" for attempt in route.attempts)
    assert used <= 0.2 * read + 2 * 350  # one prompt, and the end of a window yet to come
    assert used > 2 * 350  # and not because the device is no longer asked
