"""The simulated endpoint: its script is a pure function, and the endpoint plays exactly that script."""

import dataclasses
import math

import anyio
import numpy as np
import openai
import pytest
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import (
    Fault,
    SimulatedProfile,
    script,
    seam_report,
    simulated_failure,
)
from disco.endpoints.simulation.simulated_text import canonical, tokenise
from disco.errors import EndpointFailure, FailureKind
from disco.events import Delta, DeltaKind, Ended, SeamReport, Started, Usage
from disco.profiles.time_distribution import Empirical
from disco.request import Prefix, Request


def ask(text="Why is the sky blue?", **params):
    return Request([{"role": "user", "content": text}], "m", params)


def rng(seed=0):
    return np.random.default_rng(seed)


def play(profile, request=None, prefix=None, seed=0, **kwargs):
    return list(
        script(profile, request or ask(), Prefix() if prefix is None else prefix, rng(seed), **kwargs)
    )


def text_of(events):
    return "".join(d.text for _, e in events if isinstance(e, list) for d in e)


def run(main):
    """Run an async function in virtual time; returns (its result, virtual seconds passed)."""

    async def timed():
        started = trio.current_time()
        result = await main()
        return result, trio.current_time() - started

    return trio.run(timed, clock=trio.testing.MockClock(autojump_threshold=0))


async def collect(attempt, started_at=None):
    """Every event of an attempt but `Started`, with its time relative to `started_at`."""
    started_at = anyio.current_time() if started_at is None else started_at
    seen = []
    try:
        async for event in attempt:
            if not isinstance(event, Started):
                seen.append((anyio.current_time() - started_at, event))  # noqa: PERF401 - kept if it fails
    except EndpointFailure as failure:
        seen.append((anyio.current_time() - started_at, failure))
    return seen


async def next_event(attempt):
    """The next event that is not `Started`."""
    while isinstance(event := await anext(attempt), Started):
        pass
    return event


# ---------------------------------------------------------------- text


@given(st.text())
def test_tokens_joined_are_the_text(text):
    assert "".join(tokenise(text)) == text


@given(st.integers(0, 300), st.integers(0, 9))
def test_canonical_text_has_as_many_tokens_as_asked_for(n, seed):
    assert len(tokenise(canonical(ask(), seed, n))) == n


def test_text_depends_on_messages_and_seeds_only():
    base = canonical(ask(), 0, 40)
    assert canonical(ask(temperature=1.0), 0, 40) == base
    assert canonical(ask("Why?"), 0, 40) != base
    assert canonical(ask(), 1, 40) != base
    assert canonical(ask(seed=7), 0, 40) != base
    assert canonical(ask(), 0, 20) == "".join(tokenise(base)[:20])


# ---------------------------------------------------------------- script


def test_times_follow_the_profile():
    profile = SimulatedProfile(
        ttft_s=0.5, overhead_s=0.1, prefill_tps=10, decode_tps=20, packet_tokens=2, answer_tokens=5
    )
    events = play(profile, prompt_tokens=40, cached_tokens=10)
    assert [at for at, _ in events] == pytest.approx([3.6, 3.7, 3.8, 3.8])
    assert [len(e) for _, e in events[:-1]] == [2, 2, 1]
    assert events[-1][1] == Ended("stop", Usage(40, 5, 10))


def test_ttft_and_length_can_be_distributions():
    profile = SimulatedProfile(
        ttft_s=Empirical.from_samples([0.2, 0.9]), answer_tokens=Empirical.from_samples([10, 20])
    )
    firsts = {play(profile, seed=s)[0][0] for s in range(20)}
    assert min(firsts) >= 0.2
    assert max(firsts) <= 0.9
    assert len(firsts) > 1
    lengths = {play(profile, ask(str(i)))[-1][1].usage.completion_tokens for i in range(20)}
    assert len(lengths) > 1
    # The length is the request's, whatever the randomness in time.
    assert len({play(profile, seed=s)[-1][1].usage.completion_tokens for s in range(20)}) == 1


def test_a_trace_can_say_how_long_prompt_and_answer_are():
    assert play(SimulatedProfile(), prompt_tokens=1234, answer_tokens=7)[-1][1].usage == Usage(1234, 7, 0)


