"""What the tests of this folder share: who answers, how they are asked, and what must hold of every answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import anyio
import httpx2
import openai
from faults.proxy_server.origin import TEXT

from disco import AsyncDisco
from disco.dispatch import Preset
from disco.endpoints.simulation.simulated_endpoint import SimulatedEndpoint
from disco.endpoints.simulation.simulated_script import SimulatedProfile
from disco.request import Timeouts
from disco.session.records.route_record import RouteRecord

MESSAGES = [{"role": "user", "content": "Erzähl mir vom Meer, bitte. " * 8}]
# Shorter than a throttled event takes, and than the silence after which another endpoint starts.
VIRTUAL = Timeouts(connect_s=2.0, first_content_s=2.5, gap_s=2.5, total_s=600.0)


@dataclass(frozen=True)
class Answer:
    """What the application got: all deltas (on an error those before it), the record, and what was raised."""

    text: str
    route: RouteRecord
    error: openai.OpenAIError | None = None

    @property
    def attempts(self) -> list[tuple[str, str | None]]:
        return [(t.endpoint, t.failure) for t in self.route.attempts]

    @property
    def writers(self) -> list[str]:
        return [piece.endpoint for piece in self.route.segments]


def preset(policy: str, **more: Any) -> Preset:
    fields = {"playback": {"pace_tps": "off"}, "migration": {"enabled": False}, **more}
    return Preset(name="lab", dispatch={"policy": policy}, **fields)


def device(text: str = TEXT, **profile: Any) -> SimulatedEndpoint:
    """A fast model on this machine that writes the same text as the server, token for token."""
    settings = {"answer": text, "decode_tps": 5000.0, **profile}
    return SimulatedEndpoint("device", SimulatedProfile(**settings), place="device")


def asking(server: Any, local: Any = None, *, policy: str = "server_only", **more: Any) -> AsyncDisco:
    """A client of a server in memory, in virtual time, unless `more` says otherwise."""
    settings = {"max_retries": 0, "policy": preset(policy), "continuation": "trailing", "timeouts": VIRTUAL}
    settings |= (
        more if "http_client" in more else {"http_client": httpx2.AsyncClient(transport=server), **more}
    )
    return AsyncDisco(local=local, base_url=server.base_url, api_key="secret-key-1234", **settings)


async def get(client: AsyncDisco, *, stream: bool = True, **params: Any) -> Answer:
    """Ask, and read to the end, whatever end that is."""
    text: list[str] = []
    asked = {"model": "m", "messages": MESSAGES, **params}
    try:
        with anyio.fail_after(300):
            if not stream:
                whole = await client.chat.completions.create(**asked)
                return Answer(whole.choices[0].message.content or "", whole.route)
            async with await client.chat.completions.create(stream=True, **asked) as chunks:
                async for chunk in chunks:
                    text += [choice.delta.content or "" for choice in chunk.choices]
                return Answer("".join(text), chunks.route)
    except openai.OpenAIError as error:
        failed = Answer("".join(text), error.route, error)
    assert failed.error.partial_text == failed.text or not stream, "an error keeps exactly what had been read"
    return failed


def calm(answer: Answer) -> None:
    """What holds of every whole answer: it is the text, each piece of it what its writer wrote, and all is charged."""
    route = answer.route
    assert answer.error is None
    assert answer.text == TEXT
    assert route.seamless
    assert route.finish_reason == "stop"
    assert [p.start_char for p in route.segments] == [0, *(p.end_char for p in route.segments[:-1])]
    assert route.segments[-1].end_char == len(TEXT)
    assert all(t.ended_s is not None for t in route.attempts)
