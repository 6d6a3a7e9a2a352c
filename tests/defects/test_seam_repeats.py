"""An answer that repeats itself arrives whole when its writer dies and a second server writes on."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest
from scripted_server import (
    RESET,
    STREAM_HEAD,
    ScriptedServer,
    Step,
    chunk,
    piece,
    scripted_server,
    sse,
    stream,
)

from disco import AsyncDisco, Backup
from disco.dispatch import Preset
from disco.endpoints.continuation import Continuation

pytestmark = pytest.mark.anyio

ASKED = {"model": "m", "messages": [{"role": "user", "content": "Say it."}]}
# With the number of characters that the first server writes, about a third.
REPEATS = {
    "ha": ("哈" * 200 + "。", 67),
    "dna": ("ACGT" * 60 + ".fa.", 81),
    "row": ("=" * 240, 80),
    "cheer": ("加油！" * 70, 70),
}
PROSE = (
    "The quick brown fox jumps over the lazy dog, and then it runs into the wood where nobody sees it again."
)


class WritesOn:
    """What the second server sends: all of `answer` that is not in the message it was sent; a script.

    Args:
        answer: the whole.
        repeats: characters of the sent text that it writes again first, counted from its end; -1: all.
    """

    def __init__(self, answer: str, *, repeats: int = 0) -> None:
        self._answer = answer
        self._repeats = repeats
        self.server: ScriptedServer | None = None

    def __iter__(self) -> Iterator[Step]:
        assert self.server is not None
        last = self.server.requests[-1][2]["messages"][-1]
        sent = last["content"] if last["role"] == "assistant" else ""
        assert self._answer.startswith(sent)
        begin = 0 if self._repeats < 0 else len(sent) - self._repeats
        rest = self._answer[begin:]
        chunks = [chunk(rest[at : at + 7]) for at in range(0, len(rest), 7)]
        yield from stream(sse(*chunks[:3], done=False), sse(*chunks[3:], chunk(finish="stop")))


async def ask(
    answer: str, dies_at: int, continuation: Continuation, *, repeats: int = 0
) -> tuple[str, object]:
    """The text that arrives and its route, when the first server dies behind `dies_at` characters of `answer`."""
    begun = answer[:dies_at]
    pieces = [piece(sse(chunk(begun[at : at + 5]), done=False)) for at in range(0, dies_at, 5)]
    script = WritesOn(answer, repeats=repeats)
    policy = Preset(
        name="test",
        dispatch={"policy": "server_only"},
        playback={"pace_tps": "off"},
        migration={"enabled": False},
    )
    async with (
        scripted_server([STREAM_HEAD, *pieces, 0.05, RESET]) as first,
        scripted_server(script) as second,
        AsyncDisco(
            base_url=first.base_url,
            api_key="none",
            backups=[
                Backup(
                    base_url=second.base_url,
                    api_key="none",
                    model="m",
                    continuation=continuation,
                    http_client=httpx2.AsyncClient(verify=False),
                )
            ],
            policy=policy,
            max_retries=0,
            http_client=httpx2.AsyncClient(verify=False),
        ) as client,
    ):
        script.server = second
        async with await client.chat.completions.create(stream=True, **ASKED) as chunks:
            text = "".join([c.choices[0].delta.content or "" async for c in chunks if c.choices])
        return text, chunks.route


@pytest.mark.parametrize(("answer", "dies_at"), REPEATS.values(), ids=REPEATS)
@pytest.mark.parametrize(
    "continuation",
    [Continuation("flags"), Continuation("trailing", echoes=False)],
    ids=["flags", "told-no-echo"],
)
async def test_the_whole_answer_arrives(answer, dies_at, continuation):
    text, route = await ask(answer, dies_at, continuation)
    assert text == answer
    assert [p.endpoint for p in route.segments] == ["server", "backup-1"]
    assert route.seamless


@pytest.mark.parametrize(("answer", "dies_at"), REPEATS.values(), ids=REPEATS)
async def test_the_whole_answer_arrives_where_the_second_server_repeats_it_as_declared(answer, dies_at):
    text, route = await ask(answer, dies_at, Continuation("prefix", echoes=True), repeats=-1)
    assert text == answer
    assert route.seamless
    assert route.attempts[-1].seam == "echo"


@pytest.mark.parametrize(("answer", "dies_at"), REPEATS.values(), ids=REPEATS)
async def test_where_nobody_knows_nothing_is_lost_and_the_seam_is_called_unproved(answer, dies_at):
    text, route = await ask(answer, dies_at, Continuation("trailing"))
    assert text == answer
    assert not route.seamless
    last = route.attempts[-1]
    assert (last.seam, last.written_chars - last.swallowed_chars) == ("unproved", last.text_chars)


async def test_where_nobody_knows_an_echo_of_prose_is_swallowed_and_proved_by_the_word_shown_last():
    text, route = await ask(PROSE, 40, Continuation("trailing"), repeats=-1)
    assert text == PROSE
    assert route.seamless
    last = route.attempts[-1]
    assert (last.seam, last.swallowed_chars) == ("echo", last.prefix_chars)


async def test_an_answer_that_does_not_repeat_itself_is_seamless_though_nobody_knows():
    text, route = await ask(PROSE, 40, Continuation("trailing"))
    assert text == PROSE
    assert route.seamless
    assert route.attempts[-1].seam == "continued"


async def test_text_that_stands_there_twice_is_not_called_seamless():
    """The server repeats a part of what it was sent, which may be what the answer says."""
    text, route = await ask("Row: " + "=" * 240, 80, Continuation("trailing"), repeats=40)
    assert text.count("=") >= 240
    assert not route.seamless
