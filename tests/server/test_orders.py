"""What another program of ours asks a model of this one for is checked as a caller's request is."""

from __future__ import annotations

import pytest

from disco.errors import NoEndpointError
from disco.request import Prefix
from disco.request_checks import checked_order

HI = [{"role": "user", "content": "secret"}]
WRONG = [
    ({"temperature": "hot"}, {}, "temperature"),
    ({"max_tokens": 1.5}, {}, "max_tokens"),
    ({"tools": {}}, {}, "tools"),
    ({"logit_bias": {"secret": 1}}, {}, "logit_bias"),
    ({"stop": 5}, {}, "stop"),
    ({"messages": []}, {}, "messages"),
    ({"messages": [{"role": 1}]}, {}, "messages[0].role"),
    ({}, {"cap": 0}, "cap"),
    ({}, {"cap": True}, "cap"),
    ({}, {"wants": ["a"] * 17}, "wants"),
    ({}, {"wants": [1]}, "wants"),
    ({}, {"classes": ["secret"]}, "classes"),
    ({}, {"classes": [str(number) for number in range(257)]}, "classes"),
    ({}, {"classes": ["secret", "secret "]}, "classes"),
    ({}, {"prefix": []}, "prefix"),
    ({}, {"prefix": {"text": 1}}, "prefix.text"),
    ({}, {"prefix": {"secret": 1}}, "prefix"),
    ({}, {"prefix": {"tokens": -1}}, "prefix.tokens"),
    ({}, {"prefix": {"tokens": True}}, "prefix.tokens"),
    ({}, {"prefix": {"ids": [1, -1]}}, "prefix.ids"),
    ({}, {"prefix": {"ids": [2**31]}}, "prefix.ids"),
    ({}, {"prefix": {"text": "ab", "withheld": "a"}}, "prefix.withheld"),
    ({}, {"prefix": {"text": "a" * 10_001, "withheld": "a" * 10_001}}, "prefix.withheld"),
]


@pytest.mark.parametrize(("body", "asked", "param"), WRONG)
def test_what_no_caller_may_ask_for_no_program_may(body, asked, param):
    with pytest.raises(NoEndpointError) as caught:
        checked_order({"messages": HI, **body}, asked)
    assert caught.value.param == param
    assert "secret" not in str(caught.value)


def test_a_field_that_nobody_knows_is_refused_and_not_left_out():
    with pytest.raises(NoEndpointError, match="a field beside prefix, wants"):
        checked_order({"messages": HI}, {"prefixes": {}})


def test_what_is_right_becomes_what_an_endpoint_is_opened_with():
    body = {"messages": HI, "model": "m", "stream": True, "temperature": 0, "stop": ["a", ""]}
    asked = {"prefix": {"text": "On ce", "ids": [1, 2], "withheld": " ce", "vocabulary": None}}
    asked |= {"wants": ["logp"], "classes": ["a", "b"], "cap": 3, "may_be_saved": True}
    request, prefix, wants = checked_order(body, asked)
    assert (request.messages, request.params) == (HI, {"temperature": 0, "stop": ["a", ""]})
    assert (request.classes, request.cap, request.may_be_saved, request.stops) == (
        ("a", "b"),
        3,
        True,
        ("a",),
    )
    assert (prefix, wants) == (Prefix("On ce", ids=(1, 2), withheld=" ce"), frozenset({"logp"}))
    request, prefix, wants = checked_order({"messages": HI}, {"cap": None, "prefix": None})
    assert (request.cap, request.classes, prefix, wants) == (None, (), Prefix(), frozenset())
