"""The stand-ins for the SDK's Azure clients send what those send."""

from __future__ import annotations

import openai
import pytest
from sdk_parity.side_by_side import CHAT, SAID, ask, behind, facts, taken

import disco

pytestmark = pytest.mark.anyio

ENDPOINT = "https://own.azure.test"
VERSION = "2026-06-01"


@pytest.fixture(params=["sync", "async"])
def azure(request):
    """The SDK's class and ours."""
    if request.param == "sync":
        return openai.AzureOpenAI, disco.AzureDisco
    return openai.AsyncAzureOpenAI, disco.AsyncAzureDisco


def provider(azure):
    """Gives a new token for each request."""
    given = iter(range(1, 9))

    async def later():
        return f"token-{next(given)}"

    return later if issubclass(azure[0], openai.AsyncOpenAI) else lambda: f"token-{next(given)}"


def made(azure, name):
    """Settings of a client, made anew for each: a provider of tokens counts."""
    ways = {
        "a key": {"azure_endpoint": ENDPOINT, "api_key": "k"},
        "a deployment": {"azure_endpoint": ENDPOINT, "api_key": "k", "azure_deployment": "gpt"},
        "an address": {"base_url": f"{ENDPOINT}/openai/v1", "api_key": "k"},
        "a token": {"azure_endpoint": ENDPOINT, "api_key": None, "azure_ad_token": "t"},
        "a provider of tokens": {"azure_endpoint": ENDPOINT, "api_key": None},
    }
    more = {"azure_ad_token_provider": provider(azure)} if name == "a provider of tokens" else {}
    return {"base_url": None, "api_version": VERSION, **ways[name], **more}


WAYS = ["a key", "a deployment", "an address", "a token", "a provider of tokens"]
CALLS = [
    lambda c: c.chat.completions.create(**CHAT),
    lambda c: c.chat.completions.create(**CHAT, stream=True),
    lambda c: c.responses.create(model="m", input="x"),
    lambda c: c.completions.create(model="m", prompt="x"),
]
HEADERS = ("api-key", "authorization", "user-agent", "openai-organization")


async def in_turn(client):
    return [facts(await taken(call(client))) for call in CALLS]


async def outcomes(azure, name, call, more=None):
    plain, ours = [
        await ask(kind, call, **made(azure, name), **extra)
        for kind, extra in zip(azure, ({}, more or {}), strict=True)
    ]
    assert (plain.error, ours.error) == (None, None)
    return plain, ours


@pytest.mark.parametrize("name", WAYS)
async def test_with_the_server_alone_the_requests_are_the_sdks(azure, name):
    assert issubclass(azure[1], azure[0])
    plain, ours = await outcomes(azure, name, in_turn)
    assert ours.sent() == plain.sent()
    assert all(f"api-version={VERSION}" in str(request.url) for request in ours.requests)
    assert ours.value == plain.value


@pytest.mark.parametrize("name", WAYS)
async def test_with_a_local_model_behind_they_go_to_the_same_address_with_the_same_credentials(azure, name):
    plain, ours = await outcomes(azure, name, in_turn, behind())
    for at in (0, 1, 3):  # a routed answer of the Responses API is a chat completion to the server
        expected, sent = plain.requests[at], ours.requests[at]
        assert str(sent.url) == str(expected.url)
        assert {n: sent.headers.get(n) for n in HEADERS} == {n: expected.headers.get(n) for n in HEADERS}


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "behind"])
async def test_a_copy_is_one_of_azure(azure, alone):
    def call(client):
        copied = client.with_options(azure_ad_token="second", api_version="2027-01-01")
        assert type(copied) is type(client)
        return copied.chat.completions.create(**CHAT)

    plain, ours = await outcomes(azure, "a token", call, {} if alone else behind())
    assert str(ours.requests[0].url) == str(plain.requests[0].url)
    assert (
        ours.requests[0].headers["authorization"]
        == plain.requests[0].headers["authorization"]
        == "Bearer second"
    )
    assert ours.value.choices[0].message.content == SAID


def test_what_azures_clients_refuse_is_refused_alike(azure):
    for wrong in (
        {},
        {"azure_endpoint": ENDPOINT},
        {"azure_endpoint": ENDPOINT, "api_version": "1", "api_key": None},
    ):
        errors = []
        for kind in azure:
            with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever it is, both raise it
                kind(**{"api_key": "k", **wrong})
            errors.append((type(caught.value), str(caught.value)))
        assert errors[1] == errors[0]


def test_without_credentials_the_local_model_answers_alone():
    made = {"azure_endpoint": ENDPOINT, "api_version": VERSION}
    for kind in (disco.AzureDisco, disco.AsyncAzureDisco):
        with pytest.raises(openai.OpenAIError, match="Missing credentials"):
            kind(**made)
        local = behind()["local"]
        assert kind(**made, local=local).with_options(timeout=3).server is None
        assert kind(**made, local=local, azure_ad_token="t").with_options(timeout=3).server is not None
