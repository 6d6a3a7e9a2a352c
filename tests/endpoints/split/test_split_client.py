"""`disco.Split` among the tiers of a client: its answers, records and charges, and what takes over from it."""

from __future__ import annotations

import math
import threading

import anyio
import pytest
from scripted_device import ScriptedDevice

from disco import AsyncDisco, ConfigurationError, Split
from disco.cost import Phase
from disco.dispatch import Preset
from disco.endpoints.contract import Capabilities
from disco.endpoints.split.wire import Frame
from disco.errors import ModelFileError, NoEndpointError
from disco.events import Delta, Ended
from tests.endpoints.split.asking import ask, asked, running, whole_of

pytestmark = [pytest.mark.anyio, pytest.mark.real]

TEXT = "Once upon a time there was a mill."
PARAMS = {"model": "tiny", "messages": [{"role": "user", "content": TEXT}], "temperature": 0.8, "seed": 3}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def whole_answer(tiny, **params) -> str:
    async with running(whole_of(tiny, batch_tokens=16)) as whole:
        return (await asked(whole, ask(TEXT, temperature=0.8, seed=3, **params))).text


def split(tiny, server, **options) -> Split:
    given = {
        "wire": "float32",
        "chunks": 16,
        "context_tokens": 1024,
        "price": (1.0, 4.0),
        "name": "cut",
        **options,
    }
    return Split(device=tiny.device, base_url=server.base_url, **given)


def preset(policy: str, **more) -> Preset:
    """A policy and its options; computing on the device costs nothing."""
    return Preset(name="split", dispatch={"policy": policy}, cost={"exchange_rate": 0.0}, **more)


class Other(ScriptedDevice):
    """A model here that goes on with any answer. Mutable: `prefixes`."""

    def __init__(self) -> None:
        self.prefixes = []
        super().__init__(self.steps)

    def steps(self, prefix):
        self.prefixes.append(prefix)
        yield [Delta(" and so on")]
        yield Ended("stop")

    def capabilities(self, model=None) -> Capabilities:
        return Capabilities(continues=True, features=None)


async def read(client, **params):
    stream = await client.chat.completions.create(**PARAMS, **params, stream=True)
    text = ""
    async with stream:
        async for chunk in stream:
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
    return text, stream.route


async def test_an_answer_its_record_and_its_charges(tiny, stand_in):
    """The device's drafts are its own; all else is the split's, at the price of the whole model."""
    wanted = await whole_answer(tiny, max_tokens=24)
    stand_in.delay_s = 0.03  # drafting pays
    async with AsyncDisco(tiers=[split(tiny, stand_in, window=4)], policy="cascade") as client:
        found = []
        for _ in range(3):
            text, route = await read(client, max_tokens=24)
            assert text == wanted
            found.append(route)
    assert [one.attempts[0].endpoint for one in found] == ["cut"] * 3
    assert all(one.attempts[0].bytes_up > 64 * 4 for one in found)
    route = found[-1]
    report, charges = route.attempts[0].speculation, route.ledger.charges
    assert report.drafted > 0
    assert {charge.endpoint for charge in charges} == {"cut", "cut-drafts"}
    drafts = [one for one in charges if one.endpoint == "cut-drafts"]
    assert {one.phase for one in drafts} == {Phase.DRAFT}
    # What was drafted ahead behind other tokens counts, too.
    assert sum(one.completion_tokens for one in drafts) >= report.drafted
    answer = [one for one in charges if one.endpoint == "cut" and one.phase is Phase.ANSWER]
    wrong = [one for one in charges if one.endpoint == "cut" and one.phase is Phase.DRAFT]
    assert sum(one.completion_tokens for one in answer) == len(wanted), "a token is a byte"
    assert sum(one.completion_tokens for one in wrong) == report.rejected
    rates = route.ledger.rates["cut"]
    assert rates.cost(1, 0, 0) * 1e6 == pytest.approx(1.0)
    assert rates.cost(0, 1, 0) * 1e6 == pytest.approx(4.0)
    assert route.policy_cost == pytest.approx(math.fsum(one.policy_cost for one in charges))


