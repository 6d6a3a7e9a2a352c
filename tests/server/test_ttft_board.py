"""What `disco serve` publishes of its TTFT: of which answers, how old, and to whom."""

from __future__ import annotations

import json
from types import SimpleNamespace

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from serving import serving

from disco import AsyncDisco
from disco.endpoints.published_ttft import PublishedTtft
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.server.ttft_board import MOST_AGE_S, TtftBoard

CHATS, TTFT = "/v1/chat/completions", "/v1/disco/ttft"
ASKED = {"model": "m", "messages": [{"role": "user", "content": "Tell me about the sea."}], "max_tokens": 3}


@pytest.fixture
def clock():
    return SimpleNamespace(s=0.0)


@pytest.fixture
def board(clock):
    return TtftBoard(clock=lambda: clock.s)


@given(st.lists(st.tuples(st.floats(0, 3000), st.booleans(), st.floats(0, 200)), max_size=30))
def test_whatever_was_measured_the_document_keeps_its_own_rules(seen):
    clock = SimpleNamespace(s=0.0)
    board = TtftBoard(clock=lambda: clock.s)
    for took_s, censored, later_s in seen:
        clock.s += later_s
        board.observe("m", took_s, censored=censored)
    said = PublishedTtft.model_validate_json(board.published("m").model_dump_json())
    counts = [censored for (_, censored, _) in seen]
    assert said.count <= counts.count(False)
    assert len(said.quantiles_s) <= 100
    if said.count:
        assert 0 <= said.newest_age_s <= said.oldest_age_s <= MOST_AGE_S


def test_the_newest_count_most_and_what_is_old_not_at_all(board, clock):
    for _ in range(300):
        board.observe("m", 1.0)
    for _ in range(60):
        clock.s += 10.0
        board.observe("m", 9.0)
    said = board.published("m")
    assert (said.count, said.newest_age_s, said.oldest_age_s) == (360, 0.0, 600.0)
    share = sum(value > 5 for value in said.quantiles_s) / len(said.quantiles_s)
    assert share > 60 / 360  # a change that lasts soon counts alone
    clock.s += 3300.0
    assert board.published("m").count < 60
    clock.s += 3600.0
    assert board.published("m") == PublishedTtft(model="m", count=0)


def test_it_is_computed_once_a_second_whoever_asks(board, clock):
    board.observe("m", 1.0)
    first = board.published("m")
    board.observe("m", 2.0)
    assert board.published("m") is first
    clock.s += 1.0
    assert board.published("m").count == 2
    assert board.published("never asked").count == 0
    assert list(board._said) == ["m"]


def test_an_answer_that_was_given_up_took_longer(board):
    for _ in range(10):
        board.observe("m", 1.0)
        board.observe("m", 2.0, censored=True)
    board.observe("m", 5.0)
    said = board.published("m")
    assert (said.count, said.censored) == (11, 10)
    assert sum(value > 4 for value in said.quantiles_s) > len(said.quantiles_s) / 3


def test_callers_may_make_up_any_number_of_models(board):
    for number in range(200):
        board.observe(f"m{number}", 1.0)
    assert len(board._seen) == 64
    assert board.published("m199").count == 1
    assert board.published("m0").count == 0


