"""Two servers as they come, default settings: a cut answer goes on elsewhere, and what is unproved proves itself."""

from __future__ import annotations

import anyio
import httpx2
import openai
import pytest
from defects.asking import MODEL, ask, client, create, device, preset, text_of, tried
from faults.in_memory import RESET, SILENCE, MemoryServer, Reply, anyio_backend, spoken  # noqa: F401 - a fixture
from plain_server import KINDS, TEXT, PlainServer
from scripted_server import chunk, sse

from disco import Backup
from disco.endpoints.continuation import Continuation
from disco.endpoints.continuation.probe import ProbeMeter
from disco.endpoints.simulation.simulated_text import tokenise
from disco.events import Started
from disco.request import Prefix, Request, Timeouts

pytestmark = pytest.mark.anyio

WORDS = tokenise(TEXT)
SAID = [sse(chunk(word), done=False) for word in WORDS]
CUT = Reply([*SAID[:40], RESET])
SILENT = Reply([*SAID[:20], SILENCE])
BROKEN = Reply([*SAID[:8], b"data: {oops\n\n"])


JSON = {"content-type": "application/json"}


def of(server: PlainServer):
    """Its replies, in memory."""

    def reply(body) -> Reply:
        said = server.pieces(body)
        return (
            Reply([b'{"error": {"message": "No."}}'], said, {"content-type": "application/json"})
            if isinstance(said, int)
            else Reply(said)
        )

    return reply


def two(first: Reply, second: PlainServer, **more):
    """A client of a server that fails, and of a backup; nothing is configured but their addresses."""
    memory = MemoryServer(first)
    http = httpx2.AsyncClient(transport=memory)
    backup = Backup(
        base_url=memory.also(of(second)), api_key="key", model="second", price=(1.0, 1.0), http_client=http
    )
    settings = {"policy": preset("server_only"), "continuation": "auto", **more}
    return client(memory, backups=[backup], **settings), memory


WAYS = {
    "flags": "flags",
    "echoes": "flags",
    "obeys": "instructed",
    "rephrases once": "instructed",
    "same again": "instructed",
}


CASES = [*((kind, CUT) for kind in KINDS), ("flags", SILENT), ("restarts", SILENT), ("obeys", BROKEN)]


@pytest.mark.parametrize(("kind", "fault"), CASES)
async def test_an_answer_goes_on_at_a_server_that_was_never_probed_or_ends_with_the_first_error(kind, fault):
    second = PlainServer(kind)
    asker, _ = two(fault, second)
    async with asker:
        stream = await create(asker, stream=True)
        if kind not in WAYS:
            with pytest.raises(Exception) as caught:  # noqa: PT011 - the first failure's own
                await text_of(stream)
            assert TEXT.startswith(caught.value.partial_text)
            shown = 40 if fault is CUT else 20 if fault is SILENT else 8
            assert caught.value.partial_text == "".join(WORDS[:shown])
            assert tried(caught.value)[0] == ("server", caught.value.route.attempts[0].failure)
            assert {f for _, f in tried(caught.value)[1:]} == {"seam"}
            assert len(second.told) == 2, "asked once more, and then given up"
            return
        assert await text_of(stream) == TEXT
    route = stream.route
    assert route.seamless
    assert route.attempts[-1].continued_by == WAYS[kind]
    assert route.attempts[-1].seam == ("continued" if kind not in ("echoes", "same again") else "echo")
    assert [end.endpoint for end in route.segments] == ["server", "backup-1"]
    # The proof is charged to the attempt that needed it.
    (probe,) = [c for c in route.ledger.charges if c.phase == "probe"]
    assert probe.attempt == 1
    assert probe.completion_tokens > 0


def healthy(kind="flags", **more):
    """A client of a server that answers, with a device beside it that never has to; the server's requests."""
    server = PlainServer(kind)
    memory = MemoryServer(of(server))
    settings = {"policy": preset("server_only"), "continuation": "auto", "local": device(), **more}
    return client(memory, **settings), memory, server


async def settled(memory, requests):
    """Wait until so many requests have come, and nothing runs any more."""
    with anyio.fail_after(600):
        while len(memory.requests) < requests or memory.open:  # noqa: ASYNC110 - virtual time
            await anyio.sleep(0.1)
        await anyio.sleep(1.0)


