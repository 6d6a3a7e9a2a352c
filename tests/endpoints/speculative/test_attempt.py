"""The pair in virtual time: the answer is the server's whatever befalls the draft, and every token is counted."""

from __future__ import annotations

import contextlib
from typing import Any

import anyio
import moved_clock
import pytest
from endpoints.speculative.made_pair import (
    ANSWER,
    FACTS,
    PROMPT,
    REQUEST,
    TARGET,
    Pair,
    SlowDrafter,
    SlowVerifier,
)
from hypothesis import given
from hypothesis import strategies as st

from disco.endpoints.drafter import NgramDrafter
from disco.endpoints.speculative.rounds_run import joined
from disco.errors import EndpointFailure, FailureKind
from disco.events import Delta, Ended, SeamReport
from disco.request import Prefix, Request
from disco.speculate.messages import VerifierFacts

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return moved_clock.virtual(request.param)


async def answer_of(pair: Pair, request: Request = REQUEST, prefix: Prefix = Prefix()) -> Any:  # noqa: B008 - frozen
    """Return (text, ids, finish reason, usage, report, seconds) of one answer, or raise its failure."""
    began_at = anyio.current_time()
    text, ids, end = "", [], None
    try:
        async with pair.endpoint().open(request, prefix) as attempt:
            async for event in attempt:
                if isinstance(event, Ended):
                    end = event
                    continue
                assert isinstance(event, list)
                assert all(isinstance(delta, Delta) for delta in event)
                assert event
                text += "".join(delta.text for delta in event)
                ids += [i for delta in event for i in delta.ids or ()]
        took_s = anyio.current_time() - began_at
        assert pair.is_idle
        return text, tuple(ids), end, attempt.usage, attempt.speculation, took_s
    finally:
        await pair.aclose()


ALONE_S = 60 * 0.021


@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize("wrong", [frozenset(), frozenset(range(0, 60, 3)), frozenset(range(60))])
@pytest.mark.parametrize("window", [1, 4, "optimal", "dynamic"])
async def test_the_answer_is_the_servers_whatever_is_drafted(window, wrong, parallel):
    pair = Pair(drafter=SlowDrafter(wrong=wrong), window=window, parallel=parallel)
    text, ids, end, usage, report, _ = await answer_of(pair)
    assert (text, ids, end.finish_reason) == (ANSWER, TARGET, "stop")
    server, device = dict(usage.shares)["server"], dict(usage.shares)["device"]
    assert (usage.prompt_tokens, usage.completion_tokens) == (50, 60)
    assert (server.prompt_tokens, server.completion_tokens) == (50, 60 + pair.verifier.rejected)
    assert server.drafted == (0, pair.verifier.rejected, 0)
    # The device may be in the middle of a draft that nobody waits for any more; what it computed of that counts.
    assert 0 < report.drafted <= device.completion_tokens < report.drafted + 8
    assert device.drafted == (device.prompt_tokens, device.completion_tokens, 0)
    assert device.prompt_tokens >= len(PROMPT)
    assert report.distributed_tokens + report.alone_tokens == 60
    assert report.accepted <= report.judged <= report.drafted
    assert sum(count for _, count in report.windows) <= report.rounds == len(pair.verifier.asked)


async def test_right_drafts_save_time_and_wrong_ones_are_given_up():
    *_, report, fast_s = await answer_of(Pair(window="optimal", always=False, min_gain=0.0))
    assert report.accepted > 40
    assert fast_s < 0.6 * ALONE_S
    wrong = SlowDrafter(wrong=frozenset(range(60)))
    *_, report, slow_s = await answer_of(Pair(drafter=wrong, window="optimal", always=False))
    assert report.alone_tokens > 50
    assert slow_s < 1.15 * ALONE_S


async def test_the_opening_says_what_the_answer_is_made_from():
    pair = Pair()
    prefix = Prefix("Once", 2, (5, 6), "vocab")
    request = Request(REQUEST.messages, "m", {**REQUEST.params, "max_tokens": 30})
    await answer_of(pair, request, prefix)
    first, *others = pair.verifier.asked
    assert first.opening is not None
    assert all(one.opening is None and one.key == first.key for one in others)
    assert first.opening.seed == 7
    assert first.opening.prefix == {"text": "Once", "tokens": 2, "ids": [5, 6], "vocabulary": "vocab"}
    other = Pair()
    await answer_of(other, request, Prefix("Once", 2, (5, 6), "another"))
    assert other.verifier.asked[0].opening.prefix == {"text": "Once", "tokens": 2}


