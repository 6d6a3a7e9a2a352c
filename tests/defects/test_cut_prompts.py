"""A server that cuts a prompt without a word: what its usage shows, who answers then, and what is no such thing."""

from __future__ import annotations

import httpx2
import pytest
from defects.asking import ask, client, create, device, preset, question, text_of, tried
from faults.in_memory import MemoryServer, Reply
from scripted_server import chunk, sse

from disco import AsyncDisco, Backup

pytestmark = pytest.mark.anyio


def counting(read: int, text: str = "Of what?", **more) -> Reply:
    """An answer whose usage counts so many tokens of the prompt."""
    usage = {"prompt_tokens": read, "completion_tokens": 2, "total_tokens": read + 2, **more}
    last = {**chunk(finish="stop"), "usage": usage}
    return Reply([sse(chunk(text), done=False), sse(last)])


def two(first: Reply, second: Reply | None = None, **more):
    server = MemoryServer(first)
    http = httpx2.AsyncClient(transport=server)
    at = {
        "base_url": server.also(second or counting(7003, "Waves.")),
        "api_key": "another-secret-5678",
        "model": "m",
    }
    backups = [Backup(**at, price=(1.0, 1.0), http_client=http, continuation="none")]
    return client(server, preset=preset("server_only"), **{"backups": backups, **more}), server


LONG = question(7000)


async def test_another_endpoint_answers_where_the_reader_has_nothing_yet(caplog):
    one, _ = two(counting(2050))
    async with one:
        for _ in range(2):
            answer = await ask(one, LONG, stream=False)
            assert answer.text == "Waves."
            assert tried(answer) == [("server", "context_length"), ("backup-1", None)]
    told = [r.getMessage() for r in caplog.records if r.name == "disco"]
    assert len(told) == 1, "once"
    assert "'server' (127.0.0.1) cuts prompts" in told[0]
    assert "2,050 tokens of at least 7,000" in told[0]
    one, _ = two(counting(2050), backups=[], local=device(answer="Waves."))
    async with one:
        assert (await ask(one, LONG, stream=False)).text == "Waves."


async def test_what_a_reader_has_stands_and_a_person_is_told(caplog):
    one, server = two(counting(2050))
    async with one:
        answer = await ask(one, LONG)
    assert answer.text == "Of what?"
    assert tried(answer) == [("server", None)]
    assert len(server.requests) == 1
    assert "2,050 tokens of at least 7,000" in caplog.text


async def test_where_nobody_has_read_it_all_the_answer_is_better_than_none(caplog):
    one, server = two(counting(2050), counting(2051, "Of that?"))
    async with one:
        answer = await ask(one, LONG, stream=False)
    assert answer.text == "Of that?"
    assert len(server.requests) == 2
    one, server = two(counting(2050), backups=[], budget={"usd": 1.0, "per": "day"})
    async with one:
        got = await create(one, LONG)
    assert got.choices[0].message.content == "Of what?"
    assert got.choices[0].finish_reason == "stop"
    assert len(server.requests) == 1


ROWS = " ".join(["   " * 30 + "|" for _ in range(400)])
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 200_000}}
FINE = {
    "English": (LONG, counting(7003), {}),
    "few tokens for words": (LONG, counting(5000), {}),
    "the cache is not counted": (LONG, counting(30), {}),
    "the cache is counted apart": (LONG, counting(900, cache_read_input_tokens=6100), {}),
    "the cache is counted within": (LONG, counting(900, prompt_tokens_details={"cached_tokens": 6100}), {}),
    "no usage": (LONG, counting(0), {}),
    "white space": ([{"role": "user", "content": ROWS}], counting(900), {}),
    "one long word": ([{"role": "user", "content": "a" * 40_000}], counting(2600), {}),
    "an image": (
        [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, IMAGE]}],
        counting(800),
        {},
    ),
    "thoughts in the history": (
        [
            *question(5),
            {"role": "assistant", "content": "<think>" + "so " * 9000 + "</think>No."},
            *question(5),
        ],
        counting(300),
        {},
    ),
    "asked to cut it": (LONG, counting(2050), {"extra_body": {"transforms": ["middle-out"]}}),
}


async def from_one(reply: Reply, messages, **more) -> None:
    """A stream in the SDK's own way, from the only server, and its record."""
    server = MemoryServer(reply)
    http = httpx2.AsyncClient(transport=server)
    async with AsyncDisco(base_url=server.base_url, api_key="key", price=(1, 1), http_client=http) as one:
        stream = await one.chat.completions.create(model="m", messages=messages, stream=True, **more)
        assert await text_of(stream) == "Of what?"
        assert [attempt.failure for attempt in stream.route.attempts] == [None]


async def test_with_one_server_its_record_tells(caplog):
    await from_one(counting(2050), LONG)
    assert "2,050 tokens of at least 7,000" in caplog.text


@pytest.mark.parametrize(("messages", "reply", "more"), FINE.values(), ids=FINE)
async def test_what_is_no_cut_with_one_server(messages, reply, more, caplog):
    await from_one(reply, messages, **more)
    assert "cuts prompts" not in caplog.text


@pytest.mark.parametrize(("messages", "reply", "more"), FINE.values(), ids=FINE)
async def test_what_is_no_cut(messages, reply, more, caplog):
    one, server = two(reply)
    async with one:
        got = await create(one, messages, **more)
        assert got.choices[0].message.content == "Of what?"
        assert await text_of(await create(one, messages, stream=True, **more)) == "Of what?"
    assert len(server.requests) == 2
    assert "cuts prompts" not in caplog.text


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("x " * 7000, 2050),
        ("0 " * 7000, 2700),
        ("海は広い。" * 3000, 2050),
        ("# Wave\n\n- of the sea\n" * 2000, 4095),
    ],
)
async def test_any_script(text, read):
    one, _ = two(counting(read), counting(20_000, "Waves."))
    async with one:
        answer = await ask(one, [{"role": "user", "content": [{"type": "text", "text": text}]}], stream=False)
    assert tried(answer) == [("server", "context_length"), ("backup-1", None)]
