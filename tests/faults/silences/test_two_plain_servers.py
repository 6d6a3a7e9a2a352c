"""Two servers as they come, with default settings: what a silence costs the reader, in virtual time."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx2
import openai
import pytest
from faults.in_memory import RESET, SILENCE, MemoryServer, Replies, Reply, Step
from faults.lab import device
from plain_server import TEXT, PlainServer
from scripted_server import chunk, sse

from disco import AsyncDisco, Backup
from disco.endpoints.simulation.simulated_script import Fault as Silent
from disco.endpoints.simulation.simulated_text import tokenise

pytestmark = pytest.mark.anyio

QUESTION = [{"role": "user", "content": "Tell me something."}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
WORDS = tokenise(TEXT)
SAID = [sse(chunk(word), done=False) for word in WORDS]
END = sse(chunk(finish="stop"))
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
FIRST_S = 0.3  # to a healthy server's first word


def every(seconds: float, data: bytes, times: int = 2000) -> list[Step]:
    return [seconds, data] * times


NOTHING: dict[str, list[Step]] = {
    "silence": [SILENCE],
    "comments": every(0.5, b": ping\n\n"),
    "role chunks": every(0.5, sse(chunk(role="assistant"), done=False)),
    "empty deltas": every(0.5, sse(chunk(), done=False)),
    "empty content": every(0.5, sse(chunk(""), done=False)),
}


def paced(pieces: Iterable[bytes], gap_s: float) -> list[Step]:
    return [step for piece in pieces for step in (gap_s, piece)]


def plain(kind: Any = "flags", first_s: float = FIRST_S, gap_s: float = 0.02) -> Any:
    """The replies of a healthy server."""
    server = PlainServer(kind)

    def reply(body: Any) -> Reply:
        said = server.pieces(body)
        if isinstance(said, int):
            return Reply([b'{"error": {"message": "No."}}'], said, {"content-type": "application/json"})
        return Reply([first_s, *paced(said, gap_s)])

    return reply


@dataclass
class Heard:
    """What the reader got, at which times, s after the request."""

    text: str = ""
    calls: int = 0
    at: list[float] = field(default_factory=list)
    took_s: float = 0.0
    route: Any = None
    error: openai.OpenAIError | None = None

    @property
    def longest_wait_s(self) -> float:
        return max(b - a for a, b in itertools.pairwise([0.0, *self.at]))

    @property
    def started(self) -> list[tuple[str, str, float]]:
        return [(t.endpoint, t.role, round(t.started_s, 2)) for t in self.route.attempts]


def client(first: Replies, *others: Replies, **more: Any) -> tuple[AsyncDisco, MemoryServer]:
    memory = MemoryServer(first)
    http = httpx2.AsyncClient(transport=memory)
    common = {"api_key": "key", "price": (1.0, 1.0), "http_client": http}
    backups = [Backup(base_url=memory.also(other), model="second", **common) for other in others]
    return AsyncDisco(base_url=memory.base_url, backups=backups, **common, **more), memory


async def hear(asker: AsyncDisco, *, stream: bool = True, **params: Any) -> Heard:
    heard, began_at = Heard(), anyio.current_time()
    asked: dict[str, Any] = {"model": "m", "messages": QUESTION, **params}
    try:
        if not stream:
            whole = await asker.chat.completions.create(**asked)
            message = whole.choices[0].message
            heard.text, heard.calls, heard.route = (
                message.content or "",
                len(message.tool_calls or ()),
                whole.route,
            )
        else:
            async with await asker.chat.completions.create(stream=True, **asked) as chunks:
                async for one in chunks:
                    for choice in one.choices:
                        heard.text += choice.delta.content or ""
                        heard.calls += len(choice.delta.tool_calls or ())
                        if choice.delta.content or choice.delta.tool_calls:
                            heard.at.append(anyio.current_time() - began_at)
                heard.route = chunks.route
    except openai.OpenAIError as error:
        heard.error, heard.route = error, error.route
    heard.took_s = anyio.current_time() - began_at
    return heard


# ---------------------------------------------------------------------- another endpoint may take over


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("nothing", NOTHING)
async def test_before_the_first_content_another_starts_beside_the_silent_one_within_5_s(nothing, stream):
    asker, _ = client(Reply(NOTHING[nothing]), plain())
    async with asker:
        heard = await hear(asker, stream=stream)
    assert heard.text == TEXT
    (_, _, _), (endpoint, role, at_s) = heard.started
    assert (endpoint, role) == ("backup-1", "hedge")
    assert at_s <= 5.0
    assert heard.took_s < 5.0 + FIRST_S + 2.0


@pytest.mark.parametrize("preset", ["balanced", "cheap", "cascade"])
@pytest.mark.parametrize("budget", [None, {"server_tokens": 100_000, "per": "day"}], ids=str)
async def test_in_every_preset_a_server_starts_beside_a_silent_device(preset, budget):
    dead = device(fault=Silent(0, silence_s=SILENCE, kind=None))
    memory = MemoryServer(plain())
    settings = {"http_client": httpx2.AsyncClient(transport=memory), "price": (1.0, 1.0), "budget": budget}
    asker = AsyncDisco(local=dead, preset=preset, base_url=memory.base_url, api_key="key", **settings)
    async with asker:
        heard = await hear(asker)
    assert heard.text == TEXT
    assert all(at_s <= 5.0 for _, _, at_s in heard.started)
    assert heard.at[0] <= 5.0


@pytest.mark.parametrize(
    ("kind", "stream"),
    [
        ("flags", True),
        ("flags", False),
        ("obeys", True),
        ("restarts", False),
    ],  # the last cannot go on, but begin anew
)
@pytest.mark.parametrize("nothing", NOTHING)
async def test_in_mid_text_a_silence_costs_the_reader_at_most_5_s(nothing, kind, stream):
    asker, _ = client(Reply([FIRST_S, *paced(SAID[:20], 0.02), *NOTHING[nothing]]), plain(kind))
    async with asker:
        heard = await hear(asker, stream=stream)
    assert heard.text == TEXT
    assert [(t.endpoint, t.role) for t in heard.route.attempts] == [
        ("server", "starter"),
        ("backup-1", "heir"),
    ]
    if stream:
        assert heard.longest_wait_s <= 5.0
    assert heard.took_s < FIRST_S + 5.0 + 2 * len(WORDS) * 0.02


@pytest.mark.parametrize("first_s", [0.0, 4.0])
@pytest.mark.parametrize("others_s", [0.3, 1.5])
async def test_a_word_every_4_s_is_as_good_as_silence_where_another_can_go_on(first_s, others_s):
    """One word does not end the doubt: it waits for the heir, which is there long before the next one."""
    asker, _ = client(Reply([first_s, *[s for p in SAID for s in (p, 4.0)], END]), plain(first_s=others_s))
    async with asker:
        heard = await hear(asker)
    assert heard.text == TEXT
    assert heard.took_s < 15.0
    assert heard.longest_wait_s <= 5.0


async def test_a_server_that_goes_on_after_a_long_pause_keeps_its_answer():
    slow = plain(first_s=9.0)  # the other is not ready in time
    asker, _ = client(Reply([FIRST_S, *paced(SAID[:20], 0.02), 4.0, *paced(SAID[20:], 0.02), END]), slow)
    async with asker:
        heard = await hear(asker)
    assert heard.text == TEXT
    assert [(m.reason, m.outcome) for m in heard.route.migrations] == [("silence", "source_back")]
    assert heard.route.attempts[0].failure is None


async def test_an_heir_that_is_silent_too_makes_room_for_the_next():
    asker, _ = client(Reply([FIRST_S, *paced(SAID[:20], 0.02), SILENCE]), Reply([SILENCE]), plain())
    async with asker:
        heard = await hear(asker)
    assert heard.text == TEXT
    assert [t.endpoint for t in heard.route.attempts] == ["server", "backup-1", "backup-2"]
    assert heard.longest_wait_s <= 10.0


async def test_a_server_that_hiccups_as_an_heir_is_asked_once_more():
    answers, refused = plain("obeys"), Reply([b"{}"], 503, {"content-type": "application/json"})
    told = itertools.count()

    def second(body: Any) -> Reply:
        is_asked = "<last_words>" in body["messages"][-1]["content"]
        return refused if is_asked and next(told) == 0 else answers(body)

    asker, _ = client(Reply([FIRST_S, *paced(SAID[:20], 0.02), SILENCE]), second)
    async with asker:
        heard = await hear(asker)
    assert heard.text == TEXT
    assert [t.failure for t in heard.route.attempts] == ["stalled", "server", None]
    assert heard.longest_wait_s <= 5.5


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(200), marks=pytest.mark.slow)])
@pytest.mark.parametrize("where", ["before the first word", "in mid-text"])
async def test_after_25_answers_another_starts_within_half_a_second(where, seeds):
    """Of 100 readers 99 wait so much longer than the slowest usual word at most."""
    waits = []
    for seed in seeds:
        rng, answers = random.Random(seed), itertools.count()

        def reply(body: Any, rng: random.Random = rng, answers: Any = answers) -> Reply:
            first_s, words = rng.uniform(0.1, 0.3), SAID[:16]
            struck = body["messages"] == QUESTION and next(answers) == 25
            gaps = [rng.uniform(0.01, 0.04) for _ in words]
            said = [step for pair in zip(gaps, words, strict=True) for step in pair]
            if struck and where == "in mid-text":
                return Reply([first_s, *said[: 2 * rng.randrange(4, 12)], SILENCE])
            return Reply([SILENCE] if struck else [first_s, *said, END])

        asker, _ = client(reply, plain())
        async with asker:
            for _ in range(25):
                assert len((await hear(asker)).route.attempts) == 1, "a false alarm"
            heard = await hear(asker)
        lost, other = heard.route.attempts
        usual_s = 0.3 if where == "before the first word" else lost.first_content_s + 16 * 0.04
        waits.append(other.started_s - usual_s)
    assert sorted(waits)[int(0.99 * len(waits)) - 1] <= 0.5


@pytest.mark.parametrize("how_often", [1, 2, 3])
@pytest.mark.parametrize(("seen", "at_most_s"), [(0, 5.0), (25, 1.2)])
@pytest.mark.parametrize("where", ["before the first word", "in mid-text"])
async def test_a_server_that_falls_silent_again_and_again_is_not_waited_for_any_longer(
    where, seen, at_most_s, how_often
):
    """It never comes back, so no doubt was wrong, and nothing is learnt of how long it may be silent.

    It might be slow instead. So when the doubts of its starts are used up, it has a longer time once.
    """
    rng, answers = random.Random(seen), itertools.count()

    def reply(body: Any) -> Reply:
        if body["messages"] != QUESTION:
            return Reply([FIRST_S, SAID[0], END])
        said = [rng.uniform(0.1, 0.3), *paced(SAID[:16], rng.uniform(0.01, 0.04))]
        number = next(answers) - seen
        if number < 0 or number % how_often:
            return Reply([*said, END])
        return Reply([SILENCE] if where == "before the first word" else [*said[:17], SILENCE])

    asker, _ = client(reply, plain())
    async with asker:
        for _ in range(seen):
            await hear(asker)
        heard = [await hear(asker) for _ in range(12 * how_often)]
    waits = [one.longest_wait_s for one in heard if len(one.route.attempts) > 1]
    assert len(waits) > 3
    longer = [wait_s for wait_s in waits if wait_s > at_most_s]
    assert len(longer) <= (len(waits) // 6 if where == "before the first word" else 0), waits
    assert all(wait_s <= 30.0 + 1.0 for wait_s in longer)


@pytest.mark.parametrize("seen", [0, 25])
@pytest.mark.parametrize("first_s", [4.0, 20.0])
async def test_a_first_server_that_is_only_slow_is_not_replaced_for_good(first_s, seen):
    """As a model is that thinks, unseen. The other's answers are over long before its first word."""
    answers = itertools.count()

    def reply(body: Any) -> Reply:
        return plain(first_s=FIRST_S if next(answers) < seen else first_s)(body)

    asker, _ = client(reply, plain())
    async with asker:
        for _ in range(seen):
            await hear(asker)
        winners = []
        for _ in range(40):
            winners.append((await hear(asker)).route.winner)
            await anyio.sleep(20.0)
    assert winners.index("server") <= 5
    assert set(winners[6:]) == {"server"}