async def test_what_became_of_the_seam_is_told():
    for prefix, swallowed_chars in (
        (Prefix(), None),
        (Prefix("Once upon"), 0),
        (Prefix("Once up", withheld=" up"), 3),
    ):
        pair = Pair()
        async with pair.endpoint().open(REQUEST, prefix) as attempt:
            async for _ in attempt:
                pass
        expected = swallowed_chars is not None and SeamReport(
            "continued", len(prefix.sent), len(ANSWER) + swallowed_chars, swallowed_chars
        )
        assert attempt.seam == (expected or None)
        await pair.aclose()


async def test_without_a_seed_each_answer_has_its_own():
    seeds = set()
    for _ in range(3):
        pair = Pair(drafter=NgramDrafter())
        await answer_of(pair, Request(REQUEST.messages, "m", {}))
        seeds.add(pair.verifier.opening.seed)
    assert len(seeds) == 3


@pytest.mark.parametrize(
    "drafter",
    [
        SlowDrafter(dies_at=0),
        SlowDrafter(dies_at=1),
        SlowDrafter(dies_at=3),
        SlowDrafter(hangs=True),
        SlowDrafter(read_s=1e6),
        SlowDrafter(vocabulary="another"),
    ],
    ids=["unread", "at once", "later", "hangs", "slow to read", "another vocabulary"],
)
async def test_no_draft_is_no_event(drafter):
    pair = Pair(drafter=drafter)
    text, ids, end, usage, report, took_s = await answer_of(pair)
    assert (text, ids, end.finish_reason) == (ANSWER, TARGET, "stop")
    assert report.alone_tokens > 40
    assert took_s < 1.5 * ALONE_S
    if drafter.vocabulary == "another":
        assert [name for name, _ in usage.shares] == ["server"]
        assert not pair.verifier.asked[0].wants_prompt


async def test_a_drafter_that_others_use_is_left_to_them():
    """It neither reads nor drafts meanwhile, and then goes on where the answer is."""
    pair = Pair()
    drafter, seen = pair.drafter, []
    drafter.busy = True

    async def others() -> None:
        for busy_s, free_s in ((0.3, 0.2), (0.2, 0.1), (0.1, 0.5)):
            drafter.busy, before = True, drafter.drafts
            await anyio.sleep(busy_s)
            seen.append(drafter.drafts - before)
            drafter.busy, before = False, drafter.drafts
            await anyio.sleep(free_s)
            seen.append(drafter.drafts - before)

    async with anyio.create_task_group() as group:
        group.start_soon(others)
        text, ids, _, _, report, took_s = await answer_of(pair)
        group.cancel_scope.cancel()
    assert (text, ids) == (ANSWER, TARGET)
    assert took_s < ALONE_S
    assert (seen[0], seen[2]) == (0, 0)
    assert seen[1] > 1
    assert report.accepted > 5


@given(st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 3), max_size=4).map(tuple)), min_size=1))
def test_steps_that_a_drafter_missed_are_one_step(steps):
    whole, both = [7] * 9, None
    for wanted, append in steps:
        keep = min(wanted, len(whole))
        whole = [*whole[:keep], *append]
        both = (keep, append) if both is None else joined(both, keep, append)
    assert [*[7] * both[0], *both[1]] == whole


async def test_an_n_gram_drafter_needs_no_vocabulary_and_costs_nothing():
    target = tuple([3, 1, 4, 1, 5, 9, 2, 6] * 8)
    pair = Pair(SlowVerifier(target), NgramDrafter(), facts=VerifierFacts("m", None, 4096, 4))
    _, ids, _, usage, report, _ = await answer_of(pair)
    assert ids == target
    assert report.accepted > 40
    assert [name for name, _ in usage.shares] == ["server"]


async def test_lost_replies_are_asked_for_again():
    pair = Pair(SlowVerifier(loses=frozenset({3, 7, 8, 12})))
    text, *_, report, _ = await answer_of(pair)
    assert text == ANSWER
    assert report.retries > 0


