"""An answer that rises meets tiers that are down, slow, strict or dying, in virtual time: it completes all the same."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from faults.in_memory import MemoryServer
from faults.lab import MESSAGES
from faults.rising import (
    DISPLAYS,
    DOUBT,
    DOUBTED,
    GOES_ON,
    SHOWN,
    TEXT,
    TRUSTED,
    Kept,
    asking,
    doubtful,
    local,
    preset,
    says,
)

from disco import AsyncDisco, Disco
from disco.client.chat.revised_text import RevisedText
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile
from disco.errors import DiscoError, FailureKind

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Got:
    text: str
    route: Any
    retracted: int


async def read(client: AsyncDisco, *, stream: bool, max_tokens: int | None = None, **options: Any) -> Got:
    asked: dict[str, Any] = {"model": "higher", "messages": MESSAGES, "extra_body": {"disco": options}}
    if max_tokens is not None:
        asked["max_tokens"] = max_tokens
    with anyio.fail_after(300):
        if not stream:
            whole = await client.chat.completions.create(**asked)
            assert whole.choices[0].logprobs is None
            return Got(whole.choices[0].message.content or "", whole.route, 0)
        text, roles = RevisedText(), 0
        async with await client.chat.completions.create(stream=True, **asked) as chunks:
            async for each in chunks:
                assert all(choice.logprobs is None for choice in each.choices)
                roles += sum(choice.delta.role is not None for choice in each.choices)
                text.add(each)
            assert roles == 1, "the SDK's helpers join roles as they join texts"
            return Got(text.text, chunks.route, text.revisions)


def sound(got: Got, *, display: str, stream: bool) -> None:
    """A whole answer: no text is taken back but under "revise", and only a tier that died while it was read is
    followed by another one in mid-sentence."""
    route = got.route
    assert route.finish_reason == "stop"
    assert route.seamless
    assert all(a.ended_s is not None and a.outcome != "running" for a in route.attempts)
    assert route.segments[-1].end_char == len(got.text)
    assert not got.retracted or (display == "revise" and stream)
    if any(a.failure and a.kept_tokens for a in route.attempts):
        assert stream
    else:
        assert got.text in TEXT.values()


# Servers that give no log probabilities: their answers are not judged, and are kept.
STRICT = ("refuses", "ignores")
FAULTS = ("down", "silent", "429", "dies", "stalls", *STRICT)
# Every fault meets every way to ask in the slow run, and one of them here.
FEW = [(fault, DISPLAYS[i % 3], i % 4 != 1, i % 2 == 0) for i, fault in enumerate(FAULTS)]
EVERY = [
    (fault, display, stream, everywhere)
    for fault in FAULTS
    for display in DISPLAYS
    for stream in (True, False)
    for everywhere in (False, True)
]
REST = [pytest.param(*case, marks=pytest.mark.slow) for case in EVERY if case not in FEW]


@pytest.mark.parametrize(("fault", "display", "stream", "everywhere"), [*FEW, *REST])
async def test_a_fault_above_costs_no_answer(fault, display, stream, everywhere):
    """The next tier has the fault, or every higher tier."""
    server, device = MemoryServer(says("higher", fault if everywhere else None)), local()
    async with asking(server, says("middle", fault), device, display) as client:
        got = await read(client, stream=stream)
    sound(got, display=display, stream=stream)
    assert (server.open, device.busy) == (0, 0)
    first, *others = got.route.judgements
    last = got.route.segments[-1].endpoint
    if fault in STRICT:
        assert (last, first.outcome) == ("middle", "handed_up")
        assert [(j.outcome, j.why) for j in others] == [("not_judged", "no_score")]
    elif not everywhere:
        assert (last, first.outcome) == ("server", "handed_up")
    else:
        assert last == "device"
        spoke = stream and fault in ("dies", "stalls")  # then the reader has text of a higher tier
        assert first.outcome == ("handed_up" if spoke else "stood")


@pytest.mark.parametrize("display", DISPLAYS)
async def test_tiers_over_their_budget_are_passed_over(display):
    server, device = MemoryServer(says("higher")), local()
    limits = {"server_tokens": 50, "window_s": 3600}
    async with asking(server, says("middle"), device, display, budget=limits) as client:
        got = await read(client, stream=True)
    sound(got, display=display, stream=True)
    assert (got.text, server.requests) == (TEXT["lower"], [])


@pytest.mark.parametrize("display", DISPLAYS)
async def test_at_the_deadline_the_lower_answer_is_there(display):
    server, device = MemoryServer(says("higher", "silent")), local()
    async with asking(server, says("middle", "silent"), device, display) as client:
        began_at = anyio.current_time()
        got = await read(client, stream=True, deadline_s=3.5, max_tokens=40)
        assert anyio.current_time() - began_at < 3.5 + 2.0  # the reader's pace, from the deadline on
    sound(got, display=display, stream=True)
    assert (got.text, got.route.judgements[0].outcome) == (TEXT["lower"], "stood")
    assert server.open == 0


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("fault", [None, "down", "silent", "429", "dies"])
async def test_a_doubt_in_mid_answer_goes_on_behind_a_sentence_or_not_at_all(fault, everywhere):
    server, device = MemoryServer(says("higher", fault if everywhere else None)), doubtful()
    kept = Kept({"device/higher": DOUBT})
    async with asking(server, says("middle", fault), device, "guard", histories=kept) as client:
        got = await read(client, stream=True)
    route = got.route
    assert (route.finish_reason, route.seamless, got.retracted, server.open) == ("stop", True, 0, 0)
    assert got.text.startswith(SHOWN)
    if fault is None:
        assert got.text == SHOWN + GOES_ON.format("middle")
    elif fault == "dies":  # in mid-sentence, which another tier completes
        assert [s.endpoint for s in route.segments][:3] == ["device", "middle", "server"]
        assert everywhere or got.text.endswith(GOES_ON.format("higher"))
    elif not everywhere:
        assert got.text == SHOWN + GOES_ON.format("higher")
    else:
        assert (got.text, route.judgements[0].outcome) == (TEXT["lower"], "stood")


@pytest.mark.parametrize(
    ("anyio_backend", "display"),
    [("asyncio", "guard"), ("trio", "revise"), ("asyncio", "whole")],
    indirect=["anyio_backend"],
)
async def test_a_reader_may_leave_at_any_moment(display):
    """While the device writes, while a tier is silent or writes, and while an answer that stands is delivered."""
    routes: list[Any] = []
    for after_s in (0.0, 0.3, 0.64, 0.66, 3.6, 3.7, 5.0):
        server, device = MemoryServer(says("higher")), local()
        async with asking(
            server, says("middle", "silent"), device, display, on_route=routes.append
        ) as client:
            with anyio.move_on_after(after_s):
                await read(client, stream=True)
        assert (server.open, device.busy) == (0, 0)
        if routes:
            assert all(a.outcome != "running" and a.ended_s is not None for a in routes[-1].attempts)
    assert {r.finish_reason for r in routes[:3]} == {"cancelled"}


@pytest.mark.parametrize("display", DISPLAYS)
async def test_a_client_that_is_closed_while_answers_rise_leaves_nothing_behind(display):
    server, device = MemoryServer(says("higher", "silent")), local()
    client = asking(server, says("middle", "silent"), device, display)
    ends: list[object] = []

    async def ask() -> None:
        try:
            ends.append(await read(client, stream=True))
        except DiscoError as error:
            ends.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        tasks.start_soon(ask)
        await anyio.sleep(1.5)
        assert server.open > 0
        await client.close()
    assert len(ends) == 2
    assert (server.open, device.busy) == (0, 0)


@pytest.mark.parametrize("display", DISPLAYS)
async def test_answers_at_once_are_judged_each_by_itself(display):
    """The device does one at a time; whichever is in doubt, no answer gets another's text, and no score is lost."""
    server, device = MemoryServer(says("higher")), local()
    kept = Kept({"device/higher": DOUBTED, "middle/middle": TRUSTED})
    got: list[Got] = []

    async def ask(stream: bool) -> None:
        got.append(await read(client, stream=stream))

    async with (
        asking(server, says("middle"), device, display, histories=kept) as client,
        anyio.create_task_group() as tasks,
    ):
        for stream in (True, False, True):
            tasks.start_soon(ask, stream)
    assert [one.text for one in got] == [TEXT["middle"]] * 3
    assert all([j.outcome for j in one.route.judgements] == ["handed_up", "kept"] for one in got)
    assert [history.seen for history in kept.saved.values()] == [103, 103]


