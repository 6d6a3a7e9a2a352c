"""An answer that repeats itself arrives whole when its writer dies and a second server writes on."""

from __future__ import annotations

import httpx2
import pytest
from defects.asking import RESET, MemoryServer, Reply, client, preset, question, streamed, text_of
from faults.in_memory import anyio_backend  # noqa: F401 - a fixture
from faults.proxy_server.origin import begun_by
from scripted_server import chunk, sse

from disco import Backup
from disco.endpoints.continuation import Continuation

pytestmark = pytest.mark.anyio

# With the number of characters that the first server writes, about a third.
REPEATS = {
    "ha": ("哈" * 200 + "。", 67),
    "dna": ("ACGT" * 60 + ".fa.", 81),
    "row": ("=" * 240, 80),
    "cheer": ("加油！" * 70, 70),
}
each = pytest.mark.parametrize(("answer", "dies_at"), REPEATS.values(), ids=REPEATS)
PROSE = (
    "The quick brown fox jumps over the lazy dog, and then it runs into the wood where nobody sees it again."
)


async def ask(
    answer: str, dies_at: int, continuation: Continuation, *, repeats: int = 0
) -> tuple[str, object]:
    """The text that arrives and its route, when the first server dies behind `dies_at` characters of `answer`.

    The second one writes what the message it is sent lacks; before that, the last `repeats` characters of the sent
    text again, or all of them (-1).
    """

    def write_on(body):
        sent = begun_by(body)
        assert answer.startswith(sent)
        rest = answer[0 if repeats < 0 else len(sent) - repeats :]
        chunks = [chunk(rest[at : at + 7]) for at in range(0, len(rest), 7)]
        return Reply([sse(*chunks[:3], done=False), sse(*chunks[3:], chunk(finish="stop"))])

    begun = [sse(chunk(answer[at : min(at + 5, dies_at)]), done=False) for at in range(0, dies_at, 5)]
    server = MemoryServer(Reply([*begun, 0.05, RESET]))
    second = Backup(
        base_url=server.also(write_on),
        api_key="none",
        model="m",
        continuation=continuation,
        http_client=httpx2.AsyncClient(transport=server),
    )
    async with client(server, backups=[second], policy=preset("server_only")) as one:
        chunks = await streamed(one, question())
        return await text_of(chunks), chunks.route


@each
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


@each
async def test_the_whole_answer_arrives_where_the_second_server_repeats_it_as_declared(answer, dies_at):
    text, route = await ask(answer, dies_at, Continuation("prefix", echoes=True), repeats=-1)
    assert text == answer
    assert route.seamless
    assert route.attempts[-1].seam == "echo"


@each
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