@pytest.mark.parametrize("pause_s", [1.0, 20.0, 300.0])
@pytest.mark.parametrize("limit", [{"default_options": {"deadline_s": 15.0}}, {"timeout": 15.0}], ids=str)
async def test_a_clock_leaves_the_other_one_half_of_the_time(limit, pause_s):
    """Also when the doubts are used up, and where the breaker only probes the silent one."""
    asker, _ = client(Reply([SILENCE]), plain(), **limit)
    async with asker:
        for _ in range(30):
            heard = await hear(asker)
            assert (heard.error, heard.text) == (None, TEXT)
            assert heard.at[0] <= 7.5 + FIRST_S + 0.1
            await anyio.sleep(pause_s)


@pytest.mark.parametrize("seen", [0, 25])
async def test_whoever_is_waited_for_and_hangs_is_not_waited_for_any_longer(seen):
    """Wherever it hangs: its doubts are used up by silent starts, then it falls silent in mid-text."""
    answers = itertools.count(-seen)

    def reply(body: Any) -> Reply:
        number = next(answers)
        if 0 <= number < 5:
            return Reply([SILENCE])
        return Reply([FIRST_S, *paced(SAID[:16], 0.02), *([END] if number < 0 else [SILENCE])])

    asker, _ = client(reply, plain())
    waits = []
    async with asker:
        for number in range(seen + 25):
            heard = await hear(asker)
            if number >= seen:
                waits.append(heard.longest_wait_s)
                await anyio.sleep(300.0)
    assert len([wait_s for wait_s in waits if wait_s > 5.0]) == 1
    assert max(waits) <= 15.0 + 1.0


