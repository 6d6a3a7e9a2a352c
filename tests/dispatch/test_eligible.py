"""Only endpoints that may serve a request get it, and a refusal says why for each of them."""

import openai
import pytest

from disco.dispatch import Candidate, Features, eligible
from disco.errors import ContextLengthError, NoEndpointError

PHONE = Candidate("phone", "device", context_tokens=2_048)
HOME = Candidate("home", "own")
CLOUD = Candidate("cloud", "any", context_tokens=8_192)
SERVED = {"phone": frozenset(), "cloud": frozenset({"tools", "json_schema"})}


def names(features, candidates=(PHONE, CLOUD), served=SERVED):
    return [c.name for c in eligible(features, candidates, served)]


ALL = (PHONE, HOME, CLOUD)


@pytest.mark.parametrize(
    ("wanted", "candidates", "left"),
    [
        (Features(10), (PHONE, CLOUD), ["phone", "cloud"]),
        (Features(10), (CLOUD, PHONE), ["cloud", "phone"]),  # in the given order
        (Features(10, reach="device"), ALL, ["phone"]),
        (Features(10, reach="own"), ALL, ["phone", "home"]),
        (Features(10), ALL, ["phone", "home", "cloud"]),
        (Features(10, needs=frozenset({"tools"})), (PHONE, CLOUD), ["cloud"]),
        # Without a limit, 64 tokens are kept for the answer.
        (Features(2_048 - 64), (PHONE, CLOUD), ["phone", "cloud"]),
        (Features(2_048 - 63), (PHONE, CLOUD), ["cloud"]),
        (Features(48, max_tokens=2_000), (PHONE, CLOUD), ["phone", "cloud"]),
        (Features(49, max_tokens=2_000), (PHONE, CLOUD), ["cloud"]),
        (Features(10**9), (Candidate("any", "any"),), ["any"]),  # an unknown context is not enforced
    ],
)
def test_endpoints_that_may_serve_a_request(wanted, candidates, left):
    assert names(wanted, candidates) == left


def test_unrestricted_features_pass_everything_on_and_unknown_endpoints_nothing():
    wanted = Features(10, needs=frozenset({"hologram"}))
    assert names(wanted, served={"cloud": None}) == ["cloud"]
    with pytest.raises(NoEndpointError):
        names(wanted, served={})
    with pytest.raises(NoEndpointError, match="No endpoint is configured"):
        names(Features(1), ())
    with pytest.raises(NoEndpointError, match=r'cloud \(server\): .*own machines.*reach "own".*reach "any"'):
        names(Features(10, reach="own"), (CLOUD,))


def test_too_long_everywhere_is_a_context_error_that_openai_users_know():
    with pytest.raises(ContextLengthError, match=r"phone.*2048.*cloud.*8192.*shorten") as caught:
        names(Features(9_000))
    assert isinstance(caught.value, openai.BadRequestError)
    assert caught.value.code == "context_length_exceeded"
    # Also where one place alone may serve it.
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
