"""Answers for a voice through the client: one chunk for each sentence, and where there are none."""

from __future__ import annotations

import pytest
from defects.asking import client, create
from faults.in_memory import MemoryServer, Reply, anyio_backend, no_thread  # noqa: F401 - fixtures
from scripted_server import chunk, sse, usage

from disco.dispatch import available_presets, load_preset
from disco.errors import ConfigurationError

pytestmark = pytest.mark.anyio

WORDS = ("It", " is", " salty", ".", " The", " rivers", " did", " it", ".", " Yes")
SENTENCES = ["It is salty.", " The rivers did it.", " Yes"]


def server() -> MemoryServer:
    return MemoryServer(Reply([sse(*map(chunk, WORDS), chunk(finish="stop"), usage(12, len(WORDS)))]))


async def chunks_of(asker, **params) -> list:
    async with await create(asker, stream=True, **params) as stream:
        return [c async for c in stream if c.choices and c.choices[0].delta.content]


async def test_a_server_s_chunks_are_joined_to_sentences_and_keep_its_identity():
    # With a server that does not continue, and nothing else, a request without sentences goes the SDK's own way.
    async with client(server(), preset="speech", continuation="none") as asker:
        got = await chunks_of(asker)
        assert [c.choices[0].delta.content for c in got] == SENTENCES
        assert len({(c.id, c.model, c.created) for c in got}) == 1
        whole = await create(asker)
        assert whole.choices[0].message.content == "".join(SENTENCES)


async def test_one_request_may_do_without_and_programs_get_tokens():
    async with client(server(), preset="speech", continuation="none") as asker:
        for more in ({"disco": {"pace_tps": "off"}}, {"logprobs": True}):
            got = [c.choices[0].delta.content for c in await chunks_of(asker, **more)]
            assert len(got) == len(WORDS)


def test_the_preset_ships_and_sentences_need_a_pace():
    speech = load_preset("speech")
    assert "speech" in available_presets()
    assert (speech.playback.release, 3.0 <= speech.playback.pace_tps <= 4.0) == ("sentence", True)
    with pytest.raises(ConfigurationError, match='release = "sentence" needs pace_tps'):
        load_preset({"playback": {"release": "sentence", "pace_tps": "off"}})
    with pytest.raises(ConfigurationError, match="playback: release"):
        load_preset({"playback": {"release": "clause"}})