# ---------------------------------------------------------------------- an answer is there, and might be bettered

NOTHING_SAID = Reply(
    [4.0, sse(chunk(finish="length"))]
)  # a model that has used up its limit on thoughts unseen


@pytest.mark.parametrize("max_retries", [0, 2])
@pytest.mark.parametrize("stream", [True, False])
async def test_who_has_ended_without_content_is_not_asked_again_and_again(stream, max_retries):
    asker, _ = client(NOTHING_SAID, NOTHING_SAID, max_retries=max_retries)
    async with asker:
        heard = await hear(asker, stream=stream)
    assert (heard.error, heard.text, len(heard.started)) == (None, "", 2)
    assert heard.took_s < 10.0


@pytest.mark.parametrize("stream", [True, False])
async def test_an_empty_answer_of_a_hedge_does_not_end_the_first_choice(stream):
    asker, _ = client(plain(first_s=8.0), Reply([0.1, sse(chunk(finish="length"))]))
    async with asker:
        heard = await hear(asker, stream=stream)
    assert (heard.error, heard.text, len(heard.started)) == (None, TEXT, 2)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("nothing", NOTHING)
async def test_an_answer_that_says_that_it_failed_is_not_held_back_for_a_silent_backup(nothing, stream):
    said = Reply([*paced(SAID[:4], 0.1), sse(chunk(finish="abort"))])
    asker, _ = client(said, Reply(NOTHING[nothing]))
    async with asker:
        heard = await hear(asker, stream=stream)
    assert (heard.error, heard.text) == (None, "".join(WORDS[:4]))
    assert heard.took_s < 5.5
    assert len(heard.started) == 2


