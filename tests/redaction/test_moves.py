"""Answers that move between a device, which has the originals, and servers, which have placeholders."""

from __future__ import annotations

import re

import anyio
import anyio.to_thread
import httpx2
import pytest
from defects.asking import MODEL, client, create, device, preset, text_of, tried
from faults.in_memory import RESET, MemoryServer, Reply, continuing, spoken
from plain_server import PlainServer
from scripted_device import ScriptedDevice
from scripted_server import chunk, sse

from disco import Backup, RedactionError
from disco.endpoints.redaction import Redaction
from disco.endpoints.simulation.simulated_script import Fault
from disco.endpoints.simulation.simulated_text import tokenise
from disco.errors import FailureKind
from disco.events import Delta, Ended, Usage
from disco.profiles import DeviceProfile
from disco.request import Prefix, Request
from redaction.hooks import MAIL, hook, leaks

pytestmark = pytest.mark.anyio

ASKED = [{"role": "user", "content": f"Write to Zora Quill at {MAIL}, then to Zora."}]
ANSWER = (
    f"I wrote to Zora Quill at {MAIL} today; Zora said that Zora Quill reads {MAIL}, if at all, on Mondays only. "
    "So I told Zora to wait until then, and (Zora Quill) agreed to that."
)
SAID = ANSWER.replace("Zora Quill", "[PERSON_1]").replace("Zora", "[PERSON_2]").replace(MAIL, "[EMAIL_1]")
TOKENS = len(tokenise(ANSWER))


def of(server):
    """Its replies, in memory."""

    def reply(body):
        said = server.pieces(body)
        if isinstance(said, int):
            return Reply([b'{"error": {"message": "No."}}'], said, {"content-type": "application/json"})
        return Reply(said)

    return reply


def broken(after_tokens):
    return device(answer=ANSWER, fault=Fault(after_tokens=after_tokens, kind=FailureKind.CRASHED))


@pytest.mark.parametrize("stream", [True, False])
async def test_a_server_goes_on_from_wherever_the_device_broke_off(stream):
    for after_tokens in range(1, TOKENS, 2 if stream else 6):
        server = MemoryServer(continuing(SAID))
        async with client(
            server, local=broken(after_tokens), policy=preset("device_only"), redact=hook
        ) as one:
            got = await create(one, ASKED, stream=stream)
            text = await text_of(got) if stream else got.choices[0].message.content
            assert text == ANSWER
            assert tried(got) == [("device", "crashed"), ("server", None)]
            assert got.route.seamless
        assert not leaks(server.requests)


WAYS = {"flags": "flags", "echoes": "flags", "obeys": "instructed", "rephrases once": "instructed"}


@pytest.mark.parametrize("kind", WAYS)
async def test_every_kind_of_server_goes_on_in_its_way(kind):
    for after_tokens in range(6, TOKENS, 5):
        plain = PlainServer(kind, SAID)
        server = MemoryServer(of(plain))
        settings = {"continuation": "auto", "policy": preset("device_only"), "redact": hook}
        async with client(server, local=broken(after_tokens), **settings) as one:
            stream = await create(one, ASKED, stream=True)
            assert await text_of(stream) == ANSWER
            assert stream.route.attempts[-1].continued_by == WAYS[kind] or kind == "echoes"
            assert stream.route.seamless
        assert not leaks(plain.bodies)


def rest_of_answer(prefix):
    """A device that goes on with the answer, if it is given the originals."""
    assert ANSWER.startswith(prefix.text)
    return [0.2, *([Delta(t)] for t in tokenise(ANSWER[len(prefix.text) :])), Ended("stop", Usage(10, 10))]


async def test_the_device_goes_on_with_the_originals_wherever_the_server_broke_off():
    for chars in range(3, len(SAID) - 1, 5):
        pieces = re.findall("(?s).{1,3}", SAID[:chars])
        reply = Reply([*(sse(chunk(piece), done=False) for piece in pieces), RESET])
        local = ScriptedDevice(rest_of_answer)
        settings = {"policy": preset("server_only"), "redact": hook}
        async with client(MemoryServer(reply), local=local, **settings) as one:
            stream = await create(one, ASKED, stream=True)
            assert await text_of(stream) == ANSWER
            assert [t.endpoint for t in stream.route.attempts] == ["server", "device"]


async def test_two_servers_get_the_same_placeholders():
    first = Reply([*(sse(chunk(token), done=False) for token in tokenise(SAID)[:20]), RESET])
    memory = MemoryServer(first)
    second = memory.also(continuing(SAID))
    http = httpx2.AsyncClient(transport=memory)
    backup = Backup(base_url=second, api_key="key", model="b", continuation="trailing", http_client=http)
    async with client(memory, backups=[backup], policy=preset("server_only"), redact=hook) as one:
        stream = await create(one, ASKED, stream=True)
        assert await text_of(stream) == ANSWER
    asked, again = memory.requests
    assert again["messages"][0] == asked["messages"][0]
    assert SAID.startswith(again["messages"][-1]["content"])
    assert not leaks(memory.requests)


FAST = DeviceProfile(name="fast", source="test", prefill_tps=1000.0, decode_tps=200.0, c_s=0.3)


@pytest.mark.parametrize("order", ["make_before_break", "break_before_make"])
async def test_an_answer_migrates_to_the_device(order):
    slow = spoken(tokenise(SAID * 3), first_s=0.2, gap_s=0.1)
    whole = ANSWER * 3

    def rest(prefix):
        assert whole.startswith(prefix.text)
        return [0.3, *([Delta(t)] for t in tokenise(whole[len(prefix.text) :])), Ended("stop", Usage(10, 10))]

    server = MemoryServer(slow)
    settings = {"policy": preset("server_only", order=order), "device_profile": FAST, "redact": hook}
    async with client(server, local=ScriptedDevice(rest), **settings) as one:
        stream = await create(one, ASKED, stream=True)
        assert await text_of(stream) == whole
        assert [m.outcome for m in stream.route.migrations] == ["switched"]
        assert stream.route.seamless
    assert not leaks(server.requests)


