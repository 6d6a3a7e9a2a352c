"""The script of a simulated endpoint: a pure function of profile, request, prefix and seed."""

import math

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.endpoints.simulation.simulated_script import (
    Fault,
    SimulatedProfile,
    seam_report,
    simulated_failure,
)
from disco.endpoints.simulation.simulated_text import canonical, tokenise
from disco.errors import EndpointFailure, FailureKind
from disco.events import Delta, DeltaKind, Ended, SeamReport, Usage
from disco.profiles.time_distribution import Empirical
from disco.request import Prefix
from tests.endpoints.simulated.playing import LIMITS, PROFILES, ask, limited, play, text_of


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
    profile = SimulatedProfile(
        ttft_s=0.5, overhead_s=0.1, prefill_tps=10, decode_tps=20, packet_tokens=2, answer_tokens=5
    )
    events = play(profile, prompt_tokens=40, cached_tokens=10)
    assert [at for at, _ in events] == pytest.approx([3.6, 3.7, 3.8, 3.8])
    assert [len(e) for _, e in events[:-1]] == [2, 2, 1]
    assert events[-1][1] == Ended("stop", Usage(40, 5, 10))
    role, first = play(SimulatedProfile(ttft_s=2, role_at_s=0.5))[:2]
    assert (role, first[0]) == ((0.5, [Delta("", tokens=0, kind=DeltaKind.ROLE)]), 2.0)
    # A trace can say how long prompt and answer are.
    assert play(SimulatedProfile(), prompt_tokens=1234, answer_tokens=7)[-1][1].usage == Usage(1234, 7, 0)


def test_ttft_and_length_can_be_distributions():
    profile = SimulatedProfile(
        ttft_s=Empirical.from_samples([0.2, 0.9]), answer_tokens=Empirical.from_samples([10, 20])
    )

    def lengths(plays):
        return {events[-1][1].usage.completion_tokens for events in plays}

    seeds = [play(profile, seed=s) for s in range(20)]
    firsts = {events[0][0] for events in seeds}
    assert 0.2 <= min(firsts) < max(firsts) <= 0.9
    # The length is the request's, whatever the randomness in time.
    assert len(lengths(seeds)) == 1 < len(lengths(play(profile, ask(str(i))) for i in range(20)))


@given(PROFILES, LIMITS, st.text(max_size=30), st.integers(0, 9), st.integers(0, 40))
def test_every_script_is_in_order_and_ends_once(profile, limit, prefix_text, seed, prefix_tokens):
    prefix = Prefix(prefix_text, tokens=prefix_tokens)
    events = play(profile, limited(limit), prefix, seed)
    assert len(events) == len(play(profile, limited(limit), prefix, seed))
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
    leaks = text_of(play(profile, ask(), Prefix("Blue because", tokens=2))).startswith("Blue because ")
    assert leaks == (seam in ("leaks", "doubts"))


# ---------------------------------------------------------------------- failing


def test_a_server_that_restarts_fails_at_the_seam():
    events = play(SimulatedProfile(seam="restarts"), ask(), Prefix("Blue because", tokens=2))
    assert [e.kind for _, e in events] == [FailureKind.SEAM]


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


@pytest.mark.parametrize("kind", list(FailureKind))
def test_every_kind_of_failure_has_an_openai_exception(kind):
    failure = simulated_failure(kind, "edge")
    assert failure.kind is kind
    assert isinstance(failure.error, openai.OpenAIError)
