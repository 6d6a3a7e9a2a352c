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

from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import Fault, SimulatedProfile, script, seam_report
from disco.endpoints.simulation.simulated_text import canonical, tokenise
from disco.errors import EndpointFailure, FailureKind
from disco.events import Delta, DeltaKind, Ended, SeamReport, Started, Usage
from disco.request import Prefix, Request

FAULTS = st.builds(
    Fault,
    after_tokens=st.integers(0, 70),
    silence_s=st.floats(0, 20),
    kind=st.none() | st.sampled_from(list(FailureKind)),
    probability=st.floats(0, 1),
)
PROFILES = st.builds(
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
    fault=st.none() | FAULTS,
)
LIMITS = st.none() | st.integers(0, 80)
BLUE = Prefix("Blue because", tokens=2)


def ask(text="Why is the sky blue?", **params):
    return Request([{"role": "user", "content": text}], "m", params)


def limited(max_tokens):
    return ask() if max_tokens is None else ask(max_tokens=max_tokens)


def play(profile, request=None, prefix=None, seed=0, **more):
    """Everything that happens, with its time in seconds from the start."""
    prefix = Prefix() if prefix is None else prefix
    return list(script(profile, request or ask(), prefix, np.random.default_rng(seed), **more))


def text_of(events):
    return "".join(d.text for _, e in events if isinstance(e, list) for d in e)


@given(text=st.text(), tokens=st.integers(0, 300), seed=st.integers(0, 9))
def test_text_is_made_of_tokens(text, tokens, seed):
    assert "".join(tokenise(text)) == text
    assert len(tokenise(canonical(ask(), seed, tokens))) == tokens


def test_text_depends_on_messages_and_seeds_only():
    base = canonical(ask(), 0, 40)
    assert canonical(ask(temperature=1.0), 0, 40) == base
    assert canonical(ask(), 0, 20) == "".join(tokenise(base)[:20])
    assert base not in (canonical(ask("Why?"), 0, 40), canonical(ask(), 1, 40), canonical(ask(seed=7), 0, 40))


def test_times_follow_the_profile():
    rates = {"prefill_tps": 10, "decode_tps": 20, "packet_tokens": 2}
    profile = SimulatedProfile(ttft_s=0.5, overhead_s=0.1, answer_tokens=5, **rates)
    events = play(profile, prompt_tokens=40, cached_tokens=10)
    assert [at for at, _ in events] == pytest.approx([3.6, 3.7, 3.8, 3.8])
    assert [len(e) for _, e in events[:-1]] == [2, 2, 1]
    assert events[-1][1] == Ended("stop", Usage(40, 5, 10))
    role, first = play(SimulatedProfile(ttft_s=2, role_at_s=0.5))[:2]
    assert (role, first[0]) == ((0.5, [Delta("", tokens=0, kind=DeltaKind.ROLE)]), 2.0)
    # A trace can say how long prompt and answer are.
    assert play(SimulatedProfile(), prompt_tokens=1234, answer_tokens=7)[-1][1].usage == Usage(1234, 7, 0)


@given(PROFILES, LIMITS, st.text(max_size=30), st.integers(0, 9), st.integers(0, 40))
def test_every_script_is_in_order_and_ends_once(profile, limit, prefix_text, seed, prefix_tokens):
    prefix = Prefix(prefix_text, tokens=prefix_tokens)
    events = play(profile, limited(limit), prefix, seed)
    assert len(events) == len(play(profile, limited(limit), prefix, seed))
    times = [at for at, _ in events]
    assert times == sorted(times)
    assert all(isinstance(e, list) and e for _, e in events[:-1])
    last = events[-1][1]
    written = sum(d.tokens for _, e in events[:-1] for d in e)
    if limit is not None:
        assert written <= max(0, limit - prefix_tokens)
    if isinstance(last, EndpointFailure):
        return
    assert isinstance(last, Ended)
    assert last.usage.completion_tokens >= written
    if profile.context_tokens is not None:
        assert last.usage.prompt_tokens + written <= profile.context_tokens


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
    foreign = Prefix("Blue because of Rayleigh", tokens=4)
    after_word = text_of(play(profile, ask(), foreign))
    assert after_word.startswith(" ")
    assert len(tokenise(after_word)) >= 26
    assert after_word == text_of(play(profile, ask(), foreign, seed=5))
    assert not text_of(play(profile, ask(), Prefix("Blue because of ", tokens=4))).startswith(" ")
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
    assert text_of(play(profile, ask(), BLUE)).startswith(BLUE.text + " ") == (seam in ("leaks", "doubts"))


