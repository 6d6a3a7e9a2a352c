"""A program that attaches gets what its own model would write, shows its prompt to nobody else, and always answers."""

from __future__ import annotations

import contextlib
import json
import logging
from types import SimpleNamespace

import anyio
import pytest
from anyio.abc import SocketAttribute
from attached.conftest import KEY
from attached.made import CANARY, MODEL, announcement, ask, attaching, own_model, written
from loops import by_turns
from security.recorder import recording

from disco import AsyncDisco, ConfigurationError
from disco.endpoints.attached import AttachingEndpoint
from disco.endpoints.attached.announcement import live_announcements
from disco.endpoints.attached.handshake import new_key, proof, token
from disco.endpoints.attached.messages import ANSWERS, HELLO
from disco.endpoints.attached.proven_connection import ProvenConnection, ServeGoneError
from disco.endpoints.llamacpp import LlamaCppEndpoint
from disco.errors import EndpointFailure, FailureKind
from disco.events import Ended, Started
from disco.request import Prefix
from disco.server.api_errors import Refusal
from disco.server.device.device_route import DeviceAnswersRoute, DeviceProofRoute
from tests.endpoints.conformance import CHECKS, Subject
from tests.endpoints.llamacpp.answers import until
from tests.endpoints.test_conformance import run, shared_unless_closed

pytestmark = [pytest.mark.real, pytest.mark.anyio]

SEA = [{"role": "user", "content": f"Tell me about the sea. {CANARY}"}]


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def collected(attempt):
    async with attempt:
        events = [event async for event in attempt]
    return events, "".join(delta.text for event in events if isinstance(event, list) for delta in event)


async def test_it_writes_what_the_own_model_would_write_and_loads_nothing(attachable, monkeypatch):
    served, folder = attachable
    monkeypatch.setenv("DISCO_ATTACH", str(folder))
    asked = {"model": "m", "messages": SEA, "max_tokens": 8, "seed": 7, "logprobs": True, "top_logprobs": 2}
    routes = []
    async with (
        AsyncDisco(local="smollm2-135m", policy="private", on_route=routes.append) as client,
        AsyncDisco(local="smollm2-135m", policy="private", attach=False) as alone,
    ):
        endpoint = client.router.local
        assert isinstance(endpoint, AttachingEndpoint)
        await client.warm_up()
        told = await client.chat.completions.create(**asked)
        assert not endpoint.own.capabilities().ready
        assert isinstance(alone.router.local, LlamaCppEndpoint)
        here = await alone.chat.completions.create(**asked)
        able, own = endpoint.capabilities(), alone.router.local.capabilities()
    assert told.choices[0].model_dump(exclude={"message"}) == here.choices[0].model_dump(exclude={"message"})
    assert told.choices[0].message.content == here.choices[0].message.content
    assert told.usage.completion_tokens == 8
    assert (routes[0].attempts[0].endpoint, served.routes) == ("device", [])  # the server routed nothing
    same = (
        "continues",
        "context_tokens",
        "features",
        "vocabulary",
        "announces",
        "logp",
        "label_scores",
        "progress",
    )
    assert {name: getattr(able, name) for name in same} == {name: getattr(own, name) for name in same}
    assert (able.parks, able.follows, able.pauses) == (False, False, False)


# Without those that close the server's own model, or count what is open in this process, where the server is, too.
CONTRACT = [
    one
    for one in CHECKS
    if not any(part in one.__name__ for part in ("closing_the_endpoint", "opening_does_nothing"))
]


