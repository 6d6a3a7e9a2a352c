"""What the tests of this folder share: who answers, how they are asked, and what must hold of every answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import openai
from faults.cases import Case
from faults.origin import TEXT
from faults.proxy import FaultProxy

from disco import AsyncDisco
from disco.dispatch import Preset
from disco.endpoints.simulated import SimulatedEndpoint
from disco.endpoints.simulated_script import SimulatedProfile
from disco.request import Timeouts
from disco.session.record import RouteRecord

__all__ = ["Answer", "asking", "calm", "device", "get", "nothing_left", "preset", "timeouts_for"]

MESSAGES = [{"role": "user", "content": "Erzähl mir vom Meer, bitte. " * 8}]
PATIENT = Timeouts(connect_s=10.0, first_content_s=20.0, gap_s=20.0, total_s=60.0)
# Silence is only noticed by waiting: long enough for a busy machine, short enough for a test.
SHORT = Timeouts(connect_s=0.2, first_content_s=0.25, gap_s=0.25, total_s=60.0)
UNHURRIED = Timeouts(connect_s=2.0, first_content_s=20.0, gap_s=20.0, total_s=60.0)


def timeouts_for(case: Case) -> Timeouts:
    """Short clocks only where a clock is what must notice."""
    return SHORT if case.silent else UNHURRIED


@dataclass(frozen=True)
class Answer:
    """What the application got.

    Attributes:
        text: all deltas, joined; on an error those that came before it.
        route: the record.
        error: what was raised.
    """

    text: str
    route: RouteRecord
    error: openai.OpenAIError | None = None

    @property
    def tries(self) -> list[tuple[str, str | None]]:
        return [(t.endpoint, t.failure) for t in self.route.tries]

    @property
    def writers(self) -> list[str]:
        return [piece.endpoint for piece in self.route.pieces]


def preset(policy: str, **more: Any) -> Preset:
    fields = {"playback": {"pace_tps": "off"}, "migration": {"enabled": False}, **more}
    return Preset(name="lab", dispatch={"policy": policy}, **fields)


def device(text: str = TEXT, **profile: Any) -> SimulatedEndpoint:
    """A fast model on this machine that writes the same text as the server, token for token."""
    return SimulatedEndpoint(
        "device", SimulatedProfile(**{"answer": text, "decode_tps": 5000.0, **profile}), place="device"
    )


def asking(
    proxy: FaultProxy, local: Any = None, *, policy: Preset | str = "server_only", **more: Any
) -> AsyncDisco:
    settings = {
        "max_retries": 0,
        "policy": preset(policy) if isinstance(policy, str) else policy,
        "continuation": "trailing",
        "timeouts": PATIENT,
        # Reading the certificates of the world takes longer than a test, and nothing here uses TLS.
        "http_client": httpx2.AsyncClient(verify=False),
        **more,
    }
    return AsyncDisco(local=local, base_url=proxy.base_url, api_key="secret-key-1234", **settings)


async def get(client: AsyncDisco, *, stream: bool = True, **params: Any) -> Answer:
    """Ask, and read to the end, whatever end that is."""
    text: list[str] = []
    asked = {"model": "m", "messages": MESSAGES, **params}
    try:
        with anyio.fail_after(30):
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


async def nothing_left(proxy: FaultProxy) -> None:
    """No connection is open once the client has closed."""
    await anyio.to_thread.run_sync(partial(proxy.wait_idle, 5.0))


def calm(answer: Answer, text: str = TEXT) -> None:
    """What holds of every whole answer: it is the text, each piece of it what its writer wrote, and all is charged."""
    route = answer.route
    assert answer.error is None
    assert answer.text == text
    assert route.seamless
    assert route.finish_reason == "stop"
    assert [p.start_char for p in route.pieces] == [0, *(p.end_char for p in route.pieces[:-1])]
    assert route.pieces[-1].end_char == len(text)
    assert all(t.ended_s is not None for t in route.tries)