@pytest.mark.parametrize("dies_at", [0, 1, 4, 9])
async def test_a_dead_server_is_a_failure_behind_a_whole_prefix(dies_at):
    pair = Pair(SlowVerifier(dies_at=dies_at))
    text = ""

    async def read() -> None:
        nonlocal text
        async with pair.endpoint().open(REQUEST) as attempt:
            async for event in attempt:
                text += "".join(delta.text for delta in event)

    with pytest.raises(EndpointFailure) as failure:
        await read()
    assert failure.value.kind is FailureKind.CONNECTION
    assert ANSWER.startswith(text)
    assert (text == "") == (dies_at == 0)
    assert pair.is_idle
    await pair.aclose()


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.02, 0.06, 0.2, 0.31, 0.33, 0.5])
@pytest.mark.parametrize("way", ["cancel", "close"])
async def test_it_stops_at_once_in_every_phase(after_s, way):
    pair = Pair(parallel=2)
    attempt = pair.endpoint().open(REQUEST)

    async def read() -> None:
        async for _ in attempt:
            pass

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await anyio.sleep(after_s)
        before = anyio.current_time()
        if way == "cancel":
            group.cancel_scope.cancel()
        else:
            await attempt.aclose()
    await attempt.aclose()
    await attempt.aclose()
    assert anyio.current_time() - before < 0.001
    assert pair.is_idle
    assert pair.verifier.released == 0
    await anyio.sleep(pair.verifier.release_s + 0.01)
    assert pair.verifier.released == bool(pair.verifier.asked)
    assert pair.verifier.closed <= 1
    with pytest.raises(StopAsyncIteration):
        await attempt.__anext__()
    await pair.aclose()


@pytest.mark.parametrize("ends", ["by itself", "dead"])
async def test_a_server_that_knows_or_is_gone_is_not_told(ends):
    pair = Pair(SlowVerifier(dies_at=None if ends == "by itself" else 5))
    with contextlib.suppress(EndpointFailure):
        async with pair.endpoint().open(REQUEST) as attempt:
            async for _ in attempt:
                pass
    await anyio.sleep(1.0)
    assert pair.verifier.replies > 4
    assert pair.verifier.released == 0
    await pair.aclose()


async def test_a_server_that_does_not_listen_holds_nobody_up():
    pair = Pair(SlowVerifier(release_s=1e6))
    async with pair.endpoint().open(REQUEST) as attempt:
        await attempt.__anext__()
    before = anyio.current_time()
    await pair.aclose()
    assert anyio.current_time() - before <= 1.0


async def test_an_allowance_for_drafts_is_kept():
    for drafts in (0, 10, 40):
        pair = Pair(window=4)
        request = Request(REQUEST.messages, "m", REQUEST.params, drafts=drafts)
        text, *_, usage, report, _ = await answer_of(pair, request)
        assert text == ANSWER
        shares = dict(usage.shares)
        spent = 0
        if "device" in shares:
            spent = shares["device"].prompt_tokens + shares["device"].completion_tokens - len(PROMPT)
        assert spent <= drafts
        assert shares["server"].drafted[1] <= drafts
        assert (report.drafted > 0) == (drafts > 0)


async def test_nobody_reads_so_the_server_is_not_read_on():
    pair = Pair(SlowVerifier(tuple(range(8_000)), token_s=0.0, round_trip_s=0.0), NgramDrafter())
    attempt = pair.endpoint().open(REQUEST)
    await attempt.__anext__()
    await anyio.sleep(10_000)
    assert pair.verifier.replies < 3000
    await attempt.aclose()
    await pair.aclose()


async def test_capabilities_are_the_verify_servers_once_it_is_known():
    pair = Pair(facts=None)
    assert pair.endpoint().capabilities("m") == pair.server.capabilities("m")
    pair.pairing.learn(FACTS)
    able = pair.endpoint().capabilities("m")
    assert (able.continues, able.vocabulary, able.context_tokens) == (True, "vocab", 4096)
    assert able.features is None
    pair.pairing.has_chat = False
    assert "images" not in pair.endpoint().capabilities("m").features
