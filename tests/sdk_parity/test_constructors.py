"""S8, S15: the constructors, `copy` and `create` take what the SDK's take, and show it."""

from __future__ import annotations

import inspect

import openai
import pytest
from openai.providers import bedrock
from sdk_parity.side_by_side import CHAT, both

pytestmark = pytest.mark.anyio


def chat(client):
    return client.chat.completions.create(**CHAT)


def admin(client):
    return client.admin.organization.projects.list()


MADE = {
    "a region": ({"data_residency": "eu", "base_url": openai.not_given}, chat),
    "a provider": ({"provider": lambda: bedrock(region="us-east-1", api_key="b"), "api_key": None}, chat),
    "an admin key": ({"api_key": None, "admin_api_key": "a"}, admin),
    "an admin key, for a chat": ({"api_key": None, "admin_api_key": "a"}, chat),
    "no key": ({"api_key": None, "_enforce_credentials": False}, chat),
    "no key, the header left out": (
        {"api_key": None, "_enforce_credentials": False},
        lambda client: client.chat.completions.create(**CHAT, extra_headers={"Authorization": openai.omit}),
    ),
    "a copy in a region": (
        {"base_url": openai.not_given},
        lambda client: chat(client.with_options(data_residency="us")),
    ),
    "a copy with an admin key": (
        {"api_key": None, "_enforce_credentials": False},
        lambda client: admin(client.with_options(admin_api_key="a")),
    ),
    "a copy with a key": (
        {"api_key": None, "_enforce_credentials": False},
        lambda client: chat(client.with_options(api_key="second")),
    ),
    "a secret of webhooks": ({"webhook_secret": "s"}, chat),
    "strict validation": ({"_strict_response_validation": True}, chat),
}


@pytest.mark.parametrize("name", MADE)
async def test_a_client_is_made_of_whatever_the_sdk_takes(kinds, name):
    """S8."""
    settings, call = MADE[name]
    if name == "a provider":
        settings = {**settings, "provider": settings["provider"](), "base_url": openai.not_given}
    plain, ours = await both(kinds, call, **settings)
    assert ours.sent() == plain.sent()
    assert ours.failure() == plain.failure()


async def test_what_the_sdk_refuses_is_refused_alike(kinds):
    """S8."""
    for wrong in (
        {"api_key": None},
        {"data_residency": "eu", "base_url": "http://a/v1"},
        {"data_residency": "mars"},
        {"max_retries": None},
        {"http_client": object()},
    ):
        errors = []
        for kind in kinds:
            with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is, both raise it
                kind(**{"api_key": "k", **wrong})
            errors.append((type(caught.value), str(caught.value)))
        assert errors[1] == errors[0]


def shape(function):
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def test_signatures_are_the_sdks(kinds):
    """S15: editors, and libraries that look before they call."""
    plain, ours = (kind(api_key="k") for kind in kinds)
    for way in ("create", "parse", "stream", "retrieve"):
        theirs, own = (getattr(client.chat.completions, way) for client in (plain, ours))
        assert inspect.signature(own) == inspect.signature(theirs)
    theirs, own = (type(client.chat.completions).create for client in (plain, ours))
    assert inspect.signature(own) == inspect.signature(theirs)
    assert inspect.signature(ours.responses.create) == inspect.signature(plain.responses.create)


def test_signatures_have_only_keywords_of_ours_beside_the_sdks(kinds):
    """S15."""
    for name in ("__init__", "copy", "with_options"):
        theirs, own = ({p[0]: p for p in shape(getattr(kind, name))} for kind in kinds)
        assert {n: own.get(n) for n in theirs} == theirs
        added = [p for n, p in own.items() if n not in theirs]
        assert {kind for _, kind, _ in added} <= {inspect.Parameter.KEYWORD_ONLY}
