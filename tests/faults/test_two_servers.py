"""Two servers with default settings, on real connections: a cut answer goes on at the second one, or ends as it was.

`tests/client/test_unproved.py` has all faults and kinds of servers in virtual time; `bench_failover.py` has the shares.
"""

from __future__ import annotations

import anyio
import httpx2
import openai
import pytest
from faults.proxy_server.fault import Fault, Kind, Moment, refusal
from faults.proxy_server.origin import TEXT
from plain_server import PlainServer, served

from disco import AsyncDisco, Backup
from disco.endpoints.simulation.simulated_text import tokenise

pytestmark = pytest.mark.real

CUT = "".join(tokenise(TEXT)[:20])


async def ask(first: str, second: str):
    """The text, the route, and the error where there is one."""
    price, text = (1.0, 1.0), ""
    transports = [httpx2.AsyncClient(verify=False) for _ in range(2)]
    backup = Backup(base_url=second, api_key="key", model="m", price=price, http_client=transports[1])
    settings = {"api_key": "key", "price": price, "backups": [backup], "http_client": transports[0]}
    async with AsyncDisco(base_url=first, **settings) as client:
        messages = [{"role": "user", "content": "Tell me something."}]
        try:
            async with await client.chat.completions.create(
                model="m", messages=messages, stream=True
            ) as stream:
                async for chunk in stream:
                    text += "".join(choice.delta.content or "" for choice in chunk.choices)
            return text, stream.route, None
        except openai.APIConnectionError as error:
            return text, error.route, error


@pytest.mark.parametrize(
    ("kind", "whole", "way"),
    [("flags", TEXT, "flags"), ("obeys", TEXT, "instructed"), ("restarts", CUT, None)],
)
def test_an_answer_that_is_cut_after_20_tokens(proxy, kind, whole, way):
    proxy.arm([Fault(Kind.CLOSE, Moment.MIDDLE, tokens=20), *[refusal(503)] * 9])
    with served(PlainServer(kind, TEXT)) as second:
        text, route, error = anyio.run(ask, proxy.base_url, second)
    proxy.wait_idle()
    assert text == whole
    assert route.attempts[0].failure == "connection"
    assert route.attempts[1].continued_by == (way or "instructed")
    if way is None:
        assert error.partial_text == CUT
        assert [t.failure for t in route.attempts[1:3]] == ["seam", "seam"]
    else:
        assert (error, route.seamless, route.finish_reason) == (None, True, "stop")
