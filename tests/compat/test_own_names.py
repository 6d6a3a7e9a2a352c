"""What disco's classes add to the SDK's is what docs/reference/async-client.md lists.

No name of ours hides one that may come.
"""

import re
from pathlib import Path

import openai
import pytest

from disco import AsyncDisco, Disco
from disco.client.chat.chat_chunks import RoutedChatCompletion
from disco.client.chat.helper_events import StreamManager, StreamState, SyncStreamManager
from disco.client.chat.object_stream import ParsedStream, ParsedSyncStream
from disco.client.chat.stream_types import DiscoStream, DiscoSyncStream

PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "async-client.md"


def documented(*owners):
    section = PAGE.read_text(encoding="utf-8").split("## Names beside the SDK's\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    found = [re.findall(r"`(\w+)", row[1]) for row in rows if row[0].strip().strip("`") in owners]
    assert len(found) >= len(owners)
    return {name for names in found for name in names}


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


@pytest.mark.parametrize(("plain", "ours"), [(openai.AsyncOpenAI, AsyncDisco), (openai.OpenAI, Disco)])
def test_clients_and_their_resources(plain, ours):
    client, sdk = ours(api_key="x"), plain(api_key="x")
    assert public(client) - public(sdk) == documented("both clients")
    assert public(sdk) <= public(client)
    assert public(client.chat) == public(sdk.chat)
    assert public(client.chat.completions) == public(sdk.chat.completions)


BOTH = {DiscoStream: "both streams", DiscoSyncStream: "both streams", RoutedChatCompletion: "completions"}


@pytest.mark.parametrize(
    "ours", [*BOTH, ParsedStream, ParsedSyncStream, StreamManager, SyncStreamManager, StreamState]
)
def test_answers(ours):
    sdk = next(base for base in ours.__mro__ if base.__module__.split(".")[0] == "openai")
    # `response` is an attribute that the SDK's streams set when they are made.
    added = public(ours) - public(sdk) - set(sdk.__annotations__)
    assert added - {"route"} == (documented(BOTH[ours]) - {"route"} if ours in BOTH else set())