# ---------------------------------------------------------------------- nobody may take over


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("others", [0, 1])
async def test_a_server_that_buffers_a_tool_call_for_20_s_is_healthy(others, stream):
    call = sse(chunk(tool_calls=[CALL]), done=False)
    buffers = Reply([FIRST_S, SAID[0], 20.0, call, sse(chunk(finish="tool_calls"))])
    asker, _ = client(buffers, *[buffers] * others, default_options={"deadline_s": 1000.0})
    async with asker:
        heard = await hear(asker, stream=stream, tools=TOOLS)
    assert (heard.error, heard.calls) == (None, 1)
    assert heard.took_s == pytest.approx(20.0 + FIRST_S, abs=0.5)
    assert heard.route.attempts[0].failure is None


@pytest.mark.parametrize("stream", [True, False])
async def test_two_servers_that_are_silent_for_35_s_are_both_waited_for_and_the_first_word_wins(stream):
    late = Reply([35.0, *SAID, END])
    asker, memory = client(late, late)
    async with asker:
        heard = await hear(asker, stream=stream)
    assert heard.text == TEXT
    assert heard.took_s == pytest.approx(35.0, abs=0.1)
    assert [t.endpoint for t in heard.route.attempts] == ["server", "backup-1"]
    assert sum(body["messages"] == QUESTION for body in memory.requests) == 2