async def test_a_server_is_probed_in_the_background_once_after_its_first_answer_and_the_next_ledger_has_the_cost():
    asker, memory, server = healthy()
    async with asker:
        assert not asker.server.capabilities(MODEL).continues
        first = [await ask(asker.with_options(timeout=20.0)) for _ in range(2)]
        await settled(memory, 3)
        assert asker.server.continuation(MODEL).method == "flags"
        second = [await ask(asker, stream=False), await ask(asker)]
        await settled(memory, 5)
    assert len(server.bodies) == 5, "four answers and one probe, although two answers ended before it"
    charged = [
        [(c.attempt, c.endpoint) for c in a.route.ledger.charges if c.phase == "probe"]
        for a in (*first, *second)
    ]
    assert sorted(charged) == [[], [], [], [(None, "server")]]
    (paid,) = [a for a, charges in zip((*first, *second), charged, strict=True) if charges]
    assert paid.route.policy_cost > sum(t.policy_cost for t in paid.route.attempts)
    assert '"attempt": null' in paid.route.to_json()


@pytest.mark.parametrize(
    ("more", "disco"),
    [
        ({"local": None}, {}),  # no other endpoint
        ({"continuation": "flags"}, {}),
        ({"continuation": "none"}, {}),
        ({"continuation": "instructed"}, {}),
        ({"budget": {"server_tokens": 900, "window_s": 3600}}, {}),  # enough for the answer only
        ({}, {"local_only": True}),
        ({"default_options": {"local_only": True}}, {}),
        ({"policy": preset("device_only")}, {}),
    ],
)
async def test_nothing_is_probed_without_a_reason_a_permission_or_a_budget(more, disco):
    asker, memory, server = healthy(**more)
    async with asker:
        answers = [await ask(asker, **disco) for _ in range(2)]
        await settled(memory, 0)
    assert [body for body in server.bodies if "Tally" in str(body)] == []
    assert {c.phase.value for a in answers for c in a.route.ledger.charges} == {"answer"}


async def test_the_ledger_of_a_request_that_stays_here_has_no_probe_of_a_server():
    asker, memory, _ = healthy()
    async with asker:
        await ask(asker)
        await settled(memory, 2)
        here, there = await ask(asker, local_only=True), await ask(asker)
    phases = [{c.phase.value for c in answer.route.ledger.charges} for answer in (here, there)]
    assert phases == [{"answer"}, {"answer", "probe"}]


async def test_a_probe_is_reserved_and_settled_in_the_budget():
    asker, memory, _ = healthy(budget={"server_tokens": 50_000, "window_s": 3600})
    async with asker:
        first = await ask(asker)
        left = first.route.budget["server_tokens"]["left"]
        await settled(memory, 2)
        (second,) = [await ask(asker)]
    (probe,) = [c for c in second.route.ledger.charges if c.phase == "probe"]
    used, spent = probe.prompt_tokens + probe.completion_tokens, second.route.budget["server_tokens"]["spent"]
    assert second.route.budget["server_tokens"]["left"] == left - used - spent


async def test_a_server_that_cannot_be_reached_is_not_probed_again_and_again():
    server = PlainServer("flags")
    down = Reply([b"{}"], 503, {"content-type": "application/json"})
    memory = MemoryServer(of(server), down, of(server))
    asker = client(memory, policy=preset("server_only"), continuation="auto", local=device())
    async with asker:
        for _ in range(3):
            await ask(asker)
            await settled(memory, 0)
        assert len(memory.requests) == 4
        assert not asker.server.capabilities(MODEL).continues
        await anyio.sleep(60)
        await ask(asker)
        await settled(memory, 6)
        assert asker.server.capabilities(MODEL).continues


async def test_a_probe_that_fails_in_disco_itself_is_not_sent_with_every_answer(monkeypatch, caplog):
    async def fails(path, response):
        raise TypeError

    monkeypatch.setattr("disco.endpoints.openai_api.api_endpoint.read_whole", fails)
    asker, memory, _ = healthy()
    async with asker:
        for _ in range(3):
            await ask(asker)
            await settled(memory, 0)
    assert len(memory.requests) == 4
    assert "A probe was given up: TypeError in disco itself." in caplog.text


async def test_a_probe_outlives_the_answer_and_ends_with_the_client():
    """While it is under way, the next answers are not held up; what it may have used is charged at once."""
    server = PlainServer("flags")
    memory = MemoryServer(of(server), Reply(before=[SILENCE]), of(server))
    asker = client(memory, policy=preset("server_only"), continuation="auto", local=device())
    async with asker:
        await ask(asker)
        await anyio.sleep(1.0)
        assert memory.open == 1
        began_at = anyio.current_time()
        await ask(asker)
        assert anyio.current_time() - began_at < 1.0
        assert memory.open == 1
    assert memory.open == 0
    assert asker.router._probes.take_charges()


