"""An answer that repeats itself arrives whole when its writer dies and a second server writes on."""

from __future__ import annotations

import httpx2
import pytest
from defects.asking import RESET, MemoryServer, Reply, client, create, preset, text_of
from faults.in_memory import anyio_backend  # noqa: F401 - a fixture
from faults.proxy_server.origin import begun_by
from scripted_server import chunk, sse

from disco import Backup
from disco.endpoints.continuation import Continuation

pytestmark = pytest.mark.anyio

# With the number of characters that the first server writes, about a third.
REPEATS = [("哈" * 200 + "。", 67), ("ACGT" * 60 + ".fa.", 81), ("=" * 240, 80), ("加油！" * 70, 70)]
PROSE = (
    "The quick brown fox jumps over the lazy dog, and then it runs into the wood where nobody sees it again."
)
UNKNOWN = Continuation("trailing")


async def moved(answer: str, dies_at: int, continuation: Continuation, *, repeats: int = 0):
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
        chunks = await create(one, stream=True)
        text = await text_of(chunks)
    assert [p.endpoint for p in chunks.route.segments] == ["server", "backup-1"]
    return text, chunks.route


@pytest.mark.parametrize(("answer", "dies_at"), REPEATS, ids=["ha", "dna", "row", "cheer"])
@pytest.mark.parametrize(
    ("continuation", "repeats", "seam"),
    [
        (Continuation("flags"), 0, None),
        (Continuation("trailing", echoes=False), 0, None),
        (Continuation("prefix", echoes=True), -1, "echo"),
        (UNKNOWN, 0, "unproved"),
    ],
    ids=["flags", "told-no-echo", "repeats as declared", "nobody knows"],
)
async def test_the_whole_answer_arrives_and_a_seam_that_nobody_knows_is_called_unproved(
    answer, dies_at, continuation, repeats, seam
):
    text, route = await moved(answer, dies_at, continuation, repeats=repeats)
    last = route.attempts[-1]
    assert text == answer
    assert route.seamless == (seam != "unproved")
    assert seam in (None, last.seam)
    if seam == "unproved":
        assert last.written_chars - last.swallowed_chars == last.text_chars


@pytest.mark.parametrize(("repeats", "seam"), [(-1, "echo"), (0, "continued")])
async def test_where_nobody_knows_prose_proves_by_the_word_shown_last_what_the_seam_is(repeats, seam):
    text, route = await moved(PROSE, 40, UNKNOWN, repeats=repeats)
    last = route.attempts[-1]
    assert (text, route.seamless, last.seam) == (PROSE, True, seam)
    assert repeats == 0 or last.swallowed_chars == last.prefix_chars


async def test_text_that_stands_there_twice_is_not_called_seamless():
    """The server repeats a part of what it was sent, which may be what the answer says."""
    text, route = await moved("Row: " + "=" * 240, 80, UNKNOWN, repeats=40)
    assert text.count("=") >= 240
    assert not route.seamless
