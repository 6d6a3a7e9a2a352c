"""The live page's data hold no text, unless the owner has switched that on; nor a key or an address in any case."""

from __future__ import annotations

import threading

import pytest
from canaries import ANSWER, CALLERS_KEY, KEY, MESSAGES, PASSWORD, PROMPT, SECRETS, TEXTS, TOOL, found_in
from scripted_server import RESET, STREAM_HEAD, chunk, piece, sse, stream, usage
from serving import serving, upstream

from disco import AsyncDisco
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.server import LiveBoard

pytestmark = pytest.mark.real

KEYED = {"Authorization": f"Bearer {CALLERS_KEY}"}
WORDS = [chunk(word + " ") for word in ANSWER.split()]
GOOD = stream(sse(*WORDS, chunk(finish="stop"), usage(20, 10)))
QUOTES = [
    STREAM_HEAD,
    piece(sse(WORDS[0], {"error": {"message": f"{PROMPT} {KEY}", "code": "x"}}, done=False)),
    RESET,
]
ODD = stream(sse(*WORDS, chunk(finish=PROMPT)))
SLOW = SimulatedProfile(answer=ANSWER * 2, gap_s=0.01, overhead_s=0.1)
OFF = {"pace_tps": "off"}
ASKS = [
    ("/v1/chat/completions", {"messages": MESSAGES, "disco": OFF}),
    ("/v1/chat/completions", {"messages": MESSAGES, "tools": [TOOL], "disco": OFF}),
    ("/v1/chat/completions", {"messages": MESSAGES, "stream": True, "user": PROMPT, "disco": OFF}),
    ("/v1/responses", {"input": MESSAGES, "stream": True, "disco": {**OFF, "local_only": True}}),
]


def all_that_is_told(board: LiveBoard) -> bytes:
    """All data that a page gets that asks as often as it can, while answers are written, fail and end."""
    device = SimulatedEndpoint("device", SLOW, place="device")
    with upstream(GOOD, QUOTES, ODD) as server:
        base_url = server.base_url.replace("://", f"://user:{PASSWORD}@")

        def made(on_route):
            more = {"base_url": base_url, "api_key": KEY, "continuation": "none", "price": (0.1, 0.1)}
            return AsyncDisco(
                local=device,
                preset="server-first",
                on_route=[on_route, board.answered],
                max_retries=0,
                **more,
            )

        data, ended = b"", threading.Event()
        with serving(made, page=board, key=CALLERS_KEY) as served:

            def ask_all() -> None:
                for path, body in ASKS:
                    served.ask(path, {"model": "m", **body}, headers=KEYED)
                ended.set()

            asking = threading.Thread(target=ask_all)
            asking.start()
            last = False
            while not last:
                last = ended.is_set()  # one more time after the end
                data += served.ask("/v1/disco/live", headers=KEYED).body
            asking.join()
            assert len(served.routes) == len(ASKS)
            data += served.ask("/").body + b"".join(str(served.ask("/").headers).encode() for _ in "x")
            address = served.client.server.base_url
        assert data.count(b'"state": "running"') > 0
        assert data.count(b'"state": "done"') > 0
        assert str(address).encode() not in data
    return data


@pytest.mark.parametrize("text", [False, True])
def test_the_page_is_told_texts_only_where_that_is_switched_on_and_keys_never(text):
    data = all_that_is_told(LiveBoard(text=text))
    told = {what.partition(":")[0] for what in found_in(data, TEXTS)}
    assert told == ({"prompt", "answer"} if text else set())
    assert list(found_in(data, SECRETS)) == []
