"""The rounds of a verify server over HTTP: what it answers, and what it refuses."""

from __future__ import annotations

import json
import logging

import pytest
from asgi import asking
from fake_engine import FIRST, KEY, OPENING, ROUNDS, VERIFIER, FakeEngine, a_round, lines, token
from hypothesis import given, settings
from hypothesis import strategies as st

from disco.endpoints.llamacpp.batching.round_refusals import Superseded
from disco.errors import ContextLengthError, EndpointFailure, FailureKind, LocalModelError, NoEndpointError
from disco.server import Metrics
from disco.speculate.messages import Round, Verdict, VerifierFacts

CANARY = "CANARYPROMPT"


@pytest.fixture(scope="module")
def asked():
    with asking(max_body_bytes=200_000, metrics=Metrics(), verifier=FakeEngine()) as asked:
        yield asked


def test_an_answer_by_rounds():
    """Opened, drafted, drafted past its end, and taken up alone; what the messages hold arrives."""
    with asking(verifier=FakeEngine()) as asked:
        prefix = {
            "text": "Once",
            "tokens": 1,
            "ids": [9],
            "vocabulary": "v",
            "withheld": "",
            "ends_in_word": True,
        }
        opening = {**OPENING, "params": {"temperature": 0.5}, "seed": 2**64 - 1, "prefix": prefix, "ids": []}
        first = asked(ROUNDS, {**FIRST, "opening": opening, "wants_prompt": True})
        assert (first.status, first.headers["content-type"]) == (200, "application/json")
        assert first.headers["x-request-id"].startswith("req_")
        verdict = Verdict.from_json(first.json)
        assert (verdict.ids, verdict.prompt_ids) == ((token(0),), (1, 2, 3))
        assert verdict.deltas == ({"delta": {"content": "Größe €"}, "tokens": 1, "ids": [token(0)]},)
        assert asked.verifier.rounds[-1] == Round.from_json(
            {**FIRST, "opening": opening, "wants_prompt": True}
        )

        right_and_wrong = asked(ROUNDS, a_round(1, 1, token(1), token(2), 5, 6))
        verdict = Verdict.from_json(right_and_wrong.json)
        assert (verdict.at, verdict.ids) == (1, (token(1), token(2), token(3)))
        assert (verdict.judged, verdict.accepted, verdict.rows) == (3, 2, 5)
        stale = Verdict.from_json(asked(ROUNDS, a_round(2, 9, 7)).json)
        assert (stale.number, stale.at, stale.ids) == (2, 4, ())
        alone = [Verdict.from_json(line) for line in lines(asked(ROUNDS, a_round(3, 4, alone=5)))]
        assert [v.ids for v in alone] == [(token(n),) for n in range(4, 9)]


def test_what_the_server_says_of_itself(asked):
    facts = VerifierFacts.from_json(asked(VERIFIER).json)
    assert facts == asked.verifier.facts()
    with asking() as without:
        for path, body in ((ROUNDS, FIRST), (VERIFIER, None)):
            answer = without(path, body)
            assert (answer.status, answer.error["code"]) == (404, "unknown_url")


def test_a_lone_surrogate_in_a_verdict_does_not_end_the_answer(monkeypatch):
    with asking(verifier=FakeEngine()) as asked:
        odd = Verdict(number=0, at=0, ids=(5,), deltas=({"delta": {"content": "\ud800x"}},))
        monkeypatch.setattr(asked.verifier, "_verdict", lambda *_: odd)
        assert asked(ROUNDS, FIRST).json["deltas"] == [{"delta": {"content": "?x"}}]


