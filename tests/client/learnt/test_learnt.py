"""What a client learns is there at the next start, and in the user's other programs; and what is kept is no text."""

from __future__ import annotations

import logging
import sqlite3
import time
from contextlib import closing

import httpx2
import pytest
from defects.asking import MODEL, client, create, device, preset, prose, question, tried
from faults.in_memory import MemoryServer, Reply, spoken
from hypothesis import given
from hypothesis import strategies as st

from disco import Disco
from disco.client.learnt import learnt_state
from disco.client.learnt.kept_breakers import KeptBreakers
from disco.client.learnt.subjects import public_url
from disco.dispatch.breakers.endpoint_health import Asked, Health
from disco.endpoints.continuation.probe import ProbeVerdict
from disco.endpoints.llamacpp import EngineEndpoint
from disco.errors import EndpointFailure, FailureKind
from disco.judging import HistoryKey
from disco.state.facts import Fact

pytestmark = pytest.mark.anyio

SPOKEN = spoken(prose(12), first_s=0.002, gap_s=0.0002)
BOTH = preset("race")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.sqlite3"


def rows(path, query: str) -> list:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def here(**more):
    return device(
        **{"overhead_s": 0.001, "prefill_tps": 50_000.0, "decode_tps": 5_000.0, "answer_tokens": 12, **more}
    )


def known(one) -> dict:
    """What a client believes of its endpoints, by name."""
    found = {}
    for key, s in one.router.statistics.endpoints.items():
        line = None if s.line is None else (s.line.k_s_per_token, s.line.c_s)
        ttft = None if s.ttft is None else (s.ttft.count, s.ttft.censored_count, s.ttft.snapshot().mean())
        found[key[0]] = (line, ttft, s.decode_tps, s.turn_s, s.starts)
    return found


async def test_a_second_start_knows_what_the_first_one_learnt(path):
    settings = {"policy": BOTH, "state": path}
    async with client(MemoryServer(SPOKEN), local=here(), **settings) as first:
        for number in range(8):
            await create(first, question(40 * number + 5))
            await create(first, question(40 * number + 5), disco={"local_only": True})
        learnt, lengths = known(first), list(first.router.statistics.answers)
        prompts = first.router.statistics.prompts.weight
    async with client(MemoryServer(SPOKEN), local=here(), **settings) as second:
        await second.router.learnt.ready(second.router.endpoints.members(second.server), MODEL)
        for member in second.router.endpoints.members(second.server):
            second.router.learnt.known(member, MODEL, second.router.catalog.known(member, MODEL))
        assert known(second) == learnt
        assert list(second.router.statistics.answers) == lengths
        assert second.router.statistics.prompts.weight == prompts
    assert learnt["device"][4] >= 8  # starts
    assert sum(learnt["server"][1][:2]) == 8


async def test_without_a_file_nothing_is_kept(path, monkeypatch, tmp_path):
    monkeypatch.setenv("DISCO_STATE", str(path))
    async with client(local=here(), state=False) as one:
        await create(one)
        assert one.router.database is None
    assert not path.exists()
    async with client(local=here()) as one:
        await create(one)
    assert path.exists()


def test_a_client_without_an_event_loop_keeps_it_too(path):
    for _ in range(2):
        with Disco(local=here(), state=path) as one:
            one.chat.completions.create(model="m", messages=question())
    starts = "SELECT count(*) FROM observations JOIN series ON series.id = series WHERE kind = 'start_s'"
    assert rows(path, starts) == [(2,)]


async def test_servers_of_one_name_at_two_addresses_differ_and_no_credentials_are_kept(path):
    server = MemoryServer(SPOKEN)
    other = server.also(SPOKEN)
    async with client(server, local=here(), policy=preset("server_only"), state=path) as one:
        await create(one)
        await create(
            one.with_options(base_url=other.replace("://", "://user:Hidden-Word@") + "?key=Hidden-Word")
        )
        one.server.verdicts[f"{other}?key=Hidden-Word", "m"] = ProbeVerdict(
            "trailing", {"trailing": "continues"}
        )
    assert rows(path, "SELECT endpoint, address, model FROM series WHERE kind = 'ttft_s' ORDER BY id") == [
        ("server", "127.0.0.1:1001", MODEL),
        ("server", "127.0.0.1:1002", MODEL),
    ]
    assert b"Hidden-Word" not in path.read_bytes()