@pytest.mark.slow
@pytest.mark.parametrize(("check", "backend"), by_turns(CONTRACT))
def test_it_keeps_the_contract_of_an_endpoint(attachable, check, backend):
    endpoint = attaching(attachable[1])
    assert endpoint.served is not None
    run(
        Subject(context_tokens=endpoint.capabilities().context_tokens),
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
        assert served.client.router.local._worker._running is not None
    with anyio.fail_after(30):
        while served.client.router.local._worker._running is not None:  # noqa: ASYNC110 - another thread's
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
        await collected(attaching(folder).open(ask(n=2)))
    assert caught.value.kind is FailureKind.UNSERVED
    assert "does not serve n" in caught.value.error.message


def test_neither_the_callers_key_nor_none_opens_the_way_and_no_page_may_ask(attachable):
    served, folder = attachable
    body = {"version": 1, "messages": SEA}
    with_callers_key = {"Authorization": f"Bearer {KEY}"}
    for headers in ({}, with_callers_key, {"Authorization": "Bearer "}):
        refused = served.ask(ANSWERS, body, headers=headers)
        assert (refused.status, refused.error["code"]) == (401, "invalid_attach_key")
    assert served.ask(f"{HELLO}?nonce=abc").status == 400
    asked = served.ask(f"{HELLO}?nonce={'0' * 64}")
    (announced,) = live_announcements(folder)
    assert (asked.status, len(asked.json["proof"])) == (200, 64)
    assert announced.key not in asked.body.decode()
    page = served.ask(f"{HELLO}?nonce={'0' * 64}", headers={"Origin": "http://evil.example"})
    assert page.status == 403


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


def test_a_served_model_with_less_room_is_attached_to_only_where_the_program_says_so(folder):
    """A verify server may have a small context; requests that the own model can take must not be refused."""
    own = LlamaCppEndpoint(model="smollm2-135m")
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
    with pytest.raises(ConfigurationError, match="speculate"):
        AsyncDisco(local="smollm2-135m", attach=True, speculate="auto", api_key="k", base_url="http://a/v1")


@pytest.mark.parametrize("route", [DeviceProofRoute, DeviceAnswersRoute])
@pytest.mark.parametrize(
    "ends",
    [
        {"client": ("192.168.1.9", 5000), "server": ("127.0.0.1", 8642)},
        {"client": ("127.0.0.1", 5000), "server": ("192.168.1.2", 8642)},
        {"client": None, "server": ("/run/disco.sock", None)},
    ],
    ids=["client", "server", "unix"],
)
async def test_other_machines_are_refused_whatever_they_show(route, ends):
    key = new_key()
    made = route(key) if route is DeviceProofRoute else route(None, key, limiter=None, max_body_bytes=1)
    scope = {
        "headers": [(b"authorization", f"Bearer {token(key)}".encode())],
        "query_string": b"nonce=" + b"0" * 64,
        **ends,
    }
    with pytest.raises(Refusal) as caught:
        await made(scope, None, None)
    assert caught.value.status == 403


# ---------------------------------------------------------------------- strangers, and servers that are gone


@contextlib.asynccontextmanager
async def stranger(handle):
    """A program that listens where a server was announced."""
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, handle)
        yield listener.extra(SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


async def answers_own(folder, **more):
    """What an attempt comes to; the server is left alone afterwards."""
    endpoint = attaching(folder, **more)
    assert endpoint.served is not None
    events, text = await collected(endpoint.open(ask(f"Tell me. {CANARY}", max_tokens=4)))
    assert isinstance(events[-1], Ended)
    assert endpoint.served is None
    return text


LIES = {
    "nothing": b"",
    "rubbish": b"\x00\xff" * 50,
    "a page": b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n<html",
    "no proof": b'HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\n{"version":1}',
    "a false one": b'HTTP/1.1 200 OK\r\ncontent-length: 76\r\n\r\n{"proof":"' + b"0" * 64 + b'"}',
    "no end": b"HTTP/1.1 200 OK\r\ncontent-length: 60000\r\n\r\n" + b"[" * 60_000,
    "too much": b"HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n" + b"{" * 200_000,
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_stranger_on_the_port_gets_nothing_of_the_prompt(folder, lie):
    heard = b""

    async def handle(stream):
        nonlocal heard
        async with stream:
            with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                heard += await stream.receive()
                if LIES[lie]:
                    await stream.send(LIES[lie])
                    while True:
                        heard += await stream.receive()

    async with stranger(handle) as port:
        one = announcement(port=port)
        written(folder, one)
        assert await answers_own(folder)
    assert heard.startswith(b"GET ")
    assert CANARY.encode() not in heard
    assert one.key.encode() not in heard


async def test_one_that_passes_the_question_on_to_the_real_server_proves_nothing(attachable, folder):
    """Its own connection to the server has other ends than the program's connection to it."""
    served, where = attachable
    heard = b""

    async def handle(stream):
        nonlocal heard
        async with (
            stream,
            await anyio.connect_tcp(*served.address) as real,
            anyio.create_task_group() as tasks,
        ):

            async def back():
                with contextlib.suppress(
                    anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError
                ):
                    while True:
                        await stream.send(await real.receive())

            tasks.start_soon(back)
            with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while True:
                    data = await stream.receive()
                    heard += data
                    await real.send(data)
            tasks.cancel_scope.cancel()

    async with stranger(handle) as port:
        (true,) = live_announcements(where)
        written(folder, true.model_copy(update={"port": port}))
        with pytest.raises(ServeGoneError):
            await ProvenConnection.to(live_announcements(folder)[0])
        await answers_own(folder)
    assert heard.count(b"GET ") == 2
    assert CANARY.encode() not in heard


async def test_a_server_that_is_gone_is_tried_again_after_a_while(folder):
    """The file is there, and nothing listens: after a `kill -9` whose id was taken over, say."""
    now = SimpleNamespace(s=100.0)
    written(folder, announcement())
    endpoint = attaching(folder, clock=lambda: now.s)
    assert endpoint.address == "attached"
    _, text = await collected(endpoint.open(ask(max_tokens=4)))
    assert text
    assert (endpoint.served, endpoint.address) == (None, None)
    assert endpoint.capabilities().parks  # the own model's
    now.s += 4.0
    assert endpoint.served is None
    now.s += 2.0
    assert endpoint.served is not None
    await endpoint.warm_up()
    now.s += 9.0  # the next time is twice as long
    assert endpoint.served is None
    now.s += 2.0
    assert endpoint.served is not None


@pytest.mark.parametrize("how", ["cannot be sent", "too long", "malformed"])
async def test_one_request_that_the_server_cannot_take_does_not_cost_the_others_its_model(folder, how):
    one = announcement()
    app = Refuser(one.key, 413 if how == "too long" else 400)
    async with stranger(app) as port:
        written(folder, one.model_copy(update={"port": port}))
        endpoint = attaching(folder)
        request = ask(max_tokens=4, user={1, 2} if how == "cannot be sent" else "u")
        _, text = await collected(endpoint.open(request))
        assert text  # of the own model
        assert endpoint.served is not None


class Refuser:
    """A server that proves itself, and refuses every order."""

    def __init__(self, key: str, status: int) -> None:
        self._key = key
        self._status = status

    async def __call__(self, stream) -> None:
        ends = {
            name: stream.extra(attribute)
            for name, attribute in (
                ("server", SocketAttribute.local_address),
                ("client", SocketAttribute.remote_address),
            )
        }
        async with stream:
            with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                asked = await stream.receive()
                nonce = asked.partition(b"nonce=")[2][:64].decode()
                body = json.dumps({"proof": proof(self._key, nonce, **ends)}).encode()
                await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
                await stream.receive()
                await stream.send(b"HTTP/1.1 %d No\r\ncontent-length: 0\r\n\r\n" % self._status)
                await stream.receive()


async def test_closing_while_the_own_model_takes_over_leaves_nothing_running(folder):
    written(folder, announcement())
    own = own_model()
    attempt = attaching(folder, own).open(ask(max_tokens=4))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(collected, attempt)
        await anyio.lowlevel.checkpoint()
        await attempt.aclose()
    assert own.busy == 0


async def test_no_server_hears_of_it_and_no_log_has_the_key_or_the_prompt(attachable, folder, caplog):
    """Local-only: the program has a server, too, which keeps every byte it is sent."""
    caplog.set_level(logging.DEBUG)
    _, where = attachable
    (announced,) = live_announcements(where)
    written(folder, announced)
    with recording() as recorder:
        endpoint = attaching(folder)
        async with AsyncDisco(local=endpoint, api_key="sk-0123456789", base_url=recorder.base_url) as client:
            answer = await client.chat.completions.create(
                model="m", messages=SEA, max_tokens=4, extra_body={"disco": {"local_only": True}}
            )
        await endpoint.aclose()
        assert recorder.untouched
    assert answer.choices[0].message.content
    said = json.dumps([record.getMessage() for record in caplog.records])
    assert announced.key not in said
    assert CANARY not in said
