"""A server of the user's whose model sees no images: known to the plan where the server tells, else by its refusal."""

from __future__ import annotations

import httpx2
import openai
import pytest

from disco import AsyncDisco, LocalServer
from disco.endpoints.local_server.unserved import sees_none
from disco.errors import EndpointFailure, FailureKind, NoEndpointError
from disco.request import Request
from disco.testing.asking import complete
from tests.endpoints.host_abilities import PIXEL

SEEN = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "What is it?"},
            {"type": "image_url", "image_url": {"url": PIXEL}},
        ],
    }
]


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.mark.real
@pytest.mark.anyio
async def test_a_llama_server_without_a_projector_refuses_images_by_name(native_server):
    local = LocalServer(base_url=native_server.base_url, continuation="flags")
    async with AsyncDisco(local=local, preset="private") as client:
        with pytest.raises(NoEndpointError, match=r"images .*start it with --mmproj") as raised:
            await client.chat.completions.create(model="m", messages=SEEN)
        assert raised.value.param == "messages"
    endpoint = local.endpoint()
    try:
        with pytest.raises(EndpointFailure) as failed:  # it has not told of itself, so the server is asked
            await complete(endpoint, Request(SEEN, "m", {"max_tokens": 2}))
    finally:
        await endpoint.aclose()
    assert failed.value.kind is FailureKind.UNSERVED
    assert failed.value.error.param == "messages"
    assert "--mmproj" in str(failed.value.error)


@pytest.mark.parametrize(
    ("said", "is_so"),
    [
        (
            "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj",
            True,
        ),
        ("this model is missing data required for image input", True),
        ("Model does not support images. Please use a model that does.", True),
        ("smol is not a multimodal model", True),
        ("At most 0 image(s) may be provided in one request.", True),
        ("Failed to load image: corrupt PNG", False),
        ("At most 2 image(s) may be provided in one request.", False),
        ("the model crashed", False),
    ],
)
@pytest.mark.parametrize("status", [400, 500])
def test_what_servers_say_of_images_is_understood_at_any_status(said, is_so, status):
    response = httpx2.Response(status, request=httpx2.Request("POST", "http://localhost/v1/chat/completions"))
    failure = sees_none(openai.APIStatusError(said, response=response, body=None), None, endpoint="device")
    assert (failure is not None) is is_so
    if failure is not None:
        assert (failure.kind, failure.error.param) == (FailureKind.UNSERVED, "messages")