def test_an_address_is_public():
    assert public_url("https://user:pw@Host.example/v1/?key=x#y") == "https://host.example:443/v1"
    assert public_url("http://h:8080/") == public_url("http://h:8080") == "http://h:8080"
    private = public_url("https://gateway.example/v1/account/sk-secret/openai")
    assert "sk-secret" not in private
    assert private == public_url("https://gateway.example/v1/account/sk-secret/openai?x=1")
    assert private != public_url("https://gateway.example/v1/account/sk-other/openai")


async def test_two_programs_learn_from_each_other_and_count_nothing_twice(path, monkeypatch):
    monkeypatch.setattr(learnt_state, "NEWS_EVERY_S", float("inf"))
    settings = {"local": here(), "policy": preset("server_only"), "state": path}

    def counts(one) -> tuple[int, int]:
        (server,) = [s for s in one.router.statistics.endpoints.values() if s.ttft is not None]
        return server.ttft.count, len(one.router.statistics.answers)

    async def ask(one, times: int = 1) -> None:
        for _ in range(times):
            await create(one)
        one.router.database.flush()

    async with (
        client(MemoryServer(SPOKEN), **settings) as one,
        client(MemoryServer(SPOKEN), **settings) as other,
    ):
        await ask(one, 3)
        await ask(other)  # which begins with those three
        assert counts(other) == (4, 4)
        await ask(other, 4)
        await ask(one)
        for _ in range(2):
            for asker in (one, other):
                await asker.router.learnt.look()
                assert counts(asker) == (9, 9)
        # A model that one asks for later is read then, and not again at the next look.
        await create(other, model="later")
        other.router.database.flush()
        await create(one, model="later")
        one.router.database.flush()
        await one.router.learnt.look()
        later = [s.ttft.count for key, s in one.router.statistics.endpoints.items() if key[2] == "later"]
        assert later == [2]


async def test_a_server_that_was_down_a_moment_ago_is_left_alone_by_the_next_program(path):
    settings = {"policy": preset("server_only"), "state": path}
    down = MemoryServer(Reply(before=[httpx2.ConnectError("refused")]))
    elsewhere = down.also(SPOKEN)
    async with client(down, local=here(), **settings) as first:
        for _ in range(2):
            assert tried(await create(first)) == [("server", "connection"), ("device", None)]
    async with client(down, local=here(), **settings) as second:
        answer = await create(second)
        assert tried(await create(second.with_options(base_url=elsewhere))) == [("server", None)]
    assert tried(answer) == [("device", None)]
    (rest,) = answer.route.deprioritised
    assert (rest.endpoint, rest.failure, rest.failures) == ("server", "connection", 2)
    assert rest.for_s <= 2.0
    kept = rows(path, "SELECT key, value FROM facts WHERE kind = 'breaker'")
    assert len(kept) == 1


clocks = st.floats(-1e6, 1e9)