async def test_a_need_waits_for_the_probe_under_way_and_pays_nothing():
    server = PlainServer("flags")
    memory = MemoryServer(lambda body: Reply([2.0, *of(server)(body).steps]), of(server))
    async with client(memory, continuation="auto") as asker, anyio.create_task_group() as group:
        group.start_soon(asker.server.prove, MODEL, ProbeMeter())
        await anyio.sleep(0.5)
        copy = asker.with_options(timeout=20.0)  # its endpoint is another object
        request = Request([{"role": "user", "content": "?"}], MODEL)
        async with copy.server.open(request, Prefix("word0 word1", tokens=2)) as attempt:
            began_at = anyio.current_time()
            assert await anext(attempt) == Started()
            assert anyio.current_time() - began_at == pytest.approx(1.5)
            text = [d.text async for event in attempt if isinstance(event, list) for d in event]
        assert "".join(text) == TEXT[len("word0 word1") :]
        assert attempt.usage.probed == (0, 0)
    assert len(memory.requests) == 2


@pytest.mark.parametrize("limit_s", [None, 4.0])
async def test_a_proof_that_takes_too_long_is_given_up_and_the_server_is_told(limit_s):
    """The whole time of a proof is bounded, by half of the reader's own clock at most."""
    server = PlainServer("obeys")
    memory = MemoryServer(Reply(before=[SILENCE]), of(server))
    async with client(memory, continuation="auto") as asker:
        request = Request(
            [{"role": "user", "content": "?"}], MODEL, timeouts=Timeouts(first_content_s=limit_s)
        )
        async with asker.server.open(request, Prefix("word0 word1", tokens=2)) as attempt:
            began_at = anyio.current_time()
            assert await anext(attempt) == Started()
            assert anyio.current_time() - began_at == pytest.approx(8.0 if limit_s is None else 2.0)
            text = [d.text async for event in attempt if isinstance(event, list) for d in event]
        assert "".join(text) == TEXT[len("word0 word1") :]
        assert (attempt.seam.method, attempt.seam.verdict) == ("instructed", "continued")
        assert attempt.usage.probed[0] > 0, "what was sent may be billed"


@pytest.mark.parametrize("continuation", [Continuation("auto", instructed=False), "none"])
async def test_one_switch_turns_the_instruction_off(continuation):
    second = PlainServer("obeys")
    memory = MemoryServer(CUT)
    http = httpx2.AsyncClient(transport=memory)
    settings = {"api_key": "key", "model": "second", "price": (1.0, 1.0), "continuation": continuation}
    backup = Backup(base_url=memory.also(of(second)), http_client=http, **settings)
    async with client(memory, backups=[backup], policy=preset("server_only"), continuation="none") as asker:
        stream = await create(asker, stream=True)
        with pytest.raises(openai.APIConnectionError) as caught:
            await text_of(stream)
    assert caught.value.partial_text == "".join(WORDS[:40])
    assert second.told == []


@pytest.mark.parametrize("kind", ["obeys", "same again"])
@pytest.mark.parametrize("limit", [45, 60])
async def test_the_limit_holds_for_the_whole_answer_whatever_was_written_again(kind, limit):
    asker, _ = two(CUT, PlainServer(kind))
    async with asker:
        stream = await create(asker, stream=True, max_tokens=limit)
        assert await text_of(stream) == "".join(WORDS[:limit])
    assert stream.route.finish_reason == ("length" if limit < 60 else "stop")
    assert stream.route.seamless


@pytest.mark.parametrize("code", ["content_filter", "invalid_prompt"])
async def test_a_refused_instruction_is_not_the_applications_mistake(code):
    """The same request was accepted by the first server; so the next one may be asked."""
    refusal = Reply([b'{"error": {"message": "No.", "code": "%s"}}' % code.encode()], 400, JSON)
    memory, third = MemoryServer(CUT), PlainServer("obeys")
    backups = [
        Backup(
            base_url=memory.also(reply),
            continuation="instructed",
            price=(price, price),
            http_client=httpx2.AsyncClient(transport=memory),
            api_key="key",
            model="m",
        )
        for price, reply in ((1.0, refusal), (2.0, of(third)))
    ]
    async with client(memory, backups=backups, policy=preset("server_only")) as asker:
        stream = await create(asker, stream=True)
        assert await text_of(stream) == TEXT
    first, *refused, last = tried(stream)
    assert (first, set(refused), last) == (
        ("server", "connection"),
        {("backup-1", "seam")},
        ("backup-2", None),
    )
    assert len(third.bodies) == 1, "configured as instructed, it is not probed"


async def test_an_instructed_server_is_no_target_of_a_migration():
    """It would be cheaper, but only a failure is worth a try."""
    server = PlainServer("obeys")
    memory = MemoryServer(of(server))
    dear = device(answer=TEXT, decode_tps=100.0)
    settings = {
        "policy": preset("device_only", order="make_before_break", rate=1e6),
        "continuation": "instructed",
    }
    async with client(memory, local=dear, **settings) as asker:
        answer = await ask(asker)
        candidate = next(e for e in answer.route.endpoints if e.name == "server")
    assert (candidate.continues, answer.route.migrations, server.bodies) == (False, (), [])
    assert answer.text == TEXT