@pytest.mark.parametrize("order", ["make_before_break", "break_before_make"])
async def test_an_answer_migrates_to_the_server(order):
    local = device(answer=ANSWER * 3, decode_tps=10.0)
    server = MemoryServer(continuing(SAID * 3))
    settings = {"policy": preset("device_only", order=order, rate=1e6), "redact": hook}
    async with client(server, local=local, **settings) as one:
        stream = await create(one, ASKED, stream=True)
        assert await text_of(stream) == ANSWER * 3
        assert [m.outcome for m in stream.route.migrations] == ["switched"]
        assert stream.route.seamless
    assert not leaks(server.requests)


async def test_a_reader_who_leaves_within_a_placeholder_has_nothing_of_it():
    slow = spoken(["To ", "[EMAIL", "_1", "] and on"], gap_s=1.0)
    server = MemoryServer(slow)
    async with client(server, redact=hook) as one:
        stream = await create(one, ASKED, stream=True)
        got = ""
        async for piece in stream:
            got += piece.choices[0].delta.content
            break
        await stream.close()
        assert got == "To "
        assert server.open == 0
        assert (stream.route.attempts[0].outcome, stream.route.attempts[0].completion_tokens) == (
            "cancelled",
            1,
        )


@pytest.mark.parametrize("leaves", [True, False])
async def test_while_the_hook_reads_nothing_has_left_and_a_reader_may(leaves, monkeypatch):
    async def slow(function, *, abandon_on_cancel):
        await anyio.sleep(5.0)
        return function()

    monkeypatch.setattr(anyio.to_thread, "run_sync", slow)
    server = MemoryServer(spoken(["Oh."]))
    async with client(server, redact=hook) as one:
        with anyio.move_on_after(2.0 if leaves else 60.0):
            await create(one, ASKED)
        await anyio.sleep(10.0)
    assert len(server.requests) == (not leaves)


async def test_a_slow_hook_holds_up_no_device(monkeypatch):
    async def slow(function, *, abandon_on_cancel):
        await anyio.sleep(5.0)
        return function()

    monkeypatch.setattr(anyio.to_thread, "run_sync", slow)
    server = MemoryServer(spoken(["Oh."]))
    async with client(server, local=device(answer="Ah."), policy=preset("race"), redact=hook) as one:
        began_at = anyio.current_time()
        assert (await create(one, ASKED)).choices[0].message.content == "Ah."
        assert anyio.current_time() - began_at < 5.0
    assert server.requests == []


async def test_an_answer_that_ends_within_a_placeholder_is_given_as_it_is():
    async with client(MemoryServer(spoken(["To ", "[EMAIL", "_1"], finish="length")), redact=hook) as one:
        for stream in (True, False):
            got = await create(one, ASKED, stream=stream)
            text = await text_of(got) if stream else got.choices[0].message.content
            assert text == "To [EMAIL_1"
            assert got.route.attempts[0].kept_tokens == 3


def raises(text):
    raise LookupError(f"no idea what {text} is")


@pytest.mark.parametrize("wrong", [raises, lambda text: text.split(), lambda _: {"canary": "A"}])
async def test_where_the_hook_fails_nothing_leaves_and_the_error_quotes_nothing(wrong):
    server = MemoryServer(spoken(["Oh."]))
    budget = {"usd": 1.0, "window_s": 60}
    for more in ({}, {"local": device(answer="Oh."), "policy": preset("server_only")}, {"budget": budget}):
        async with client(server, redact=wrong, **more) as one:
            for stream in (True, False):
                with pytest.raises(RedactionError) as caught:
                    await create(one, ASKED, stream=stream)
                at = caught.value
                while at is not None:
                    assert not leaks(f"{at!s} {at!r}")
                    at = at.__cause__ or at.__context__
    assert server.requests == []


async def test_what_stays_on_this_machine_is_not_redacted():
    """The hook is not even called."""
    async with client(MemoryServer(spoken(["No."])), local=device(answer="Oh."), redact=raises) as one:
        got = await create(one, ASKED, disco={"local_only": True})
        assert (got.choices[0].message.content, got.model) == ("Oh.", MODEL)


async def test_a_budget_holds_for_the_longer_prompt_that_placeholders_make():
    short = [{"role": "user", "content": "a " * 400}]
    server = MemoryServer(spoken(["Oh."]))
    budget = {"server_tokens": 10**6, "window_s": 60}
    reserved = []
    for letters in (None, lambda text: {"a": "LETTER"} if "a" in text else {}):
        async with client(server, budget=budget, redact=letters) as one:
            got = await create(one, short, max_tokens=8)
            (used,) = got.route.budget.values()
            reserved.append(used["reserved"])
    assert reserved[1] - reserved[0] == 400 * (len("[LETTER_1]") - 1)


async def test_token_ids_of_the_answer_so_far_do_not_leave():
    said = "I wrote to Zora Quill and"
    prefix = Prefix(said, 6, ids=(1, 2, 3), vocabulary="v", withheld=" and")
    sent = (await Redaction(hook).redacted(Request(ASKED, "m"), prefix)).prefix
    assert (sent.text, sent.ids, sent.vocabulary, sent.withheld) == ("I wrote to [PERSON_1]", None, None, "")
