"""What a caller gets who comes when as many wait for the local model as may."""

from __future__ import annotations

import anyio
import openai
import pytest
from asgi import ask

from disco import AsyncDisco, BusyError
from disco.endpoints.local_server.turn_queue import Turns
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.errors import EndpointFailure
from disco.server import make_app

pytestmark = pytest.mark.anyio
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello."}]}


class Full(SimulatedEndpoint):
    """A model whose queue is full until somebody leaves it."""

    def __init__(self) -> None:
        super().__init__("device", SimulatedProfile(answer="Hello."), place="device")
        self.turns = Turns("device", at_once=1, max_waiting=1)
        self.others = [self.turns.join(), self.turns.join()]

    def open(self, request, prefix=None, **more):
        attempt = super().open(request, **more)
        attempt_next, turns = attempt.__anext__, self.turns

        async def wait_and_go_on():
            turns.join().leave()  # raises where the queue is full
            return await attempt_next()

        class Queued(type(attempt)):
            async def __anext__(self):
                return await wait_and_go_on()

        attempt.__class__ = Queued
        return attempt


@pytest.mark.parametrize("stream", [False, True])
async def test_it_is_told_to_come_again_and_then_gets_an_answer(stream):
    device = Full()
    async with AsyncDisco(local=device, policy="private") as client:
        app = make_app(client)
        refused = await ask(app, "/v1/chat/completions", {**CHAT, "stream": stream})
        assert (refused.status, refused.error["code"], refused.error["type"]) == (
            429,
            "rate_limit_exceeded",
            "requests",
        )
        assert refused.headers["retry-after"] == "1"
        assert "x-should-retry" not in refused.headers, "the SDK then asks again by itself"
        device.others[1].leave()
        answer = await ask(app, "/v1/chat/completions", {**CHAT, "stream": stream})
        assert answer.status == 200


async def test_in_python_it_is_the_sdks_error_for_too_many_requests():
    async with AsyncDisco(local=Full(), policy="private", max_retries=0) as client:
        with anyio.fail_after(30), pytest.raises(openai.RateLimitError, match="1 requests wait") as refused:
            await client.chat.completions.create(**CHAT)
    assert isinstance(refused.value, BusyError)
    assert refused.value.response.headers["retry-after"] == "1"


def test_a_queue_that_is_full_says_after_which_time_to_ask_again():
    turns = Turns("device", at_once=1, max_waiting=0)
    turns.join()
    with pytest.raises(EndpointFailure) as failure:
        turns.join()
    assert failure.value.retry_after_s == 1