WORDS = "x" * 50
PREFIX = {"text": f"{CANARY} {WORDS}"}


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (b"", "invalid_json", "parse"),
        (b"[" * 100_000, "invalid_json", "parse"),
        (b'{"key": NaN}', "invalid_json", "parse"),
        (b'{"key": "\\ud800"}', "invalid_json", "parse"),
        (b"[]", "invalid_json", "object"),
        ({}, "invalid_round", "key"),
        ({**FIRST, "key": KEY.upper()}, "invalid_round", "key must be 32 hexadecimal digits"),
        ({**FIRST, "key": KEY + "\n"}, "invalid_round", "key"),
        ({**FIRST, "key": KEY[:-1]}, "invalid_round", "key"),
        ({**FIRST, "number": -1}, "invalid_round", "number"),
        ({**FIRST, "number": True}, "invalid_round", "number"),
        ({**FIRST, "at": 0.0}, "invalid_round", "at"),
        ({**FIRST, "draft": [-1]}, "invalid_round", "draft"),
        ({**FIRST, "draft": [2**31]}, "invalid_round", "draft"),
        ({**FIRST, "draft": [1] * 65}, "invalid_round", "at most 64"),
        ({**FIRST, "alone": -1}, "invalid_round", "alone"),
        ({**FIRST, "opening": []}, "invalid_round", "opening"),
        ({**FIRST, "opening": {}}, "invalid_round", "opening.messages"),
        ({**FIRST, "opening": {"messages": [3]}}, "invalid_round", "opening.messages"),
        ({**FIRST, "opening": {"messages": []}}, "empty_array", "empty"),
        ({**FIRST, "opening": {**OPENING, "params": {"temperature": CANARY}}}, "invalid_type", "temperature"),
        ({**FIRST, "opening": {**OPENING, "seed": 2**64}}, "invalid_round", "seed"),
        ({**FIRST, "opening": {**OPENING, "ids": ["x"]}}, "invalid_round", "opening.ids"),
        ({**FIRST, "opening": {**OPENING, "prefix": {"txt": CANARY}}}, "unknown_parameter", "opening.prefix"),
        ({**FIRST, "opening": {**OPENING, "prefix": {"text": 5}}}, "invalid_type", "prefix.text"),
        (
            {**FIRST, "opening": {**OPENING, "prefix": {**PREFIX, "ids": [1.5]}}},
            "invalid_type",
            "prefix.ids",
        ),
        (
            {**FIRST, "opening": {**OPENING, "prefix": {**PREFIX, "tokens": -1}}},
            "invalid_type",
            "prefix.tokens",
        ),
        (
            {**FIRST, "opening": {**OPENING, "prefix": {**PREFIX, "tokens": True}}},
            "invalid_type",
            "prefix.tokens",
        ),
        (
            {**FIRST, "opening": {**OPENING, "prefix": {**PREFIX, "withheld": "y"}}},
            "invalid_type",
            "withheld",
        ),
        (
            {**FIRST, "opening": {"messages": [{"role": 5, "content": CANARY}]}},
            "invalid_type",
            "messages[0].role",
        ),
    ],
    ids=lambda value: repr(value)[-40:],
)
def test_a_broken_message_is_refused_and_its_field_named(asked, caplog, body, code, says):
    caplog.set_level("DEBUG")
    before = len(asked.verifier.rounds)
    answer = asked(ROUNDS, body)
    assert (answer.status, answer.error["code"]) == (400, code)
    assert says in answer.error["message"]
    assert CANARY not in answer.body.decode() + caplog.text
    assert KEY[:8] not in answer.body.decode() + caplog.text
    assert len(asked.verifier.rounds) == before


def failure(kind, error, **more):
    return EndpointFailure(kind, error, **more)


FAILURES = [
    (failure(FailureKind.BAD_REQUEST, NoEndpointError("no such stop", param="stop")), 400, None, "stop"),
    (failure(FailureKind.UNSERVED, NoEndpointError("no audio")), 400, "no_eligible_endpoint", None),
    (
        failure(FailureKind.CONTEXT_LENGTH, ContextLengthError("too long")),
        400,
        "context_length_exceeded",
        None,
    ),
    (failure(FailureKind.BAD_REQUEST, LocalModelError("no such token")), 400, "invalid_round", "token"),
    (failure(FailureKind.CONTEXT_LENGTH, LocalModelError("long")), 400, "context_length_exceeded", "long"),
    (failure(FailureKind.RATE_LIMIT, LocalModelError(CANARY)), 429, "rate_limit_exceeded", "1"),
    (failure(FailureKind.RATE_LIMIT, LocalModelError(CANARY), retry_after_s=3.2), 429, None, "3"),
    (failure(FailureKind.CRASHED, LocalModelError(CANARY)), 503, "verifier_failed", None),
    (failure(FailureKind.TIMEOUT, LocalModelError(CANARY)), 503, "verifier_failed", None),
]


@pytest.mark.parametrize("alone", [0, 3])
@pytest.mark.parametrize(
    ("fails", "status", "code", "more"), FAILURES, ids=[f"{e.kind} {more}" for e, *_, more in FAILURES]
)
def test_a_failure_of_the_engine_has_its_status(caplog, fails, status, code, more, alone):
    """Before the first verdict as a response, later as the last line."""
    caplog.set_level("DEBUG")
    for good in (0, 2) if alone else (0,):
        with asking(verifier=FakeEngine(fails=fails, good=good)) as asked:
            answer = asked(ROUNDS, {**FIRST, "alone": alone})
        assert answer.status == (200 if good else status)
        error = lines(answer)[-1]["error"] if good else answer.error
        assert error["code"] == code or code is None
        if status == 429 and not good:
            assert answer.headers["retry-after"] == more
        if good:
            assert len(lines(answer)) == good + 1
        assert CANARY not in answer.body.decode() + caplog.text


def test_an_answer_that_is_lost_is_a_409_of_its_own(asked, caplog):
    """And another key, however near, finds nothing."""
    caplog.set_level("DEBUG")
    asked(ROUNDS, FIRST)
    for key in (KEY[::-1], KEY[:-1] + "e", "0" * 32):
        answer = asked(ROUNDS, {**a_round(1, 1, 5), "key": key})
        assert (answer.status, answer.error["code"]) == (409, "answer_lost")
        assert "opening" in answer.error["message"]
        assert key not in answer.body.decode() + caplog.text
    assert "(answer_lost)" in caplog.text