@pytest.mark.parametrize(("display", "stream"), [("whole", False), ("guard", True), ("revise", True)])
def test_the_synchronous_client_does_the_same(display, stream):
    """On the machine's clock, with tiers that answer at once."""
    quick = {"decode_tps": 1e5}
    above = [
        SimulatedEndpoint("middle", SimulatedProfile(fault=Fault(kind=FailureKind.RATE_LIMIT))),
        SimulatedEndpoint("higher", SimulatedProfile(answer=TEXT["higher"], **quick)),
    ]
    kept = Kept({"device/m": DOUBTED})
    asked: dict[str, Any] = {"model": "m", "messages": MESSAGES, "stream": stream}
    with Disco(local=local(**quick), tiers=above, policy=preset(display), histories=kept) as client:
        answer = client.chat.completions.create(**asked, extra_body={"disco": {"pace_tps": "off"}})
        if stream:
            read_so_far = RevisedText()
            for each in answer:
                read_so_far.add(each)
            text = read_so_far.text
        else:
            text = answer.choices[0].message.content
        route = answer.route
    assert text == TEXT["higher"]
    assert [a.outcome for a in route.attempts] == ["overruled", "failed", "finished"]


def changed(display: str, **cascade: Any) -> Preset:
    settings = preset(display)
    return settings.model_copy(update={"cascade": settings.cascade.model_copy(update=cascade)})