@pytest.mark.parametrize("drafted", [0, 4])
async def test_another_model_takes_over_from_a_server_that_dies_in_mid_answer(tiny, stand_in, drafted):
    wanted = await whole_answer(tiny, max_tokens=40)
    here = Other()

    def dies(number: int, frame: Frame) -> str | None:
        del frame
        if number != 12:
            return None
        threading.Thread(target=stand_in.stop).start()
        return "silent"

    split_tier = split(tiny, stand_in, window=drafted)
    async with AsyncDisco(local=here, tiers=[split_tier], policy=preset("server_only")) as client:
        await client.warm_up()
        stand_in._rows_seen, stand_in.script = -200, dies  # behind what loading measures
        await read(client, max_tokens=2)
        stand_in._rows_seen = 0
        text, route = await read(client, max_tokens=40)
    tries = [(one.endpoint, one.failure) for one in route.attempts]
    assert tries == [("cut", "connection"), ("device", None)]
    written = text.removesuffix(" and so on")
    assert 0 < len(written) < len(text)
    assert wanted.startswith(written)
    assert here.prefixes[-1].text == written


async def test_what_must_stay_here_never_goes_to_a_split(tiny, stand_in):
    async with AsyncDisco(
        local=Other(), tiers=[split(tiny, stand_in)], policy=preset("server_only")
    ) as client:
        text, route = await read(client, extra_body={"disco": {"local_only": True}})
        assert (text, [one.endpoint for one in route.attempts]) == (" and so on", ["device"])
    async with AsyncDisco(tiers=[split(tiny, stand_in)], policy="cascade") as client:
        with pytest.raises((NoEndpointError, ConfigurationError)):
            await read(client, extra_body={"disco": {"local_only": True}})
    assert stand_in.frames == []
    assert stand_in.connected == 0


@pytest.mark.parametrize("amount", [10, 10_000])
async def test_budgets_count_the_split_and_its_drafts(tiny, stand_in, amount):
    """Drafts stop where the device's budget is used up; the answer goes on."""
    wanted = await whole_answer(tiny, max_tokens=40)
    stand_in.delay_s = 0.03
    limits = {"server_tokens": 10_000, "device_tokens": amount, "window_s": 3600.0}
    policy = preset("server_only", limits=limits)
    async with AsyncDisco(local=Other(), tiers=[split(tiny, stand_in, window=4)], policy=policy) as client:
        await client.warm_up()
        text, route = await read(client, max_tokens=40)
    assert text == wanted
    by_place = {"cut": 0, "cut-drafts": 0}
    for charge in route.ledger.charges:
        by_place[charge.endpoint] += charge.prompt_tokens + charge.completion_tokens
    assert route.budget["server_tokens"]["spent"] == by_place["cut"]
    assert route.budget["device_tokens"]["spent"] == by_place["cut-drafts"] <= amount
    assert amount < 100 or by_place["cut-drafts"] > 0


FINE = {"device": "a.device.gguf", "base_url": "http://box:8000/v1"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base_url": "box:8000"}, "must begin with http"),
        ({"reach": "device"}, '"own" or "any"'),
        ({"wire": "float8"}, "wire has no value 'float8'"),
        ({"wire": "float-16"}, "float16"),
        ({"chunks": "makspan"}, "makespan"),
        ({"chunks": 0}, "chunks must be a whole number"),
        ({"chunks": True}, "chunks must be a whole number"),
        ({"slots": 0}, "slots must be"),
        ({"max_window": 0}, "max_window must be"),
        ({"threads": 1.5}, "threads must be"),
        ({"context_tokens": 0, "name": "nas"}, "The split 'nas': context_tokens"),
        ({"branches": -1}, "branches must be"),
        ({"branches": "2"}, "branches must be"),
        ({"window": -1}, "window"),
        ({"window": 2.5}, "window"),
        ({"window": "optmal"}, "optimal"),
        ({"price": (1.0,)}, "price must be two numbers"),
        ({"name": ""}, "name is empty"),
        ({"api_key": 5}, "api_key"),
    ],
)
def test_options_that_cannot_be_right_are_refused_when_they_are_given(options, message):
    with pytest.raises(ConfigurationError, match=message):
        Split(**{**FINE, **options})


def test_key_and_address_are_not_shown():
    shown = repr(Split(**{**FINE, "base_url": "http://me:pw@box/v1"}, api_key="sk-secret"))
    assert "sk-secret" not in shown
    assert "pw" not in shown


async def test_a_file_that_is_not_there_is_refused_by_the_client():
    with pytest.raises(ModelFileError, match=r"no model file"):
        AsyncDisco(tiers=[Split(**{**FINE, "device": "/nowhere/a.device.gguf"})])
    await anyio.lowlevel.checkpoint()
