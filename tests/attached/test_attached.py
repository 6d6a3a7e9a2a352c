"""A program that attaches gets what its own model would write, shows its prompt to nobody else, and always answers."""

from __future__ import annotations

import dataclasses

import anyio
import pytest
from attached.made import CANARY, MODEL, announcement, ask, attaching, collected, written
from loops import by_turns

from disco import AsyncDisco, ConfigurationError, Disco
from disco.endpoints.attached import AttachingEndpoint
from disco.endpoints.host import HostEndpoint
from disco.errors import EndpointFailure, FailureKind
from disco.events import Ended, Started
from disco.request import Prefix
from tests.endpoints.conformance import CHECKS, OF_DEVICES, Subject
from tests.endpoints.llamacpp.answers import until
from tests.endpoints.test_conformance import run, shared_unless_closed

pytestmark = [pytest.mark.real, pytest.mark.anyio]

SEA = [{"role": "user", "content": f"Tell me about the sea. {CANARY}"}]


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_it_writes_what_the_own_model_would_write_and_loads_nothing(attachable, monkeypatch):
    served, folder = attachable
    monkeypatch.setenv("DISCO_ATTACH", str(folder))
    asked = {"model": "m", "messages": SEA, "max_tokens": 8, "seed": 7, "logprobs": True, "top_logprobs": 2}
    routes = []
    async with (
        AsyncDisco(local="smollm2-135m", policy="private", attach="auto", on_route=routes.append) as client,
        AsyncDisco(local="smollm2-135m", policy="private", attach=False) as alone,
    ):
        endpoint = client.router.local
        assert isinstance(endpoint, AttachingEndpoint)
        await client.warm_up()
        told = await client.chat.completions.create(**asked)
        assert not endpoint.own.capabilities().ready
        assert isinstance(alone.router.local, HostEndpoint)
        here = await alone.chat.completions.create(**asked)
        able, own = endpoint.capabilities(), alone.router.local.capabilities()
    assert told.choices[0].model_dump(exclude={"message"}) == here.choices[0].model_dump(exclude={"message"})
    assert told.choices[0].message.content == here.choices[0].message.content
    assert told.usage.completion_tokens == 8
    assert (routes[0].attempts[0].endpoint, served.routes) == ("device", [])  # the server routed nothing
    told = {"loads": None, "load_s": None}
    assert dataclasses.replace(able, **told) == dataclasses.replace(own, **told)


# Without those that close the server's own model, or count what is open in this process, where the server is, too.
CONTRACT = [
    one
    for one in (*CHECKS, *OF_DEVICES)
    if not any(part in one.__name__ for part in ("closing_the_endpoint", "opening_does_nothing"))
]


@pytest.mark.slow
@pytest.mark.parametrize(("check", "backend"), by_turns(CONTRACT))
def test_it_keeps_the_contract_of_an_endpoint(attachable, check, backend):
    endpoint = attaching(attachable[1])
    assert endpoint.served is not None
    run(
        Subject(context_tokens=endpoint.capabilities().context_tokens, slots=endpoint.served.model.slots),
        check,
        shared_unless_closed(check, endpoint),
        backend,
    )


async def test_it_continues_a_prefix_and_its_usage_is_known(attachable):
    _, folder = attachable
    prefix = Prefix("The sea is a vast", tokens=5)
    events, text = await collected(attaching(folder).open(ask(max_tokens=9), prefix))
    assert text.startswith(" ")
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Ended)
    assert (events[-1].finish_reason, events[-1].usage.completion_tokens) == ("length", 4)


async def test_the_server_stops_when_its_program_leaves(attachable):
    served, folder = attachable
    attempt = attaching(folder).open(ask(max_tokens=2000, logit_bias={"0": -100, "2": -100}))
    async with attempt:
        await anext(attempt)
        await anext(attempt)
        assert (await served.client.router.local.ask("/host"))["verifier"]["waiting"]
    with anyio.fail_after(30):
        while (await served.client.router.local.ask("/host"))["verifier"]["waiting"]:  # noqa: ASYNC110 - another process
            await anyio.sleep(0.01)


async def test_what_was_read_of_a_prompt_is_charged_where_the_answer_is_called_off_before_its_first_word(
    attachable,
):
    """As with a model of its own: budgets and the ledger count the tokens of an attempt that lost a race."""
    _, folder = attachable
    attempt = attaching(folder).open(ask(" ".join(f"Number {n} is red." for n in range(300)), max_tokens=4))
    events = []

    async def rest():
        events.extend([event async for event in attempt])

    assert isinstance(await anext(attempt), Started)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rest)
        await until(lambda: events or (attempt.progress is not None and attempt.progress.tokens_done > 100))
        await attempt.aclose()
    assert events == []  # nothing that was not asked for
    assert attempt.progress.tokens_done <= attempt.usage.prompt_tokens < attempt.progress.tokens_total


async def test_what_the_model_refuses_is_refused_as_by_the_own_one(attachable):
    _, folder = attachable
    with pytest.raises(EndpointFailure) as caught:
        await collected(attaching(folder).open(ask(temperature="hot")))
    assert caught.value.kind is FailureKind.BAD_REQUEST


def test_another_model_file_is_attached_to_only_where_the_program_says_that_the_name_is_enough(
    attachable, monkeypatch, tmp_path
):
    _, folder = attachable
    monkeypatch.setenv("DISCO_ATTACH", str(folder))
    other = tmp_path / "smollm2-135m.gguf"
    other.write_bytes(b"GGUF, and something else")
    found = {}
    for attach in ("auto", True, False):
        endpoint = AsyncDisco(local=other, policy="private", attach=attach).router.local
        found[attach] = getattr(endpoint, "served", "its own")
    assert (found["auto"], found[True] is None, found[False]) == (None, False, "its own")


@pytest.mark.parametrize("kind", [AsyncDisco, Disco])
def test_nothing_is_handed_to_another_program_unless_the_application_asks_for_it(
    attachable, monkeypatch, kind
):
    _, folder = attachable
    monkeypatch.setenv("DISCO_ATTACH", str(folder))
    with_default = kind(local="smollm2-135m", policy="private")
    assert isinstance(with_default.router.local, HostEndpoint)
    assert isinstance(
        kind(local="smollm2-135m", policy="private", attach="auto").router.local, AttachingEndpoint
    )


def test_a_served_model_with_less_room_is_attached_to_only_where_the_program_says_so(folder):
    """A verify server may have a small context; requests that the own model can take must not be refused."""
    own = HostEndpoint(model="smollm2-135m")
    found = {}
    for room in (512, 8192, None):
        model = MODEL.model_copy(
            update={"fingerprint": own.fingerprint, "context_tokens": room, "name": "smollm2-135m"}
        )
        written(folder, announcement(model=model))
        for attach in ("auto", True):
            endpoint = AsyncDisco(local="smollm2-135m", policy="private", attach=attach).router.local
            found[room, attach] = endpoint.served is not None
    assert [key for key, fits in found.items() if not fits] == [(512, "auto")]


def test_contradictions_are_refused(monkeypatch, tmp_path):
    with pytest.raises(ConfigurationError, match="DISCO_ATTACH"):
        AsyncDisco(local="smollm2-135m", attach=True)
    monkeypatch.setenv("DISCO_ATTACH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="attach must be"):
        AsyncDisco(local="smollm2-135m", attach="always")
