"""Two servers that refuse: who is asked once more is who asks for it, as by the SDK (`x-should-retry`)."""

from __future__ import annotations

import pytest
from answers.two_servers import GOOD, good, told, two
from faults.in_memory import Reply

pytestmark = pytest.mark.anyio


def refusing(status: int, again: str | None = None) -> Reply:
    headers = {"content-type": "application/json", **({"x-should-retry": again} if again else {})}
    return Reply([b'{"error": {"message": "no"}}'], status, headers)


# What the first and the second say, and how often each is asked.
REFUSALS = {
    "both ask for it": (refusing(400, "true"), refusing(400, "true"), 3, 3),
    "the first asks for it": (refusing(400, "true"), refusing(400), 3, 1),
    "neither asks for it": (refusing(400), refusing(400), 1, 0),
    "the first is busy, and wants no more": (refusing(429, "false"), refusing(500), 1, 3),
    "both have failed, and want no more": (refusing(500, "false"), refusing(500, "false"), 1, 1),
    "the first has failed, and wants no more": (refusing(500, "false"), refusing(400), 1, 1),
}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("name", REFUSALS)
async def test_who_asks_for_it_is_asked_once_more(name, stream):
    first, second, firsts, seconds = REFUSALS[name]
    client, _ = two(first, second)
    async with client:
        got = await told(client, stream=stream)
    assert got.error.status_code == first.status
    asked = [endpoint for endpoint, _ in got.tried]
    assert (asked.count("server"), asked.count("good")) == (firsts, seconds)


async def test_a_server_that_asks_for_it_answers_then_although_the_other_refuses():
    # Its first refusal may be of what disco adds: then it is asked at once without, which counts as no try.
    client, _ = two([refusing(400, "true"), refusing(400, "true"), good()], refusing(400))
    async with client:
        got = await told(client, stream=True)
    assert (got.text, got.error) == (GOOD, None)
    assert got.tried == [("server", "bad_request"), ("good", "bad_request"), ("server", None)]