profiles = st.builds(
    SimulatedProfile,
    ttft_s=st.floats(0, 3),
    prefill_tps=st.floats(1, 1e4),
    overhead_s=st.floats(0, 2),
    decode_tps=st.floats(1, 200),
    packet_tokens=st.integers(1, 7),
    answer_tokens=st.integers(0, 60),
    seed=st.integers(0, 3),
    role_at_s=st.none() | st.floats(0, 5),
    context_tokens=st.none() | st.integers(1, 80),
    seam=st.sampled_from(["exact", "echoes", "restarts"]),
    fault=st.none()
    | st.builds(
        Fault,
        after_tokens=st.integers(0, 70),
        silence_s=st.floats(0, 20),
        kind=st.none() | st.sampled_from(list(FailureKind)),
        probability=st.floats(0, 1),
    ),
)
limits = st.none() | st.integers(0, 80)


@given(profiles, limits, st.text(max_size=30), st.integers(0, 9), st.integers(0, 40))
def test_every_script_is_in_order_and_ends_once(profile, limit, prefix_text, seed, prefix_tokens):
    request = ask() if limit is None else ask(max_tokens=limit)
    prefix = Prefix(prefix_text, tokens=prefix_tokens)
    events = play(profile, request, prefix, seed)
    assert len(events) == len(play(profile, request, prefix, seed))
    times = [at for at, _ in events]
    assert times == sorted(times)
    assert all(isinstance(e, list) and e for _, e in events[:-1])
    last = events[-1][1]
    assert isinstance(last, Ended | EndpointFailure)
    written = sum(d.tokens for _, e in events[:-1] for d in e)
    if limit is not None:
        assert written <= max(0, limit - prefix_tokens)
    if isinstance(last, Ended):
        assert last.usage.completion_tokens >= written
        if profile.context_tokens is not None:
            assert last.usage.prompt_tokens + written <= profile.context_tokens
    else:
        assert isinstance(last.error, openai.OpenAIError)


@given(
    st.integers(0, 60),
    st.integers(0, 10),
    st.sampled_from(["exact", "echoes"]),
    st.integers(1, 5),
    st.one_of(st.none(), st.just("你好,世界。今天天气很好 👩‍👩‍👧 we stay here.\n\nNew line")),
)
def test_a_prefix_of_its_own_text_is_continued_without_seam(cut, withheld, seam, packet, answer):
    profile = SimulatedProfile(seam=seam, packet_tokens=packet, answer_tokens=12, answer=answer)
    whole = text_of(play(profile))
    cut = min(cut, len(whole))
    withheld = min(withheld, cut)
    prefix = Prefix(whole[:cut], tokens=3, withheld=whole[cut - withheld : cut])
    events = play(profile, ask(), prefix)
    assert whole[:cut] + text_of(events) == whole
    assert events[-1][1].finish_reason == "stop"


def test_what_is_swallowed_takes_time_and_is_charged():
    whole = text_of(play(SimulatedProfile(answer_tokens=10)))
    prefix = Prefix(whole[:30], tokens=6, withheld=whole[20:30])
    exact = play(SimulatedProfile(answer_tokens=10, decode_tps=10), ask(), prefix)
    swallowed = len(tokenise(whole[20:30]))
    assert exact[0][0] == pytest.approx(swallowed / 10)
    visible = sum(len(e) for _, e in exact[:-1])
    assert exact[-1][1].usage.completion_tokens == visible + swallowed
    echoing = play(SimulatedProfile(answer_tokens=10, seam="echoes"), ask(), prefix)
    assert echoing[-1][1].usage.completion_tokens == visible + swallowed + len(tokenise(whole[:20]))


def test_a_foreign_prefix_is_continued_at_a_word_boundary():
    profile = SimulatedProfile(answer_tokens=30)
    after_word = text_of(play(profile, ask(), Prefix("Blue because of Rayleigh", tokens=4)))
    assert after_word.startswith(" ")
    assert len(tokenise(after_word)) >= 26
    assert after_word == text_of(play(profile, ask(), Prefix("Blue because of Rayleigh", tokens=4), seed=5))
    assert not text_of(play(profile, ask(), Prefix("Blue because of ", tokens=4))).startswith(" ")
    assert after_word not in text_of(play(profile))


def test_seams_that_go_wrong():
    prefix = Prefix("Blue because", tokens=2)
    events = play(SimulatedProfile(seam="restarts"), ask(), prefix)
    assert [e.kind for _, e in events] == [FailureKind.SEAM]
    for seam in ("leaks", "doubts"):
        assert text_of(play(SimulatedProfile(seam=seam), ask(), prefix)).startswith("Blue because ")