@given(written_at=clocks, read_at=clocks, unix_s=st.floats(1e9, 2e9), passed_s=st.floats(-1e7, 1e7))
def test_a_breaker_of_another_boot_and_another_clock_rests_no_longer_than_it_chose(
    written_at, read_at, unix_s, passed_s
):
    health = Health()
    keys = {"server": Asked(("server", ("host", 80)), "m")}
    watch = health.watch(keys)
    failure = EndpointFailure(FailureKind.CONNECTION, RuntimeError())
    for _ in range(2):
        watch.failed("server", failure, written_at, written_at)
    works = KeptBreakers(health).changes(watch, written_at, unix_s)
    (work,) = works
    key, value, at = work.args
    again = Health()
    kept = KeptBreakers(again)
    kept.restore([Fact(key, value, at)], read_at, unix_s + passed_s)
    resting, probing = again.watch(keys).look(read_at)
    rested = resting.get("server")
    if rested is not None:
        assert 0.0 <= rested.for_s <= 2.0 + 1e-6
        assert passed_s <= 2.0 + 1e-3
    if passed_s > 62.0 + 1e-3:
        assert (resting, probing) == ({}, set())
    other = KeptBreakers(Health())
    for bad in (
        {},
        {**value, "why": "?"},
        {**value, "until": "soon"},
        {**value, "rest_s": 1e12},
        {**value, "level": None},
    ):
        other.restore(
            [Fact(key, bad, at), Fact(("server",), value, at), Fact(("s", "h", ""), value, at)], 0.0, unix_s
        )
    assert other._kept == {}


def test_a_server_that_has_answered_since_is_not_believed_to_be_down():
    """Another program has found it down at 100 s; here it answered before (and after)."""
    keys, failure = (
        {"server": Asked(("server", ("host", 80)), "m")},
        EndpointFailure(FailureKind.CONNECTION, RuntimeError()),
    )
    theirs = Health()
    watch = theirs.watch(keys)
    for _ in range(2):
        watch.failed("server", failure, 100.0, 100.0)
    (work,) = KeptBreakers(theirs).changes(watch, 100.0, 1e9)
    fact = Fact(*work.args)
    for answered_at, rests in ((99.0, True), (100.5, False)):
        ours = Health()
        mine, kept = ours.watch(keys), KeptBreakers(ours)
        mine.answered("server", answered_at, answered_at)
        kept.restore([fact], 101.0, 1e9 + 1.0)
        assert bool(mine.look(101.0)[0]) is rests
        if rests:  # it is read again and again, and when it answers, it is taken out of the file
            kept.restore([fact], 101.5, 1e9 + 1.5)
            assert kept.changes(mine, 101.5, 1e9 + 1.5) == []
            mine.answered("server", 103.0, 104.0)
            (dropped,) = kept.changes(mine, 104.0, 1e9 + 4.0)
            assert dropped.args == (fact.key,)
            assert kept.changes(mine, 104.0, 1e9 + 4.0) == []


async def test_a_server_that_was_probed_is_not_probed_again(path):
    verdict = ProbeVerdict("prefix", {"flags": "refuses", "prefix": "continues"})
    settings = {"local": here(), "state": path, "policy": preset("device_only"), "continuation": "auto"}
    server = MemoryServer(SPOKEN)
    async with client(server, **settings) as first:
        first.server.verdicts[first.server.base_url, "before"] = verdict  # before anything was read
        await create(first)
        first.server.verdicts[first.server.base_url, MODEL] = verdict
    async with client(server, **settings) as second:
        await create(second)
        assert second.server.capabilities(MODEL).continues
        assert second.server.capabilities("before").continues
        assert not second.server.capabilities("another").continues
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE facts SET at = at - 8 * 86400")
    async with client(server, **settings) as third:
        await create(third)
        assert not third.server.capabilities(MODEL).continues


async def test_histories_are_kept_in_the_state_file_where_no_other_store_is_given(path):
    key = HistoryKey("triage", "device/m", "weakest")
    async with client(local=here(), state=path) as one, client(local=here(), state=path) as other:
        for asker in (one, other):
            await create(asker)
            asker.router.judging.book.history(key, 1000).push(0.5)
            await create(asker)
    async with client(local=here(), state=path) as again:
        await create(again)
        assert again.router.judging.book.history(key, 1000).seen == 2