@pytest.mark.parametrize(
    ("piece", "is_content"),
    [
        (b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}', False),
        (b'data: {"choices":[{"delta":{"content":"A"}}]}', True),
        (b'data: {"choices":[{"delta":{"reasoning_content": "A"}}]}', True),
        (b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":""}}]}}]}', True),
        (b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"A"}', True),
        (b'event: response.created\ndata: {"type":"response.created"}', False),
        (b": keep-alive\n\n", False),
    ],
)
def test_the_first_content_ends_the_measurement_once(board, clock, piece, is_content):
    watch = board.stopwatch()
    watch.asked("m", None, stream=True)
    clock.s += 2.0
    watch.sent(piece)
    clock.s += 2.0
    watch.sent(piece)
    watch.given_up()
    said = board.published("m")
    assert (said.count, said.quantiles_s[-1:]) == (
        (1, pytest.approx([2.0], rel=0.03)) if is_content else (0, [])
    )


@pytest.mark.parametrize(
    ("model", "options", "stream"),
    [
        ("m", None, False),
        (None, None, True),
        ("m", {"local_only": True}, True),
        ("m", {"preset": "fast"}, True),
        ("m" * 1001, None, True),  # callers may make up any name, but it is not kept
    ],
)
def test_requests_of_another_kind_are_not_measured(board, model, options, stream):
    watch = board.stopwatch()
    watch.asked(model, options, stream=stream)
    watch.sent(b'{"content":"A"}')
    watch.given_up()
    assert not board._seen


GOOD = {"version": 1, "unit": "s", "model": "m", "count": 9, "newest_age_s": 1.0, "oldest_age_s": 2.0}


@pytest.mark.parametrize(
    "lie",
    [
        {"quantiles_s": [0.2, 0.1]},
        {"quantiles_s": [0.1] * 101},
        {"quantiles_s": [-0.1]},
        {"quantiles_s": [1000.1]},
        {"quantiles_s": ["0.1"]},
        {"quantiles_s": [float("nan")]},
        {"quantiles_s": [float("inf")]},
        {"quantiles_s": []},
        {"quantiles_s": [0.1], "count": 0},
        {"quantiles_s": [0.1], "count": -1},
        {"quantiles_s": [0.1], "count": 10**12},
        {"quantiles_s": [0.1], "newest_age_s": 3.0},
        {"quantiles_s": [0.1], "newest_age_s": -1.0},
        {"quantiles_s": [0.1], "oldest_age_s": float("inf")},
        {"quantiles_s": [0.1], "version": 2},
        {"quantiles_s": [0.1], "unit": "ms"},
        {"quantiles_s": [0.1], "model": "m" * 2000},
    ],
    ids=lambda lie: str(lie)[:40],
)
def test_a_document_that_breaks_the_rules_is_none(lie):
    assert PublishedTtft.model_validate_json(json.dumps({**GOOD, "quantiles_s": [0.1]})).count == 9
    with pytest.raises(ValidationError):
        PublishedTtft.model_validate_json(json.dumps({**GOOD, **lie}))


@pytest.mark.real
def test_it_is_announced_on_answers_published_by_model_and_kept_behind_the_key():
    def made(**more):
        device = SimulatedEndpoint("device", SimulatedProfile(answer_tokens=3, gap_s=0.0), place="device")
        return AsyncDisco(local=device, policy="private", **more)

    with (
        serving(made, key="k" * 20) as served,
        openai.OpenAI(base_url=served.base_url, api_key="k" * 20, max_retries=0) as plain,
    ):
        keyed = {"Authorization": "Bearer " + "k" * 20}
        assert served.ask(f"{TTFT}?model=m").status == 401
        assert served.ask(f"{TTFT}?model=m", headers=keyed).json["count"] == 0
        assert served.ask(TTFT, headers=keyed).error["param"] == "model"
        for _ in range(5):
            text = [c for c in plain.chat.completions.create(**ASKED, stream=True) if c.choices]
            assert text
        list(plain.responses.create(model="m", input="Hello.", max_output_tokens=3, stream=True))
        plain.chat.completions.create(**ASKED)
        said = served.ask(f"{TTFT}?model=m", headers=keyed)
        models = served.ask("/v1/models", headers=keyed)
        answer = served.ask(CHATS, {**ASKED, "stream": True}, headers=keyed)
    document = PublishedTtft.model_validate_json(said.body)
    assert (document.count, document.censored) == (6, 0)
    assert models.headers["x-disco-ttft"] == answer.headers["x-disco-ttft"] == "1"