async def test_the_last_that_is_left_is_waited_for():
    refused = Reply([b'{"error": {"message": "No."}}'], 400, {"content-type": "application/json"})
    gone = Reply([b'{"error": {"message": "No.", "code": "model_not_found"}}'], 404, refused.headers)
    asker, _ = client(gone, Reply([100.0, *SAID[:5], 100.0, *SAID[5:], END]))
    async with asker:
        heard = await hear(asker)
    assert heard.text == TEXT
    assert heard.route.attempts[-1].failure is None


@pytest.mark.parametrize("sign", ["comments", "role chunks", "empty deltas", "empty content"])
@pytest.mark.parametrize("where", [0, 20])
async def test_a_sign_of_life_keeps_a_connection_that_nobody_can_replace(sign, where):
    """As with the SDK, whose time-out begins anew with each read."""
    alive = NOTHING[sign][: 2 * 100]  # 50 s
    asker, memory = client(
        Reply([*SAID[:where], *alive, *SAID[where:], END]), default_options={"deadline_s": 1000.0}
    )
    async with asker:
        heard = await hear(asker.with_options(timeout=20.0))
    assert (heard.text, len(memory.requests)) == (TEXT, 1)


async def test_silence_that_nobody_can_replace_ends_with_the_sdks_time_out_and_with_the_text():
    asker, memory = client(
        Reply([*SAID[:20], SILENCE]), max_retries=2, default_options={"deadline_s": 1000.0}
    )
    async with asker:
        heard = await hear(asker)
    assert isinstance(heard.error, openai.APITimeoutError)
    assert heard.error.partial_text == "".join(WORDS[:20])
    assert heard.took_s == pytest.approx(600.0, abs=1.0)
    assert len(memory.requests) == 1


async def test_a_healthy_answer_has_no_time_limit_of_its_own():
    asker, _ = client(Reply([*paced(SAID * 60, 0.2), END]), plain())  # 5 tokens/s, for 12 minutes
    async with asker:
        heard = await hear(asker)
    assert heard.error is None
    assert heard.took_s > 700.0


BREAKS: dict[str, list[Step]] = {
    "closed": [httpx2.RemoteProtocolError("closed")],
    "reset": [RESET],
    "ended": [],
    "bad line": [b"data: {oops\n\n"],
    "error": [b'data: {"error": {"message": "Boom.", "code": 500}}\n\n'],
}


@pytest.mark.parametrize("breaks", BREAKS)
@pytest.mark.parametrize("others", [0, 1])
async def test_where_nobody_can_go_on_the_error_comes_with_the_text_at_once(breaks, others):
    broken = Reply([*SAID[:40], *BREAKS[breaks]])
    asker, memory = client(
        broken,
        *[plain("restarts", first_s=0.0, gap_s=0.0)] * others,
        max_retries=2,
        default_options={"deadline_s": 1000.0},
    )
    async with asker:
        heard = await hear(asker)
    assert heard.error is not None
    assert heard.error.partial_text == "".join(WORDS[:40])
    assert heard.took_s < 0.5
    assert {t.endpoint for t in heard.route.attempts[1:]} <= {"backup-1"}
    if not others:
        assert len(memory.requests) == 1