def test_an_answer_that_is_let_go_is_gone_at_once(asked, caplog):
    caplog.set_level("DEBUG")
    asked(ROUNDS, FIRST)
    for _ in range(2):
        answer = asked(f"{ROUNDS}/{KEY}", method="DELETE")
        assert (answer.status, answer.body) == (204, b"")
    assert asked.verifier.released[-2:] == [KEY] * 2
    assert asked(ROUNDS, a_round(1, 1, 5)).error["code"] == "answer_lost"
    assert asked(f"{ROUNDS}/{KEY}", method="GET").status == 405
    assert 'path="/v1/disco/rounds/{key}",status="204"' in asked("/metrics").body.decode()
    assert KEY not in asked("/metrics").body.decode() + caplog.text
    with asking(key="k" * 32, verifier=FakeEngine()) as guarded:
        assert guarded(f"{ROUNDS}/{KEY}", method="DELETE").status == 401
        assert not guarded.verifier.released


@pytest.mark.parametrize("good", [0, 2])
def test_a_round_that_came_again_elsewhere_is_a_409_of_its_own(good):
    with asking(verifier=FakeEngine(fails=Superseded(), good=good)) as asked:
        answer = asked(ROUNDS, {**FIRST, "alone": 5})
        error = lines(answer)[-1]["error"] if good else answer.error
        assert (answer.status, error["code"]) == (200 if good else 409, "superseded")


ODD = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
)
NAMES = [
    "key",
    "number",
    "at",
    "draft",
    "alone",
    "opening",
    "wants_prompt",
    "messages",
    "params",
    "seed",
    "prefix",
]
NAMES += ["ids", "text", "tokens", "vocabulary", "withheld", "role", "content", "stop", "tools"]
ANYTHING = st.recursive(
    ODD | st.just(KEY),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=6,
)


@settings(max_examples=100)
@given(st.data())
def test_no_body_is_answered_with_a_500(asked, data):
    some = st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=3)
    body = {**FIRST, **data.draw(some)}
    if data.draw(st.booleans()):
        body["opening"] = {**OPENING, **data.draw(some)}
    if data.draw(st.booleans()) and isinstance(body["opening"], dict):
        body["opening"] = {**body["opening"], "prefix": data.draw(some)}
    answer = asked(ROUNDS, body if data.draw(st.integers(0, 9)) else json.dumps(body).encode()[:-2])
    assert answer.status in (200, 400, 409), answer


@settings(max_examples=50)
@given(st.binary(max_size=60))
def test_nor_are_any_bytes(asked, body):
    assert asked(ROUNDS, body).status == 400


def test_metrics_count_verdicts_and_show_the_load():
    with asking(metrics=Metrics(), verifier=FakeEngine()) as asked:
        asked(ROUNDS, FIRST)
        asked(ROUNDS, a_round(1, 1, token(1), token(2), 5, 6))
        asked(ROUNDS, a_round(2, 4, token(4)))
        asked(ROUNDS, a_round(3, 90, token(4)))  # stale: nothing was computed
        asked(ROUNDS, a_round(4, 6, alone=3))
        page = asked("/metrics").body.decode().splitlines()
    seen = {k: float(v) for k, v in (line.rsplit(" ", 1) for line in page if not line.startswith("#"))}
    expected = {
        'disco_verify_rounds_total{mode="window"}': 4.0,
        'disco_verify_rounds_total{mode="alone"}': 3.0,
        'disco_verify_drafted_tokens_total{verdict="accepted"}': 3.0,
        'disco_verify_drafted_tokens_total{verdict="differed"}': 1.0,
        "disco_verify_round_rows_count": 6.0,
        "disco_verify_round_rows_sum": 1.0 + 5.0 + 2.0 + 3.0,
        "disco_verify_queue_seconds_sum": pytest.approx(6 * 0.002),
        "disco_verify_batch_seconds_sum": pytest.approx(6 * 0.03),
        "disco_verify_rounds_waiting": 2.0,
        "disco_verify_slots_busy": 0.0,
        "disco_verify_slots": 8.0,
        f'disco_http_requests_total{{path="{ROUNDS}",status="200"}}': 5.0,
    }
    assert {name: seen[name] for name in expected} == expected


def test_an_engine_without_a_verdict_is_not_taken_for_an_answer(monkeypatch, caplog):
    caplog.set_level(logging.WARNING)

    async def nothing(_):
        return
        yield

    with asking(verifier=FakeEngine()) as asked:
        monkeypatch.setattr(asked.verifier, "round", nothing)
        for alone in (0, 3):
            answer = asked(ROUNDS, {**FIRST, "alone": alone})
            assert (answer.status, answer.error["code"]) == (503, "verifier_failed")
    assert "no verdict" in caplog.text
