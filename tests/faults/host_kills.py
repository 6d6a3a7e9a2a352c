"""Kills the host of the local model with SIGKILL while it does something for an answer, and judges the answer.

An answer must be complete, the sum of what its writers wrote (`witness`), and every token charged to who computed it.
A server of the user, with the same model, is there to go on.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import secrets
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import httpx2
from faults.witness import Device, Heard, Witness, complaint, ignore
from server.command_process import KEY, running
from servers import LlamaServer

from disco import AsyncDisco
from disco.cost import Phase
from disco.endpoints.continuation import Continuation
from disco.endpoints.contract import Event
from disco.events import Parked, Started
from disco.request import Timeouts
from disco.session.records.route_record import RouteRecord

PHASES: Final = ("loading", "reading", "writing", "parked", "drafting")
OF_LLAMA_SERVER: Final = ("loading", "reading", "writing")  # it neither parks nor drafts
WITHIN_S: Final = 300.0
PATIENT: Final = Timeouts(first_content_s=240.0, gap_s=120.0, total_s=280.0)  # the machine may be busy
_SENTENCES: Final = (
    "The old mill stands at the river, and its wheel has not turned for many years.",
    "In the first room hang the tools of the miller, each with a number and a name.",
    "Behind the door there is a stair of stone, which leads down to the water.",
    "Children come here in summer, and the keeper tells them how bread was made.",
    "A map on the wall shows every brook of the valley, and the roads of that time.",
)


@dataclass
class Trial:
    """One answer whose host was killed.

    Attributes:
        phase: what the host was doing.
        struck: it was killed while it did that; False: the answer was over before.
        wrong: what is wrong with the answer, one sentence each.
    """

    phase: str
    struck: bool = False
    wrong: list[str] = field(default_factory=list)


class Lab:
    """A device whose host is killed, and what else answers.

    Args:
        server: goes on where the device is killed.
        verifier: base URL of a verify server, for drafting; None: nothing is drafted.
        program: of the host.
        seed: of the moments.

    Mutable: `device`, `struck` (in the trial that runs), `hosts` (ids of all that there were).
    """

    def __init__(self, server: LlamaServer, verifier: str | None, program: str, seed: int) -> None:
        self.server = server
        self.verifier = verifier
        self.program = program
        self.random = random.Random(seed)
        self.device = self._new_device()
        self.struck = False
        self.hosts: set[int] = set()

    def _new_device(self) -> Device:
        return Device(
            model="smollm2-135m",
            name="device",
            runtime=self.program,
            context_tokens=2048,
            slots=2,
            threads=1,
        )

    async def aclose(self) -> None:
        if (pid := self.device.process_id) is not None:
            self.hosts.add(pid)
        await self.device.aclose()

    def kill(self) -> None:
        """Kill the host, whatever it does."""
        pid = self.device.process_id
        if pid is not None and not self.struck:
            self.struck = True
            self.hosts.add(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def trial(self, phase: str) -> Trial:
        """Ask for one answer, and kill the host in a phase of it."""
        self.struck = False
        run: Callable[[], Any] = getattr(self, f"_{phase}")
        found = Trial(phase)
        try:
            with anyio.fail_after(WITHIN_S):
                found.wrong = await run()
        except TimeoutError:
            found.wrong = [f"it was not complete after {WITHIN_S:g} s"]
        except Exception as error:  # noqa: BLE001 - counted
            found.wrong = [f"it failed: {type(error).__name__}: {error}"]
        finally:
            self.device.on_event = ignore
        found.struck = self.struck
        return found

    async def until_struck(self, phase: str) -> Trial:
        """Do the same until the host was killed in that phase, or an answer was wrong."""
        for _ in range(6):
            found = await self.trial(phase)
            if found.struck or found.wrong:
                break
        return found

    # The phases

    async def _loading(self) -> list[str]:
        await self.aclose()
        self.device = self._new_device()
        after_s = self.random.uniform(0.0, 1.0)
        async with self._client("device_only") as (client, witness), anyio.create_task_group() as group:

            async def strike() -> None:
                while self.device.process_id is None:  # noqa: ASYNC110 - another thread starts it
                    await anyio.sleep(0.002)
                await anyio.sleep(after_s)
                if not self.device.capabilities().ready:
                    self.kill()

            group.start_soon(strike)
            wrong = await self._asked(client, witness, self._prompt(2))
            group.cancel_scope.cancel()
        return wrong

    async def _reading(self) -> list[str]:
        await self.revive()
        after_s = self.random.uniform(0.0, 0.4)
        wrong: list[str] = []
        writes = False

        def on_event(event: Event) -> None:
            nonlocal writes
            writes = writes or isinstance(event, list)
            if isinstance(event, Started):
                group.start_soon(strike)

        async def strike() -> None:
            await anyio.sleep(after_s)
            if not writes:
                self.kill()

        self.device.on_event = on_event
        async with anyio.create_task_group() as group, self._client("device_only") as (client, witness):
            wrong += await self._asked(client, witness, self._prompt(60))
        return wrong

    async def _writing(self) -> list[str]:
        await self.revive()
        left = self.random.randrange(1, 25)

        def on_event(event: Event) -> None:
            nonlocal left
            if isinstance(event, list):
                left -= len(event)
                if left <= 0:
                    self.kill()

        self.device.on_event = on_event
        async with self._client("device_only") as (client, witness):
            return await self._asked(client, witness, self._prompt(2))

    async def _parked(self) -> list[str]:
        await self.revive()
        after_s = self.random.uniform(0.0, 0.1)
        wrong: list[str] = []

        def on_event(event: Event) -> None:
            if isinstance(event, Parked):
                group.start_soon(strike)

        async def strike() -> None:
            await anyio.sleep(after_s)
            self.kill()

        self.device.on_event = on_event
        async with anyio.create_task_group() as group, self._client("assist") as (client, witness):
            # Learnt in the client: how fast each of the two is.
            for only in ("device", "server"):
                await client.chat.completions.create(
                    model="smollm2-135m",
                    messages=[{"role": "user", "content": self._prompt(25)}],
                    max_tokens=12,
                    extra_body={"disco": {"endpoint": only}},
                )
            witness.heard.clear()
            self.device.heard.clear()
            wrong += await self._asked(client, witness, self._prompt(25), assist=True)
        return wrong

    async def _drafting(self) -> list[str]:
        await self.revive()
        left = self.random.randrange(2, 20)
        asked: dict[str, Any] = {
            "model": "m",
            "messages": [{"role": "user", "content": self._prompt(2)}],
            "max_tokens": 40,
            "seed": 11,
            "temperature": 0.8,
            "logit_bias": {"0": -100, "2": -100},
            "stream": True,
        }
        preset = {
            "dispatch": {"policy": "server_only"},
            "playback": {"pace_tps": "off"},
            "speculate": {"window": 4, "drafter": "local", "parallel": self.random.randrange(1, 3)},
        }
        texts = {}
        async with AsyncDisco(
            local=self.device,
            base_url=self.verifier,
            api_key=KEY,
            speculate="always",
            preset=preset,
            price=(1.0, 2.0),
            state=False,
            timeouts=PATIENT,
        ) as client:
            await client.warm_up()
            for drafts in (False, True):
                text = ""
                extra = {"disco": {"migrate": False, "speculate": drafts}}
                async with await client.chat.completions.create(**asked, extra_body=extra) as stream:
                    async for chunk in stream:
                        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
                        left -= drafts
                        if drafts and left == 0:
                            self.kill()
                texts[drafts] = text
            route = stream.route
        wrong = [] if texts[True] == texts[False] else ["the text is not that of the server alone"]
        if [(one.endpoint, one.outcome) for one in route.attempts] != [("server", "finished")]:
            wrong.append("the server's answer was not finished")
        return wrong + _of_the_record(route, len(texts[True]))

    # What they share

    async def revive(self) -> None:
        """Wait until the host is there again, and let it write an answer: then the next one comes back soon, too."""
        with anyio.fail_after(WITHIN_S):
            while True:
                try:
                    await self.device.warm_up()
                    break
                except Exception:  # noqa: BLE001 - it is left alone for a while
                    await anyio.sleep(0.05)
        async with AsyncDisco(local=self.device, preset="private", state=False) as client:
            await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "Hi"}], max_tokens=1
            )
        self.device.heard.clear()

    def _prompt(self, sentences: int) -> str:
        """Another one each time, so that nothing of it was read before."""
        text = " ".join(self.random.choice(_SENTENCES) for _ in range(sentences))
        return f"{secrets.token_hex(4)}. {text} Tell me at length about this place."

    @contextlib.asynccontextmanager
    async def _client(self, policy: str) -> AsyncIterator[tuple[AsyncDisco, Witness]]:
        witness = Witness()
        preset: Any = "assist"
        if policy != "assist":
            preset = {"dispatch": {"policy": policy}, "playback": {"pace_tps": "off"}}
        async with AsyncDisco(
            local=self.device,
            base_url=self.server.base_url,
            api_key="none",
            # It runs the device's file, so the file's chat template is the right one.
            continuation=Continuation(method="completions", template=str(self.server.gguf)),
            preset=preset,
            price=(0.15, 0.6),
            state=False,
            timeouts=PATIENT,
            http_client=httpx2.AsyncClient(transport=witness, timeout=None),
        ) as client:
            yield client, witness

    async def _asked(
        self, client: AsyncDisco, witness: Witness, prompt: str, *, assist: bool = False
    ) -> list[str]:
        self.device.heard.clear()
        text = ""
        stream = await client.chat.completions.create(
            model="smollm2-135m",
            messages=[{"role": "user", "content": prompt}],
            max_tokens=120 if assist else 40,
            temperature=0.0,
            stream=True,
        )
        async with stream:
            async for chunk in stream:
                text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        route: RouteRecord = stream.route
        wrong = _of_the_record(route, len(text))
        if (said := complaint(text, route, witness.heard, self.device.heard)) is not None:
            wrong.append(said)
        return wrong + _of_the_charges(route, self.device.heard)


def _of_the_record(route: RouteRecord, characters: int) -> list[str]:
    """Return what is wrong by the record alone."""
    wrong = []
    if not route.seamless:
        wrong.append("the record's checksums differ")
    if route.finish_reason not in ("stop", "length"):
        wrong.append(f"it ended with {route.finish_reason}")
    if not route.segments or route.segments[-1].end_char != characters:
        wrong.append("the segments are not the whole text")
    charges, rates = route.ledger.charges, route.ledger.rates
    for one in charges:
        cost = rates[one.endpoint].cost(one.prompt_tokens, one.completion_tokens, one.cached_tokens)
        if one.policy_cost != cost:
            wrong.append(f"a charge of {one.endpoint} is not its tokens' price")
    if route.policy_cost != math.fsum(one.policy_cost for one in charges):
        wrong.append("the cost is not the sum of the charges")
    return wrong


def _of_the_charges(route: RouteRecord, device: list[Heard]) -> list[str]:
    """Return what is wrong with the tokens that were charged, by what the device was heard to write.

    It may have computed a little more than anybody heard: tokens without text, and those on their way when it died.
    """
    wrong = []
    answered = {
        place: sum(
            one.completion_tokens
            for one in route.ledger.charges
            if one.endpoint == place and one.phase is not Phase.DRAFT
        )
        for place in ("device", "server")
    }
    heard = sum(one.tokens for one in device)
    if not heard <= answered["device"] <= heard + 8:
        wrong.append(f"the device was heard to write {heard} tokens, and {answered['device']} are charged")
    if route.answer_tokens > sum(answered.values()):
        wrong.append(f"{route.answer_tokens} tokens were read, and {answered} are charged")
    return wrong


@contextlib.contextmanager
def verify_server() -> Any:
    """Yield the base URL of a `disco serve --verify` of the same model."""
    options = (
        "--verify",
        "smollm2-135m",
        "--context",
        "512",
        "--threads",
        "1",
        "--preset",
        "private",
        "--slots",
        "2",
    )
    with running(*options, DISCO_SERVER_KEY=KEY) as (_, (host, port)):
        yield f"http://{host}:{port}/v1"
