"""Only endpoints that may serve a request get it, and a refusal says why for each of them."""

import openai
import pytest

from disco.dispatch import Candidate, Features, eligible
from disco.errors import ContextLengthError, NoEndpointError

PHONE = Candidate("phone", "device", context_tokens=2_048)
CLOUD = Candidate("cloud", "any", context_tokens=8_192)
SERVED = {"phone": frozenset(), "cloud": frozenset({"tools", "json_schema"})}


def names(features, candidates=(PHONE, CLOUD), served=SERVED):
    return [c.name for c in eligible(features, candidates, served)]


def test_plain_text_goes_anywhere_in_the_given_order():
    assert names(Features(10)) == ["phone", "cloud"]
    assert names(Features(10), (CLOUD, PHONE)) == ["cloud", "phone"]


def test_local_only_keeps_devices():
    assert names(Features(10, reach="device")) == ["phone"]


def test_a_bound_keeps_what_is_within_it():
    home = Candidate("home", "own")
    for reach, left in {
        "device": ["phone"],
        "own": ["phone", "home"],
        "any": ["phone", "home", "cloud"],
    }.items():
        assert names(Features(10, reach=reach), (PHONE, home, CLOUD)) == left


def test_a_refusal_names_the_bound():
    with pytest.raises(NoEndpointError, match=r'cloud \(server\): .*own machines.*reach "own".*reach "any"'):
        names(Features(10, reach="own"), (CLOUD,))


def test_needs_must_be_served():
    assert names(Features(10, needs=frozenset({"tools"}))) == ["cloud"]


def test_unrestricted_features_pass_everything_on_and_unknown_endpoints_nothing():
    wanted = Features(10, needs=frozenset({"hologram"}))
    assert names(wanted, served={"cloud": None}) == ["cloud"]
    with pytest.raises(NoEndpointError):
        names(wanted, served={})


@pytest.mark.parametrize(
    ("prompt", "limit", "left"),
    [
        (2_048 - 64, None, ["phone", "cloud"]),  # without a limit, 64 tokens are kept for the answer
        (2_048 - 63, None, ["cloud"]),
        (48, 2_000, ["phone", "cloud"]),
        (49, 2_000, ["cloud"]),
    ],
)
def test_prompt_and_answer_must_fit_the_context(prompt, limit, left):
    assert names(Features(prompt, max_tokens=limit)) == left


def test_unknown_context_is_not_enforced():
    assert names(Features(10**9), (Candidate("any", "any"),)) == ["any"]


def test_too_long_everywhere_is_a_context_error_that_openai_users_know():
    with pytest.raises(ContextLengthError, match=r"phone.*2048.*cloud.*8192.*shorten") as caught:
        names(Features(9_000))
    assert isinstance(caught.value, openai.BadRequestError)
    assert caught.value.code == "context_length_exceeded"


def test_too_long_for_the_one_place_that_may_serve_it_is_a_context_error_too():
    with pytest.raises(ContextLengthError, match=r"cloud \(server\): it is a server"):
        names(Features(9_000, reach="device"))


def test_refusal_lists_every_endpoint_with_its_reason_and_a_remedy():
    wanted = Features(10, needs=frozenset({"tools", "audio"}), reach="device")
    with pytest.raises(NoEndpointError) as caught:
        names(wanted)
    assert not isinstance(caught.value, ContextLengthError)
    message = str(caught.value)
    assert "phone (device): it does not serve audio, tools" in message
    assert "cloud (server): it is a server and the request is local-only; it does not serve audio" in message
    assert "local_only = false" in message


def test_no_endpoint_at_all_says_so():
    with pytest.raises(NoEndpointError, match="No endpoint is configured"):
        names(Features(1), ())
