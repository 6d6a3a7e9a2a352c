"""What goes over the connection of an attached program comes out as it went in, and rubbish is noticed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from attached.made import ask
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from disco.endpoints.attached.handshake import is_nonce, new_key, new_nonce, proof, token
from disco.endpoints.attached.messages import Order, event_line, failure_line, order_of, read_line
from disco.errors import ContextLengthError, EndpointFailure, FailureKind, LocalModelError, NoEndpointError
from disco.events import Delta, DeltaKind, Ended, Progress, Started, ToolCallDelta, Usage
from disco.request import Prefix, Request
from disco.request_checks import checked_order

TEXT = st.text(max_size=20)
COUNT = st.integers(0, 10_000)
LOGP = st.none() | st.lists(st.floats(-30, 0), max_size=3).map(tuple)
USAGE = st.builds(Usage, COUNT, COUNT, COUNT)
DELTA = st.builds(
    Delta,
    TEXT,
    COUNT,
    st.sampled_from([DeltaKind.TEXT, DeltaKind.REASONING, DeltaKind.TOOL, DeltaKind.ROLE]),
    ids=st.none() | st.lists(COUNT, max_size=3).map(tuple),
    logprobs=st.none() | st.fixed_dictionaries({"content": st.lists(st.dictionaries(TEXT, COUNT))}),
    logp=LOGP,
    label_scores=LOGP,
    reasoning=TEXT,
    tool_calls=st.lists(st.builds(ToolCallDelta, COUNT, TEXT, st.none() | TEXT), max_size=2).map(tuple),
)
EVENT = st.one_of(
    st.lists(DELTA, min_size=1, max_size=3),
    st.builds(Started, COUNT),
    st.builds(Progress, COUNT, COUNT, st.floats(0, 1e6)),
)


@given(EVENT, USAGE)
def test_an_event_comes_out_as_it_went_in(event, usage):
    line = event_line(event, usage)
    assert line.count(b"\n") == 1
    assert read_line(line) == (event, usage)


@given(USAGE)
def test_an_end_has_the_usage_of_the_whole_answer(usage):
    assert read_line(event_line(Ended("stop", usage), Usage())) == (Ended("stop", usage), usage)


@pytest.mark.parametrize(
    "failure",
    [
        EndpointFailure(FailureKind.CRASHED, LocalModelError("It crashed."), retry_after_s=0.5),
        EndpointFailure(FailureKind.CONTEXT_LENGTH, ContextLengthError("Too long.")),
        EndpointFailure(FailureKind.UNSERVED, NoEndpointError("No images.", code="c", param="messages")),
        EndpointFailure(FailureKind.RATE_LIMIT, LocalModelError("Busy."), may_retry=True),
    ],
    ids=lambda failure: failure.kind.value,
)
def test_a_failure_comes_out_as_it_went_in(failure):
    found, usage = read_line(failure_line(failure, Usage(3)))
    assert usage == Usage(3)
    assert (found.kind, found.retry_after_s, found.may_retry) == (
        failure.kind,
        failure.retry_after_s,
        failure.may_retry,
    )
    assert type(found.error) is type(failure.error)
    assert found.error.message == failure.error.message
    assert getattr(found.error, "param", None) == getattr(failure.error, "param", None)


@given(
    st.binary(max_size=60) | st.recursive(st.none() | COUNT | TEXT, st.lists, max_leaves=6).map(json.dumps)
)
@example('["started",Infinity,[1,1,0]]')
@example('["started",1e400,[1,1,0]]')
@example('["deltas",[{"text":"","tokens":Infinity}],[1,1,0]]')
@example('["progress",[1,2,3],[-Infinity,1,0]]')
@example('["ended","stop",[1,1,NaN]]')
def test_rubbish_is_an_error_of_one_kind(line):
    line = line if isinstance(line, bytes) else line.encode()
    try:
        event, _ = read_line(line)
    except ValueError:
        return
    assert event is None or isinstance(event, list | Started | Progress | Ended | EndpointFailure)


@given(
    TEXT,
    st.tuples(TEXT, TEXT),
    st.builds(
        Prefix, st.just(""), COUNT, st.none() | st.lists(COUNT, max_size=3).map(tuple), st.none() | TEXT
    ),
    st.just([]) | st.lists(TEXT.filter(str.strip), min_size=2, max_size=3, unique_by=str.strip),
    st.none() | st.integers(1, 99),
)
def test_an_order_comes_out_as_it_went_in(text, written, prefix, classes, cap):
    prefix = replace(prefix, text="".join(written), withheld=written[1])
    request = Request(ask(text).messages, "m", {"seed": 3, "stop": [text]}, classes=tuple(classes), cap=cap)
    order = Order.model_validate(json.loads(order_of(request, prefix, frozenset({"logp"}))))
    asked = {"prefix": order.prefix, "wants": order.wants, "classes": order.classes, "cap": order.cap}
    made, so_far, wants = checked_order({**order.params, "messages": order.messages}, asked)
    assert (made.messages, made.params, made.classes, made.cap) == (
        request.messages,
        request.params,
        request.classes,
        cap,
    )
    assert (so_far, wants) == (prefix, frozenset({"logp"}))


@pytest.mark.parametrize("wrong", [{"version": 2}, {"messages": "m"}, {"tools": []}, {"prefix": [1]}])
def test_an_order_that_is_none_is_refused_and_not_quoted(wrong):
    order = json.loads(order_of(ask("CANARYPROMPT"), Prefix(), frozenset()))
    with pytest.raises(ValidationError) as caught:
        Order.model_validate(order | wrong)
    assert "CANARYPROMPT" not in str(caught.value)


def test_a_proof_is_for_one_question_one_connection_and_one_key():
    key, nonce = new_key(), new_nonce()
    ends = {"client": ("127.0.0.1", 5000), "server": ("127.0.0.1", 8642)}
    others = [
        proof(new_key(), nonce, **ends),
        proof(key, new_nonce(), **ends),
        proof(key, nonce, **(ends | {"client": ("127.0.0.1", 5001)})),
        proof(key, nonce, **(ends | {"server": ("127.0.0.1", 8643)})),
        proof(key, nonce, **(ends | {"client": ("127.0.0.2", 5000)})),
        token(key),
    ]
    assert len({proof(key, nonce, **ends), *others}) == 7
    assert proof(key, nonce, **ends) == proof(key, nonce, **ends)
    assert is_nonce(nonce)
    assert not any(map(is_nonce, ("", nonce[:-1], nonce + "0", nonce.upper() + "G", nonce + "\n")))
