"""Whether a prompt fits is counted where an estimate does not tell, and another endpoint could answer as well."""

from __future__ import annotations

import pytest

from disco.candidate import PromptSize
from disco.client.planning import with_counts
from disco.dispatch import features_of
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.request import Request

pytestmark = pytest.mark.anyio


class Counting(SimulatedEndpoint):
    """Counts every prompt as 3,000 tokens. Mutable: how often it was asked."""

    def __init__(self, tokens: int | None = 3000) -> None:
        super().__init__("device", SimulatedProfile(answer="Here."), place="device")
        self.tokens, self.asked = tokens, 0

    async def prompt_size(self, request, within_s):
        assert within_s < 0.1
        self.asked += 1
        return None if self.tokens is None else PromptSize(self.tokens, 0)


def asked(chars: int, **params) -> Request:
    return Request([{"role": "user", "content": "x" * chars}], "m", params)


@pytest.mark.parametrize(
    ("chars", "counts"),
    [
        (1_000, False),  # a token for each character, and a typical answer: they fit
        (8_000, True),  # digits would be 8,000 tokens
        (16_400, True),  # the estimate is above the context; words would be fewer
        (600_000, False),  # no tokenizer makes 4,096 of them
    ],
)
async def test_only_where_the_estimate_does_not_tell(chars, counts):
    device, server = (
        Counting(),
        SimulatedEndpoint("server", SimulatedProfile(answer="There."), place="server"),
    )
    both = {"device": (device, 4096), "server": (server, None)}
    request = asked(chars)
    features = await with_counts(features_of(request, stream=True), request, both)
    assert device.asked == counts
    assert features.counted == ({"device": 3000} if counts else {})
    assert features.prompt_tokens_at("device") == (3000 if counts else features.prompt_tokens)
    assert features.prompt_tokens_at("server") == features.prompt_tokens


async def test_one_that_is_alone_decides_itself_and_what_cannot_be_counted_is_not():
    device, server = Counting(), Counting(None)
    request = asked(8_000)
    features = features_of(request, stream=True)
    assert await with_counts(features, request, {"device": (device, 4096)}) == features
    tools = asked(8_000, tools=[{"type": "function", "function": {"name": "f"}}])
    with_tools = features_of(tools, stream=True)
    assert (
        await with_counts(with_tools, tools, {"device": (device, 4096), "other": (server, 4096)})
        == with_tools
    )
    assert (device.asked, server.asked) == (0, 0)
    await with_counts(features, request, {"device": (server, 4096), "other": (server, 4096)})
    assert server.asked == 2