@pytest.mark.parametrize(
    ("seam", "report"),
    [
        ("exact", SeamReport("continued", 4, 18, 8)),
        ("echoes", SeamReport("echo", 4, 22, 12)),
        ("doubts", SeamReport("unproved", 4, 18, 8)),
        ("leaks", SeamReport("continued", 4, 18, 8)),
    ],
)
def test_it_says_what_became_of_the_seam(seam, report):
    profile, prefix = SimulatedProfile(seam=seam), Prefix("Blue because", tokens=2, withheld=" because")
    assert seam_report(profile, prefix, 10) == report
    assert seam_report(profile, prefix, 0) == SeamReport("continued", 4, 0, 0)
    assert seam_report(profile, Prefix(), 10) is None


def test_faults():
    def faulty(*args, **kwargs):
        return play(
            SimulatedProfile(answer_tokens=6, decode_tps=10, packet_tokens=4, fault=Fault(*args, **kwargs))
        )

    [(at, failure)] = faulty(0, 0.25, FailureKind.RATE_LIMIT, retry_after_s=3.0)
    assert at == 0.25
    assert failure.kind is FailureKind.RATE_LIMIT
    assert failure.retry_after_s == 3.0
    assert isinstance(failure.error, openai.RateLimitError)

    events = faulty(3, 15.0, FailureKind.STALLED)
    assert [len(e) for _, e in events[:-1]] == [3]
    assert events[-1][0] == 15.0
    assert events[-1][1].kind is FailureKind.STALLED

    hiccup = faulty(3, 2.0, None)
    assert [(at, len(e)) for at, e in hiccup[:-1]] == [(0.0, 3), (2.0, 1), (2.4, 2)]
    assert faulty(3, math.inf)[-1][0] == math.inf
    assert isinstance(faulty(3, probability=0.0)[-1][1], Ended)


@pytest.mark.parametrize("kind", list(FailureKind))
def test_every_kind_of_failure_has_an_openai_exception(kind):
    failure = simulated_failure(kind, "edge")
    assert failure.kind is kind
    assert isinstance(failure.error, openai.OpenAIError)


# ---------------------------------------------------------------- endpoint


@given(profiles, limits, st.sampled_from(["device", "server"]))
def test_the_endpoint_plays_exactly_the_script(profile, limit, place):
    request = ask() if limit is None else ask(max_tokens=limit)
    endpoint = SimulatedEndpoint("e", profile, place=place, seed=4)

    async def main():
        return await collect(endpoint.open(request))

    seen, _ = run(main)
    expected = list(script(profile, request, Prefix(), np.random.default_rng([4, 1]), endpoint="e"))
    assert [at for at, _ in seen] == pytest.approx([at for at, _ in expected])
    plain = [e.kind if isinstance(e, EndpointFailure) else e for _, e in seen]
    assert plain == [e.kind if isinstance(e, EndpointFailure) else e for _, e in expected]
    assert endpoint.busy == 0


def test_a_device_is_one_at_a_time_in_order_and_a_server_is_not():
    profile = SimulatedProfile(ttft_s=1.0, decode_tps=10, answer_tokens=11)

    async def three(place):
        endpoint = SimulatedEndpoint("e", profile, place=place)
        attempts = [endpoint.open(ask(str(i))) for i in range(3)]
        ends = []

        async def consume(i):
            ends.append((i, (await collect(attempts[i], started_at=0))[-1][0] - began))

        async with anyio.create_task_group() as group:
            began = anyio.current_time()
            for i in range(3):
                group.start_soon(consume, i)
                await anyio.wait_all_tasks_blocked()
        return ends

    async def device():
        return await three("device")

    async def server():
        return await three("server")

    queued = run(device)[0]
    assert [i for i, _ in queued] == [0, 1, 2]
    assert [at for _, at in queued] == pytest.approx([2, 4, 6], abs=0.1)
    assert [at for _, at in run(server)[0]] == pytest.approx([2, 2, 2], abs=0.1)


def test_cancelling_an_attempt_in_the_queue_leaves_the_others_their_turn():
    profile = SimulatedProfile(ttft_s=1.0, decode_tps=10, answer_tokens=11)
    endpoint = SimulatedEndpoint("d", profile, place="device")

    async def main():
        first, second, third = (endpoint.open(ask(str(i))) for i in range(3))
        ends = {}

        async def consume(name, attempt):
            ends[name] = (await collect(attempt))[-1:]

        async with anyio.create_task_group() as group:
            for name, attempt in ("first", first), ("second", second), ("third", third):
                group.start_soon(consume, name, attempt)
                await anyio.wait_all_tasks_blocked()
            await second.aclose()
            assert second.usage == Usage()
        return ends

    ends, seconds = run(main)
    assert ends["second"] == []
    assert ends["third"][0][1].finish_reason == "stop"
    assert seconds == pytest.approx(4, abs=0.1)