async def test_an_answer_that_waits_as_a_whole_goes_up_early_only_where_that_is_set():
    tokens = []
    for early_exit in (True, False):
        how = {"histories": Kept({"device/higher": DOUBT}), "policy": changed("whole", early_exit=early_exit)}
        async with asking(MemoryServer(says("higher")), says("middle"), doubtful(), "whole", **how) as client:
            first, *_ = (await read(client, stream=False)).route.judgements
        assert first.outcome == "handed_up"
        tokens.append(first.tokens)
    assert tokens[0] < tokens[1]


@pytest.mark.parametrize("aim", ["bytes", "money"])
async def test_beta_follows_what_answers_have_cost(aim, tmp_path):
    """Under each preset by itself, also where two have one name."""
    target = {"bytes": 1_000.0, "money": 1e-5}[aim]
    amount = f"{'usd' if aim == 'money' else aim}_per_answer"
    policy = changed("whole", aim=aim, **{amount: target})
    other = tmp_path / "other.toml"
    other.write_text(
        f'name = "{policy.name}"\n[dispatch]\npolicy = "cascade"\n'
        f'[cascade]\nbeta = 0.2\naim = "{aim}"\n{amount} = {target}\n'
    )
    server, prices = MemoryServer(says("higher")), {"price": (0.5, 2.0)}
    async with asking(server, says("middle"), local(), "whole", policy=policy, **prices) as client:
        routes = [(await read(client, stream=False)).route for _ in range(2)]
        another = (await read(client, stream=False, preset=str(other))).route
    assert another.judgements[0].beta == 0.2
    in_bytes, usd = sum(a.bytes_up + a.bytes_down for a in routes[0].attempts), routes[0].bill_usd
    cost = in_bytes if aim == "bytes" else usd
    assert cost > 0
    beta = 0.5 * math.exp(-(cost / target - 1.0) / 100)
    assert [route.judgements[0].beta for route in routes] == [0.5, pytest.approx(beta, rel=1e-12)]


async def test_the_events_of_a_response_take_nothing_back():
    """They have none for that, so that "revise" means "guard"."""
    async with asking(MemoryServer(says("higher")), says("middle"), local(), "revise") as client:
        asked = {"model": "higher", "input": "Why?", "stream": True}
        events = [event async for event in await client.responses.create(**asked)]
    shown = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert shown == events[-1].response.output_text == TEXT["higher"]


async def test_the_sdks_stream_helper_takes_back_what_is_retracted():
    server, device = MemoryServer(says("higher")), local()
    asked: Any = {"model": "higher", "messages": MESSAGES, "extra_body": {"disco": {"judge": "revise"}}}
    async with (
        asking(server, says("middle", "down"), device, "guard") as client,
        client.chat.completions.stream(**asked) as stream,
    ):
        snapshots = [event.snapshot async for event in stream if event.type == "content.delta"]
        final = await stream.get_final_completion()
    assert any(TEXT["lower"].startswith(one) for one in snapshots)
    assert final.choices[0].message.content == snapshots[-1] == TEXT["higher"]
