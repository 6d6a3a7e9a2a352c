"""A simulated endpoint: its script, a pure function of profile, request, prefix and seed, and how it is played."""

import dataclasses
import math

import anyio
import numpy as np
import openai
import pytest
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from situations import profiles_of_one

from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile, script, seam_report
from disco.endpoints.simulation.simulated_text import canonical, tokenise
from disco.errors import EndpointFailure, FailureKind
from disco.events import Ended, SeamReport, Started, Usage
from disco.request import Prefix, Request

FAULTS = st.builds(
    Fault,
    after_tokens=st.integers(0, 70),
    silence_s=st.floats(0, 20),
    kind=st.none() | st.sampled_from(list(FailureKind)),
    probability=st.floats(0, 1),
)
PROFILES = st.builds(
    dataclasses.replace,
    profiles_of_one,
    prefill_tps=st.floats(1, 1e4),
    overhead_s=st.floats(0, 2),
    seed=st.integers(0, 3),
    context_tokens=st.none() | st.integers(1, 80),
    continues=st.just(SimulatedProfile().continues),
    fault=st.none() | FAULTS,
)
LIMITS = st.none() | st.integers(0, 80)
BLUE = Prefix("Blue because", tokens=2)


def ask(text="Why is the sky blue?", **params):
    return Request([{"role": "user", "content": text}], "m", params)


def limited(max_tokens):
    return ask() if max_tokens is None else ask(max_tokens=max_tokens)


def play(profile, prefix=Prefix(), request=ask(), seed=0, **more):  # noqa: B008
    """Everything that happens, with its time in seconds from the start."""
    return list(script(profile, request, prefix, np.random.default_rng(seed), **more))


def text_of(events):
    return "".join(d.text for _, e in events if isinstance(e, list) for d in e)


@given(text=st.text(), tokens=st.integers(0, 300), seed=st.integers(0, 9))
def test_text_is_made_of_tokens_and_depends_on_messages_and_seeds_only(text, tokens, seed):
    assert "".join(tokenise(text)) == text
    base = canonical(ask(), seed, tokens + 20)
    assert canonical(ask(temperature=1.0), seed, tokens) == "".join(tokenise(base)[:tokens])
    others = {canonical(one, seed, tokens + 20) for one in (ask("Why?"), ask(seed=7))}
    assert base not in others | {canonical(ask(), seed + 1, tokens + 20)}


def test_times_follow_the_profile():
    rates = {"prefill_tps": 10, "decode_tps": 20, "packet_tokens": 2}
    profile = SimulatedProfile(ttft_s=0.5, overhead_s=0.1, answer_tokens=5, **rates)
    events = play(profile, prompt_tokens=40, cached_tokens=10)
    assert [at for at, _ in events] == pytest.approx([3.6, 3.7, 3.8, 3.8])
    assert events[-1][1] == Ended("stop", Usage(40, 5, 10))
    # A trace can say how long prompt and answer are.
    assert play(SimulatedProfile(), prompt_tokens=1234, answer_tokens=7)[-1][1].usage == Usage(1234, 7, 0)


@given(PROFILES, LIMITS, st.text(max_size=30), st.integers(0, 9), st.integers(0, 40))
def test_every_script_is_in_order_and_ends_once(profile, limit, prefix_text, seed, prefix_tokens):
    prefix = Prefix(prefix_text, tokens=prefix_tokens)
    events = play(profile, prefix, limited(limit), seed)
    assert len(events) == len(play(profile, prefix, limited(limit), seed))
    times = [at for at, _ in events]
    assert times == sorted(times)
    assert all(isinstance(e, list) and e for _, e in events[:-1])
    last = events[-1][1]
    written = sum(d.tokens for _, e in events[:-1] for d in e)
    if limit is not None:
        assert written <= max(0, limit - prefix_tokens)
    if not isinstance(last, EndpointFailure):
        assert last.usage.completion_tokens >= written
        assert last.usage.prompt_tokens + written <= (profile.context_tokens or math.inf)


# ---------------------------------------------------------------------- continuing

SOME_TEXT = "你好,世界。今天天气很好 👩‍👩‍👧 we stay here.\n\nNew line"


@given(
    cut=st.integers(0, 60),
    withheld=st.integers(0, 10),
    seam=st.sampled_from(["exact", "echoes"]),
    packet=st.integers(1, 5),
    answer=st.none() | st.just(SOME_TEXT),
)
def test_a_prefix_of_its_own_text_is_continued_without_seam(cut, withheld, seam, packet, answer):
    profile = SimulatedProfile(seam=seam, packet_tokens=packet, answer_tokens=12, answer=answer)
    whole = text_of(play(profile))
    shown = whole[:cut]
    prefix = Prefix(shown, tokens=3, withheld=shown[max(0, len(shown) - withheld) :])
    events = play(profile, prefix)
    assert shown + text_of(events) == whole
    assert events[-1][1].finish_reason == "stop"


def test_a_foreign_prefix_is_continued_at_a_word_boundary():
    profile = SimulatedProfile(answer_tokens=30)
    after_word = text_of(play(profile, Prefix("Blue because of Rayleigh", tokens=4)))
    assert after_word.startswith(" ")
    assert len(tokenise(after_word)) >= 26
    assert not text_of(play(profile, Prefix("Blue because of ", tokens=4))).startswith(" ")
    assert after_word not in text_of(play(profile))