def test_a_device_remembers_what_it_has_prefilled():
    profile = SimulatedProfile(prefill_tps=100, decode_tps=50, answer_tokens=20)
    endpoint = SimulatedEndpoint("d", profile, place="device")
    request = ask("word " * 200)

    async def main():
        cold = await collect(endpoint.open(request))
        warm = await collect(endpoint.open(request))
        text = text_of(cold)
        rest = await collect(endpoint.open(request, Prefix(text[:40], tokens=7)))
        other = await collect(endpoint.open(ask("Something else")))
        return cold, warm, rest, other

    (cold, warm, rest, other), _ = run(main)
    assert cold[0][0] > 2.0
    assert cold[-1][1].usage.cached_tokens == 0
    assert warm[0][0] == pytest.approx(0.01)
    assert warm[-1][1].usage.cached_tokens == warm[-1][1].usage.prompt_tokens - 1
    assert rest[0][0] < 0.1
    assert other[-1][1].usage.cached_tokens == 1  # only the first message's header is the same


def test_usage_of_a_cancelled_prefill_is_what_was_done_and_is_kept():
    endpoint = SimulatedEndpoint("d", SimulatedProfile(prefill_tps=100), place="device")
    request = ask("word " * 300)

    async def main():
        attempt = endpoint.open(request)
        with anyio.move_on_after(1.5):
            await next_event(attempt)
        again = endpoint.open(request)
        await next_event(again)
        await again.aclose()
        return attempt.usage, again.usage

    (first, second), _ = run(main)
    assert first == Usage(150, 0, 0)
    assert second.cached_tokens == 150


def test_a_parked_device_ends_after_its_prefill_and_keeps_it():
    profile = SimulatedProfile(prefill_tps=100, role_at_s=0.1)
    endpoint = SimulatedEndpoint("d", profile, place="device")
    request = ask("word " * 100)

    async def main():
        attempt = endpoint.open(request)
        assert attempt.park()
        seen = await collect(attempt)
        assert not attempt.park()
        warm = endpoint.open(request)
        await next_event(warm)
        await next_event(warm)
        await warm.aclose()
        return seen, warm.usage

    (seen, warm), _ = run(main)
    prompt = seen[0][1].usage.prompt_tokens
    assert [e for _, e in seen] == [Ended("parked", Usage(prompt, 0, 0))]
    assert seen[0][0] == pytest.approx(prompt / 100)
    assert warm.cached_tokens == prompt - 1


def test_parking_while_it_writes_stops_it_at_once():
    endpoint = SimulatedEndpoint("d", SimulatedProfile(decode_tps=0.1), place="device")

    async def main():
        attempt = endpoint.open(ask())
        await next_event(attempt)
        async with anyio.create_task_group() as group:

            async def park():
                await anyio.sleep(1)
                assert attempt.park()

            group.start_soon(park)
            return await next_event(attempt)

    ended, seconds = run(main)
    assert ended.finish_reason == "parked"
    assert ended.usage.completion_tokens == 1
    assert seconds == pytest.approx(1)


def test_a_hanging_server_can_be_closed_from_outside():
    endpoint = SimulatedEndpoint("s", SimulatedProfile(fault=Fault(2, math.inf, None)))

    async def main():
        attempt = endpoint.open(ask())
        seen = []

        async def consume():
            seen.extend(await collect(attempt))

        async with anyio.create_task_group() as group:
            group.start_soon(consume)
            await anyio.sleep(100)
            assert endpoint.busy == 1
            await endpoint.aclose()
        return seen

    seen, _ = run(main)
    assert text_of(seen) == canonical(ask(), 0, 2)
    assert endpoint.busy == 0


def test_the_profile_can_be_replaced_for_attempts_to_come():
    endpoint = SimulatedEndpoint("s", SimulatedProfile(ttft_s=1.0, answer_tokens=1))

    async def main():
        before = endpoint.open(ask())
        endpoint.profile = dataclasses.replace(endpoint.profile, ttft_s=5.0)
        return (await collect(before))[0][0], (await collect(endpoint.open(ask())))[0][0]

    assert run(main)[0] == pytest.approx((1.0, 5.0))


def test_role_chunks_are_not_content():
    seen, _ = run(
        lambda: collect(SimulatedEndpoint("s", SimulatedProfile(ttft_s=2, role_at_s=0.5)).open(ask()))
    )
    assert seen[0][0] == pytest.approx(0.5)
    assert seen[0][1] == [Delta("", tokens=0, kind=DeltaKind.ROLE)]
    assert seen[1][0] == pytest.approx(2.0)