async def test_names_that_callers_make_up_are_bounded(path, monkeypatch):
    monkeypatch.setattr("disco.client.endpoint_catalog.observed.statistics.MOST_MODELS", 8)
    monkeypatch.setattr("disco.state.observations.MOST_SERIES", 20)
    names = [f"made-up-{number}" for number in range(20)] + ["x" * 5000, "two\nlines", "\x1b[2J"]
    async with client(MemoryServer(SPOKEN), local=here(), policy=preset("server_only"), state=path) as one:
        for name in names:
            await create(one, model=name)
        learnt = one.router.learnt
        assert max(map(len, (learnt._told, learnt._read, learnt._read_to))) <= 8
        one.router.database.flush()
        assert (
            rows(path, "SELECT count(*) FROM series")[0][0] <= 20
        )  # though no program has started meanwhile
    assert rows(path, "SELECT max(length(model)) FROM series")[0][0] < 100


BROKEN = {"random": b"\x93" * 5000, "empty": b"", "text": b"SQLite format 3\0" + b"?" * 300}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
async def test_a_broken_file_costs_no_answer_and_one_warning(path, caplog, content):
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING, "disco"):
        async with client(local=here(), state=path) as one:
            for _ in range(3):
                assert (await create(one)).choices[0].message.content
    assert len(caplog.messages) == (1 if content else 0)


async def test_a_disk_that_does_not_answer_costs_no_answer_and_one_warning(path, caplog, monkeypatch):
    monkeypatch.setattr(learnt_state, "READ_WITHIN_S", 0.0)
    monkeypatch.setattr(learnt_state, "AGAIN_AFTER_S", 0.0)
    with caplog.at_level(logging.WARNING, "disco"):
        async with client(local=here(), state=path) as one:
            for _ in range(3):
                assert (await create(one)).choices[0].message.content
    (warning,) = caplog.messages
    assert "was not read within" in warning
    assert "DISCO_STATE" in warning


async def test_a_locked_file_costs_no_answer_and_little_time(path, caplog):
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with caplog.at_level(logging.WARNING, "disco"):
            async with client(local=here(), state=path) as one:
                started_at = time.monotonic()
                for _ in range(5):
                    assert (await create(one)).choices[0].message.content
                took_s = time.monotonic() - started_at
    assert len([m for m in caplog.messages if "keeps it locked" in m]) == 1
    assert took_s < 10.0


TOOLS = [
    {
        "type": "function",
        "function": {"name": "look", "description": "Heron-Tool", "parameters": {"type": "object"}},
    }
]


async def test_no_text_is_in_the_file_nor_beside_it(path):
    """What is searched for: a prompt, a system prompt, a tool, what was redacted, an answer, and the key."""
    asked = [
        {"role": "system", "content": "You are called Heron-System."},
        {"role": "user", "content": "Tell Heron-Redacted about Heron-Prompt."},
    ]
    said = spoken(["Of ", "Heron-Answer."], first_s=0.002)

    def named(text: str) -> dict[str, str]:
        return dict.fromkeys(("Heron-Redacted",) if "Heron-Redacted" in text else (), "NAME")

    settings = {"policy": BOTH, "state": path, "redact": named}
    async with client(
        MemoryServer(said), local=here(answer="It is Heron-Answer, and more."), **settings
    ) as one:
        for _ in range(3):
            await create(one, asked)
            await create(one, asked, tools=TOOLS)
        one.router.database.flush()
        files = sorted(path.parent.glob("state.sqlite3*"))
        assert len(files) == 3
        content = b"".join(file.read_bytes() for file in files)
    content += path.read_bytes()
    assert MODEL.encode() in content
    assert b"Heron" not in content
    assert b"secret-key" not in content


def test_a_model_on_this_machine_is_named_by_its_file_and_its_settings():
    size = EngineEndpoint(threads=1).state_name.split(", ")[1]
    assert int(size.removesuffix(" B")) > 1_000_000
    assert EngineEndpoint(threads=1).state_name == f"smollm2-135m, {size}, 1 threads"
    assert EngineEndpoint(threads=2, gpu_layers=7).state_name == (
        f"smollm2-135m, {size}, 2 threads, 7 layers on the GPU"
    )
    assert EngineEndpoint(model="hf:a/b/c.gguf", threads=1).state_name.endswith(
        ", 1 threads"
    )  # nothing is fetched