SEAMS = {
    "exact": SeamReport("continued", 4, 18, 8),
    "echoes": SeamReport("echo", 4, 22, 12),
    "doubts": SeamReport("unproved", 4, 18, 8),
    "leaks": SeamReport("continued", 4, 18, 8),
}


@pytest.mark.parametrize("seam", SEAMS)
def test_it_says_what_became_of_the_seam(seam):
    profile, prefix = SimulatedProfile(seam=seam), dataclasses.replace(BLUE, withheld=" because")
    assert seam_report(profile, prefix, 10) == SEAMS[seam]
    assert seam_report(profile, prefix, 0) == SeamReport("continued", 4, 0, 0)
    assert seam_report(profile, Prefix(), 10) is None
    assert text_of(play(profile, BLUE)).startswith(BLUE.text + " ") == (seam in ("leaks", "doubts"))


def test_every_kind_of_failure_is_simulated_with_what_the_sdk_raises():
    for kind in FailureKind:
        fault = Fault(2, 0.25, kind, retry_after_s=3.0)
        [(_, text), (at, failure)] = play(SimulatedProfile(answer_tokens=6, packet_tokens=4, fault=fault))
        assert (len(text), at, failure.kind, failure.retry_after_s) == (2, 0.25, kind, 3.0)
        assert isinstance(failure.error, openai.OpenAIError)
        assert isinstance(failure.error, openai.RateLimitError) == (
            kind in (FailureKind.RATE_LIMIT, FailureKind.BUDGET)
        )
    [*_, (_, ended)] = play(SimulatedProfile(fault=Fault(0, probability=0.0)))
    assert isinstance(ended, Ended)


# ---------------------------------------------------------------------- played, in virtual time


def run(main, *args):
    """Run an async function in virtual time."""
    return trio.run(main, *args, clock=trio.testing.MockClock(autojump_threshold=0))


async def collect(attempt):
    """Every event of an attempt but `Started`, with its time from now."""
    began, seen = anyio.current_time(), []
    try:
        async for event in attempt:
            if not isinstance(event, Started):
                seen.append((anyio.current_time() - began, event))  # noqa: PERF401 - kept if it fails
    except EndpointFailure as failure:
        seen.append((anyio.current_time() - began, failure))
    return seen


@settings(max_examples=60)
@given(PROFILES, LIMITS, st.sampled_from(["device", "server"]))
def test_the_endpoint_plays_exactly_the_script(profile, limit, place):
    endpoint = SimulatedEndpoint("e", profile, place=place, seed=4)
    seen = run(collect, endpoint.open(limited(limit)))
    expected = play(profile, request=limited(limit), seed=[4, 1], endpoint="e")
    assert [at for at, _ in seen] == pytest.approx([at for at, _ in expected])
    ours, theirs = ([getattr(e, "kind", e) for _, e in events] for events in (seen, expected))
    assert ours == theirs
    assert endpoint.busy == 0


def test_a_device_remembers_what_it_has_prefilled_even_if_it_was_cancelled():
    endpoint = SimulatedEndpoint("d", SimulatedProfile(prefill_tps=100, answer_tokens=20), place="device")
    long = ask("word " * 300)

    async def main():
        attempt = endpoint.open(long)
        with anyio.move_on_after(1.5):
            await collect(attempt)
        rest = await collect(endpoint.open(long))
        warm = await collect(endpoint.open(long, Prefix(text_of(rest)[:40], tokens=7)))
        return attempt.usage, rest, warm, await collect(endpoint.open(ask("Something else")))

    first, *others = run(main)
    assert first == Usage(150, 0, 0)
    used = [(events[0][0], events[-1][1].usage) for events in others]
    (rest_s, rest), (warm_s, warm), (_, foreign) = used
    assert (rest_s, warm_s) == pytest.approx(((rest.prompt_tokens - 150) / 100, 0.01))
    # Only the first message's header is the same in the last.
    assert [rest.cached_tokens, warm.cached_tokens, foreign.cached_tokens] == [150, warm.prompt_tokens - 1, 1]


@pytest.mark.parametrize("others", [False, True])
def test_a_paused_device_stands_still_and_those_who_wait_get_it_after_two_seconds(others):
    numbers = {"prefill_tps": 100, "decode_tps": 10, "answer_tokens": 6}
    endpoint = SimulatedEndpoint("d", SimulatedProfile(**numbers), place="device")
    short, times, waited = ask("Hello", max_tokens=1), [], []

    async def write(attempt):
        async for event in attempt:
            if isinstance(event, list):
                times.append(anyio.current_time())  # noqa: PERF401 - read meanwhile

    async def main():
        async with trio.open_nursery() as nursery:
            attempt = endpoint.open(ask("word " * 20))
            nursery.start_soon(write, attempt)
            while len(times) < 2:  # noqa: ASYNC110 - in virtual time
                await anyio.sleep(0.01)
            assert attempt.pause()
            if others:
                waited.extend(await collect(endpoint.open(short)))
            await anyio.sleep(5.0)
            resumed_at = anyio.current_time()
            assert attempt.resume()
        return attempt.usage, resumed_at

    usage, resumed_at = run(main)
    lost = 25 if others else 0  # of 24 of the prompt and 2 written, all but the first message's header
    assert usage.prompt_tokens == 24 + lost
    if (
        others
    ):  # 2 s after the third token was due the other begins, and reads 4 tokens of which one is cached
        assert waited[0][0] == pytest.approx(2.1 + 0.03, abs=0.02)
    assert times[2:] == pytest.approx([resumed_at + lost / 100 + 0.1 * n for n in range(4)])