# ---------------------------------------------------------------------- failing


def faulty(*args, **kwargs):
    fault = Fault(*args, **kwargs)
    return play(SimulatedProfile(answer_tokens=6, decode_tps=10, packet_tokens=4, fault=fault))


def test_faults():
    [(at, failure)] = faulty(0, 0.25, FailureKind.RATE_LIMIT, retry_after_s=3.0)
    assert (at, failure.kind, failure.retry_after_s) == (0.25, FailureKind.RATE_LIMIT, 3.0)
    assert isinstance(failure.error, openai.RateLimitError)
    [(_, text), (at, failure)] = faulty(3, 15.0, FailureKind.STALLED)
    assert (len(text), at, failure.kind) == (3, 15.0, FailureKind.STALLED)
    hiccup = faulty(3, 2.0, None)
    assert [(at, len(e)) for at, e in hiccup[:-1]] == [(0.0, 3), (2.0, 1), (2.4, 2)]
    assert faulty(3, math.inf)[-1][0] == math.inf
    assert isinstance(faulty(3, probability=0.0)[-1][1], Ended)
    restarts = play(SimulatedProfile(seam="restarts"), ask(), BLUE)
    assert [e.kind for _, e in restarts] == [FailureKind.SEAM]
    for kind in FailureKind:
        [(_, failure)] = faulty(kind=kind)
        assert failure.kind is kind
        assert isinstance(failure.error, openai.OpenAIError)


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


async def written(attempt):
    """Its first piece of text."""
    while isinstance(event := await anext(attempt), Started):
        pass
    return event


@settings(max_examples=60)
@given(PROFILES, LIMITS, st.sampled_from(["device", "server"]))
def test_the_endpoint_plays_exactly_the_script(profile, limit, place):
    endpoint = SimulatedEndpoint("e", profile, place=place, seed=4)
    seen = run(collect, endpoint.open(limited(limit)))
    expected = play(profile, limited(limit), seed=[4, 1], endpoint="e")
    assert [at for at, _ in seen] == pytest.approx([at for at, _ in expected])
    plain = [e.kind if isinstance(e, EndpointFailure) else e for _, e in seen]
    assert plain == [e.kind if isinstance(e, EndpointFailure) else e for _, e in expected]
    assert endpoint.busy == 0


def test_a_device_remembers_what_it_has_prefilled_even_if_it_was_cancelled():
    endpoint = SimulatedEndpoint("d", SimulatedProfile(prefill_tps=100, answer_tokens=20), place="device")
    long, other = ask("word " * 300), ask("Something else")

    async def main():
        attempt = endpoint.open(long)
        with anyio.move_on_after(1.5):
            await written(attempt)
        rest = await collect(endpoint.open(long))
        warm = await collect(endpoint.open(long, Prefix(text_of(rest)[:40], tokens=7)))
        return attempt.usage, rest, warm, (await collect(endpoint.open(other)))[-1][1].usage

    first, rest, warm, foreign = run(main)
    assert first == Usage(150, 0, 0)
    assert rest[-1][1].usage.cached_tokens == 150
    assert rest[0][0] == pytest.approx((rest[-1][1].usage.prompt_tokens - 150) / 100)
    assert warm[0][0] == pytest.approx(0.01)
    assert warm[-1][1].usage.cached_tokens == warm[-1][1].usage.prompt_tokens - 1
    assert foreign.cached_tokens == 1  # only the first message's header is the same
