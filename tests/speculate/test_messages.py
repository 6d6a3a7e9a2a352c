"""Messages: what is said is read the same, and nothing that is read can do more than be refused."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco.speculate.messages import (
    LONGEST_DRAFT,
    BadMessageError,
    Opening,
    Round,
    Verdict,
    VerifierFacts,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
PLAIN = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.booleans(), max_size=3)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=6).map(tuple)
WHOLE = st.integers(0, 2**40)
SECONDS = st.floats(0, 1e6)
OPENINGS = st.builds(
    Opening,
    messages=st.lists(PLAIN, max_size=3),
    params=PLAIN,
    seed=st.integers(-(2**63), 2**64 - 1),
    prefix=st.fixed_dictionaries(
        {}, optional={"text": st.text(max_size=8), "tokens": st.integers(0, 99), "ids": IDS.map(list)}
    ),
    ids=IDS,
    fingerprint=st.none() | st.text(max_size=8),
)
ROUNDS = st.builds(
    Round,
    key=st.from_regex("[0-9a-f]{32}", fullmatch=True),
    number=WHOLE,
    at=WHOLE,
    draft=IDS,
    alone=WHOLE,
    opening=st.none() | OPENINGS,
    wants_prompt=st.booleans(),
)
VERDICTS = st.builds(
    Verdict,
    number=WHOLE,
    at=WHOLE,
    ids=IDS,
    deltas=st.lists(PLAIN, max_size=3).map(tuple),
    finish_reason=st.none() | st.sampled_from(("stop", "length", "tool_calls", "")),
    judged=WHOLE,
    accepted=WHOLE,
    rows=WHOLE,
    prompt_tokens=WHOLE,
    cached_tokens=WHOLE,
    completion_tokens=WHOLE,
    rejected_tokens=WHOLE,
    prompt_ids=st.none() | IDS,
    queue_s=SECONDS,
    compute_s=SECONDS,
    waiting=WHOLE,
)
FACTS = st.builds(
    VerifierFacts,
    model=st.text(max_size=8),
    vocabulary=st.none() | st.text(max_size=8),
    context_tokens=WHOLE,
    slots=WHOLE,
    verify_s=st.lists(st.tuples(st.integers(1, 2**20), st.floats(0, 3599)), max_size=4).map(tuple),
    waiting=WHOLE,
    busy=WHOLE,
    fingerprint=st.none() | st.text(max_size=8),
)
KINDS = {Opening: OPENINGS, Round: ROUNDS, Verdict: VERDICTS, VerifierFacts: FACTS}


@given(st.one_of(*KINDS.values()))
def test_what_is_written_is_read_the_same(message):
    assert type(message).from_json(json.loads(json.dumps(message.to_json()))) == message


@given(st.sampled_from(list(KINDS)), JSON)
def test_any_json_is_refused_or_a_message(kind, content):
    read_or_refused(kind, content)


@st.composite
def changed(draw):
    """A message with one of its values, at any depth, replaced by any JSON value or taken out."""
    kind = draw(st.sampled_from(list(KINDS)))
    content = json.loads(json.dumps(draw(KINDS[kind]).to_json()))
    place = content
    while place:
        key = (
            draw(st.sampled_from(sorted(place)))
            if isinstance(place, dict)
            else draw(st.integers(0, len(place) - 1))
        )
        if isinstance(place[key], dict | list) and place[key] and draw(st.booleans()):
            place = place[key]
            continue
        if draw(st.booleans()):
            place[key] = draw(JSON)
        else:
            del place[key]
        break
    return kind, content


@given(changed())
def test_a_message_with_one_wrong_value_is_refused_or_a_message(kind_and_content):
    read_or_refused(*kind_and_content)


def read_or_refused(kind, content):
    with contextlib.suppress(BadMessageError):
        text = json.dumps(kind.from_json(content).to_json())
        # Compared as text: a parameter may be NaN, which equals nothing.
        assert json.dumps(kind.from_json(json.loads(text)).to_json()) == text


KEY = "0" * 32


@pytest.mark.parametrize(
    ("kind", "content", "names"),
    [
        (Round, {"number": 0, "at": 0}, "key"),
        (Round, {"key": KEY.upper() + "A", "number": 0, "at": 0}, "key"),
        (Round, {"key": KEY, "at": 0}, "number"),
        (Round, {"key": KEY, "number": 0, "at": -1}, "at"),
        (Round, {"key": KEY, "number": 0, "at": True}, "at"),
        (Round, {"key": KEY, "number": 0, "at": 0, "draft": [1] * (LONGEST_DRAFT + 1)}, "draft"),
        (Round, {"key": KEY, "number": 0, "at": 0, "draft": [-1]}, "draft"),
        (Round, {"key": KEY, "number": 0, "at": 0, "draft": [2**31]}, "draft"),
        (Round, {"key": KEY, "number": 0, "at": 0, "draft": [1.0]}, "draft"),
        (Round, {"key": KEY, "number": 0, "at": 0, "opening": {"messages": "hello"}}, "opening.messages"),
        (Opening, {"messages": [], "prefix": "secret"}, "opening.prefix"),
        (Opening, {"messages": [], "seed": 2**64}, "seed"),
        (Opening, {"messages": [], "fingerprint": 7}, "opening.fingerprint"),
        (Verdict, {"number": 0, "at": 0, "queue_s": float("nan")}, "queue_s"),
        (Verdict, {"number": 0, "at": 0, "deltas": ["text"]}, "deltas"),
        (Verdict, {"number": 0, "at": 0, "finish_reason": 1}, "finish_reason"),
        (VerifierFacts, {"model": "m", "context_tokens": 1, "slots": 1, "verify_s": [[0, 1.0]]}, "verify_s"),
        (VerifierFacts, {"model": "m", "context_tokens": 1, "slots": 1, "verify_s": [[1, -1.0]]}, "verify_s"),
        (VerifierFacts, {"model": None, "context_tokens": 1, "slots": 1}, "model"),
    ],
)
def test_the_field_that_breaks_the_protocol_is_named(kind, content, names):
    with pytest.raises(BadMessageError, match=names) as refused:
        kind.from_json(content)
    assert "secret" not in str(refused.value)


def test_a_round_is_short():
    """The design's bound: at most 400 bytes for a usual window."""
    one = Round(KEY, 1000, 10_000, tuple(range(100_000, 100_012)))
    assert len(json.dumps(one.to_json(), separators=(",", ":"))) < 400
    assert "secret" not in repr(Opening(messages=[{"content": "secret"}], params={"user": "secret"}))
