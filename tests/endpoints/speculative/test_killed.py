"""A pair with real models in processes of their own, one of which is killed in a phase of a round.

Also answers that lose their slots in mid-answer, and many more answers than slots.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from faults.test_speculate import STAYS, drafts_of, rejected_of
from scripted_device import ScriptedDevice
from server.command_process import KEY, running, signals

from disco import AsyncDisco
from disco.cost import Phase
from disco.endpoints.contract import Endpoint
from disco.endpoints.drafter import Drafted, Drafter, Drafting, DraftOrder
from disco.endpoints.llamacpp import EngineEndpoint
from disco.endpoints.llamacpp.batching.round_limits import Limits
from disco.endpoints.llamacpp.batching.slots import Slots
from disco.endpoints.llamacpp.drafting.llamacpp_drafter import LlamaCppDrafting
from disco.endpoints.speculative.verifier_client import VerifierClient
from disco.events import Usage
from disco.request import Timeouts
from disco.server import serve
from disco.session.records.route_record import RouteRecord

pytestmark = [pytest.mark.anyio, pytest.mark.real, signals]

TOKENS = 28
ASKED = [{"role": "user", "content": "Write the numbers from one to twenty as words, one after the other."}]
PARAMS = {"model": "m", "messages": ASKED, "max_tokens": TOKENS, "seed": 11, "temperature": 0.8}
OF_A_SERVER = ("--verify", "smollm2-135m", "--context", "512", "--threads", "1", "--preset", "private")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@contextlib.contextmanager
def verify_server(slots: int = 2) -> Iterator[tuple[Any, str]]:
    with running(*OF_A_SERVER, "--slots", str(slots), DISCO_SERVER_KEY=KEY) as (process, (host, port)):
        yield process, f"http://{host}:{port}/v1"


@contextlib.asynccontextmanager
async def pair(local: Endpoint, url: str, **windows: Any) -> AsyncIterator[AsyncDisco]:
    preset = {
        "dispatch": {"policy": "server_only"},
        "playback": {"pace_tps": "off"},
        "speculate": {"window": 4, "drafter": "local", **windows},
    }
    given: dict[str, Any] = {"speculate": "always", "preset": preset, "price": (1.0, 2.0)}
    given["timeouts"] = Timeouts(first_content_s=900.0, gap_s=300.0, total_s=900.0)  # the machine may be slow
    async with AsyncDisco(local=local, base_url=url, api_key=KEY, **given) as made:
        await made.warm_up()
        yield made


async def ask(made: AsyncDisco, *, within_s: float = 120, **more: Any) -> Any:
    with anyio.fail_after(within_s):
        return await made.chat.completions.create(**{**PARAMS, "extra_body": STAYS, **more})


def is_whole(answer: Any, tokens: int = TOKENS) -> None:
    """All of it is there, each piece what its writer wrote, and every token is charged to who computed it."""
    route: RouteRecord = answer.route
    text = answer.choices[0].message.content
    assert route.seamless
    assert route.finish_reason in ("stop", "length")
    assert [p.start_char for p in route.segments] == [0, *(p.end_char for p in route.segments[:-1])]
    assert route.segments[-1].end_char == len(text)
    assert route.answer_tokens == answer.usage.completion_tokens
    assert route.answer_tokens == tokens or route.finish_reason == "stop"
    charges, rates = route.ledger.charges, route.ledger.rates
    for one in charges:
        assert one.policy_cost == rates[one.endpoint].cost(
            one.prompt_tokens, one.completion_tokens, one.cached_tokens
        )
    assert route.policy_cost == math.fsum(one.policy_cost for one in charges)
    answered = sum(one.completion_tokens for one in charges if one.phase is Phase.ANSWER)
    assert (
        route.answer_tokens <= answered <= route.answer_tokens + 2
    )  # tokens that end the answer, and without text


class Trigger:
    """Calls `act` once, when a phase of an answer is reached for the first time. Mutable: `done`."""

    def __init__(self, phase: str, act: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
        self.phase, self.act, self.done = phase, act, False
        self.windows = 0
        round_, alone, draft, read = (
            VerifierClient.round,
            VerifierClient.alone,
            LlamaCppDrafting.draft,
            LlamaCppDrafting.read,
        )

        async def watched_round(client: VerifierClient, asked: Any) -> Any:
            self.windows += 1
            last = asked.at + len(asked.draft) + 6 >= TOKENS
            async with anyio.create_task_group() as group:
                if self.windows >= 2:
                    for name, after_s in (("window", 0.0), ("computing", 0.015), ("verdict", 0.045)):
                        group.start_soon(self.later, name, after_s)
                if last:
                    group.start_soon(self.later, "last", 0.0)
                try:
                    return await round_(client, asked)
                finally:
                    group.cancel_scope.cancel()

        async def watched_alone(client: VerifierClient, asked: Any) -> Any:
            count = 0
            if asked.opening is not None:
                self.reached("opening")
            async with contextlib.aclosing(alone(client, asked)) as verdicts:
                async for verdict in verdicts:
                    count += 1
                    if count == 2:
                        self.reached("alone")
                    yield verdict

        async def watched_draft(drafting: LlamaCppDrafting, order: Any) -> Any:
            async with anyio.create_task_group() as group:
                if self.windows >= 1:
                    group.start_soon(self.later, "draft", 0.01)
                try:
                    return await draft(drafting, order)
                finally:
                    group.cancel_scope.cancel()

        async def watched_read(drafting: LlamaCppDrafting, ids: Any) -> Any:
            async with anyio.create_task_group() as group:
                group.start_soon(self.later, "reading", 0.01)
                try:
                    return await read(drafting, ids)
                finally:
                    group.cancel_scope.cancel()

        patch.setattr(VerifierClient, "round", _bare(watched_round))
        patch.setattr(VerifierClient, "alone", watched_alone)
        patch.setattr(LlamaCppDrafting, "draft", _bare(watched_draft))
        patch.setattr(LlamaCppDrafting, "read", _bare(watched_read))

    async def later(self, phase: str, after_s: float) -> None:
        if phase == self.phase:
            await anyio.sleep(after_s)
            self.reached(phase)

    def reached(self, phase: str) -> None:
        if phase == self.phase and not self.done:
            self.done = True
            self.act()


async def ask_until(trigger: Trigger, made: AsyncDisco) -> Any:
    """Return the answer in which the phase was reached.

    On a busy machine the server may have written an answer before the drafter has read its prompt; the next time it has
    most of it.
    """
    for _ in range(6):
        answer = await ask(made)
        if trigger.done:
            return answer
    raise AssertionError(f"no answer came to the phase {trigger.phase!r}")


def _bare(call: Callable[..., Any]) -> Callable[..., Any]:
    """Raise the only exception of a group as itself."""

    async def called(*args: Any) -> Any:
        try:
            return await call(*args)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    return called


async def after_a_killed_server(
    local: Endpoint, phase: str, parallel: int, patch: pytest.MonkeyPatch
) -> None:
    with verify_server() as (process, url):
        async with pair(local, url, parallel=parallel) as made:
            trigger = Trigger(phase, process.kill, patch)
            trigger.reached("before")
            if trigger.done:
                process.wait()
            answer = await ask_until(trigger, made)
    is_whole(answer)
    tries = [(one.endpoint, one.outcome) for one in answer.route.attempts]
    if tries != [("server", "finished")]:  # where the verdict of the last round had left
        assert tries == [("server", "failed"), ("device", "finished")]
        assert answer.route.attempts[0].failure == "connection"
    else:
        assert phase in ("verdict", "last")


async def after_a_killed_drafter(
    local: Any, url: str, expected: Any, phase: str, parallel: int, patch: pytest.MonkeyPatch
) -> None:
    with anyio.fail_after(60):
        while not local.capabilities().ready:  # noqa: ASYNC110 - another thread brings it back
            await anyio.sleep(0.01)
    process = local.process_id
    async with pair(local, url, parallel=parallel) as made:
        trigger = Trigger(phase, lambda: os.kill(process, signal.SIGKILL), patch)
        trigger.reached("before")
        answer = await ask_until(trigger, made)
        with anyio.fail_after(60):
            while local.process_id == process:  # noqa: ASYNC110 - its death is noticed in another thread
                await anyio.sleep(0.01)
    is_whole(answer)
    ((endpoint, failure),) = [(one.endpoint, one.failure) for one in answer.route.attempts]
    assert (endpoint, failure) == ("server", None)
    assert answer.choices[0].message.content == expected.choices[0].message.content
    report = answer.route.attempts[0].speculation
    assert drafts_of(answer.route)[1] >= report.drafted
    assert rejected_of(answer.route) == report.rejected


@pytest.mark.slow
async def test_first_the_drafter_is_killed_and_then_the_server(thread_model, engine_host, monkeypatch):
    with verify_server() as (process, url):
        async with pair(thread_model, url) as made:
            plain = await ask(made, extra_body={"disco": {"migrate": False, "speculate": False}})
        is_whole(plain)
        with monkeypatch.context() as patch:
            await after_a_killed_drafter(engine_host, url, plain, "draft", 2, patch)
        async with pair(thread_model, url, parallel=2) as made:
            trigger = Trigger("window", process.kill, monkeypatch)
            answer = await ask_until(trigger, made)
    is_whole(answer)
    assert [one.endpoint for one in answer.route.attempts] == ["server", "device"]


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize(
    "phase", ["before", "opening", "alone", "reading", "draft", "window", "computing", "verdict", "last"]
)
async def test_the_server_is_killed_in_each_phase(phase, parallel, thread_model, monkeypatch):
    await after_a_killed_server(thread_model, phase, parallel, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("parallel", [1, 2])
async def test_the_drafter_is_killed_in_each_phase(parallel, thread_model, engine_host):
    with verify_server() as (_, url):
        async with pair(thread_model, url) as made:
            plain = await ask(made, extra_body={"disco": {"migrate": False, "speculate": False}})
        for phase in ("before", "opening", "reading", "alone", "draft", "window", "verdict", "last"):
            with pytest.MonkeyPatch.context() as patch:
                await after_a_killed_drafter(engine_host, url, plain, phase, parallel, patch)


class Pausing(Drafter):
    """Guesses the same token all the time, and thinks so long that the answer's slot is wanted elsewhere meanwhile."""

    name = "device"
    vocabulary = None

    def __init__(self, pause_s: float) -> None:
        self.pause_s = pause_s

    def open(self, *, seed: int, sampling: Any) -> Drafting:
        return _Paused(self.pause_s)


class _Paused(Drafting):
    usage = Usage()

    def __init__(self, pause_s: float) -> None:
        self.pause_s = pause_s

    async def read(self, prompt_ids: Any) -> None:
        await anyio.lowlevel.checkpoint()

    async def draft(self, order: DraftOrder) -> Drafted:
        await anyio.sleep(self.pause_s)
        return Drafted(order.number, (1,) * order.count, self.pause_s)

    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()


class Thinking(ScriptedDevice):
    """A device that only drafts."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(lambda _prefix: [])
        self.guesses = drafter

    def drafter(self) -> Drafter:
        return self.guesses


@contextlib.asynccontextmanager
async def served_here(local: EngineEndpoint) -> AsyncIterator[str]:
    """A verify server in this process."""
    ready: list[str] = []
    async with (
        AsyncDisco(local=local, preset="private") as own,
        anyio.create_task_group() as group,
    ):
        group.start_soon(partial(serve, own, port=0, key=KEY, verifier=local.engine, on_ready=ready.append))
        with anyio.fail_after(60):
            while not ready:  # noqa: ASYNC110 - it calls back
                await anyio.sleep(0.01)
        try:
            yield ready[0]
        finally:
            group.cancel_scope.cancel()


@pytest.mark.slow
async def test_answers_that_lose_their_slot_in_mid_answer_are_the_same(monkeypatch):
    lost, take, count = [], Slots.take, 4

    def watched(slots: Slots, wants: Any, ids: Any, now: float) -> Any:
        before = [one.holder for one in slots.all]
        slot = take(slots, wants, ids, now)
        holder = None if slot is None else before[slot.number]
        if holder is not None and holder.length > len(holder.prompt):
            lost.append(holder)
        return slot

    monkeypatch.setattr(Slots, "take", watched)
    local = EngineEndpoint(name="engine", slots=2, context_tokens=256, threads=1, limits=Limits(hold_s=0.01))
    found: dict[tuple[int, bool], Any] = {}
    async with served_here(local) as url, pair(Thinking(Pausing(0.1)), url) as made:

        async def answer(number: int, *, drafted: bool) -> None:
            asked = [{"role": "user", "content": f"Write the number {number} as a word, ten times."}]
            extra = {"disco": {"migrate": False, "speculate": drafted}}
            limits = {"max_tokens": 24, "logit_bias": {"0": -100, "2": -100}}
            found[number, drafted] = await ask(made, messages=asked, extra_body=extra, **limits)

        for number in range(count):
            await answer(number, drafted=False)
        lost.clear()
        async with anyio.create_task_group() as group:
            for number in range(count):
                group.start_soon(partial(answer, number, drafted=True))
    assert len(lost) >= count / 2  # in mid-answer
    for number in range(count):
        drafted, plain = found[number, True], found[number, False]
        is_whole(drafted, 24)
        assert drafted.choices[0].message.content == plain.choices[0].message.content
        assert drafted.usage.completion_tokens == plain.usage.completion_tokens == 24
        (attempt,) = drafted.route.attempts
        assert attempt.failure is None
    assert (
        sum(found[n, True].route.attempts[0].speculation.distributed_tokens for n in range(count)) > 4 * count
    )


@pytest.mark.slow
async def test_200_answers_at_once_over_8_slots(thread_model):
    found: dict[int, Any] = {}
    with verify_server(slots=8) as (_, url):
        async with pair(thread_model, url, drafter="ngram", parallel=2) as made:

            async def answer(number: int, **more: Any) -> None:
                asked = [{"role": "user", "content": f"Say the number {number}, then its double."}]
                given = {"max_tokens": 16, "seed": number, "messages": asked, **more}
                found[number + 1000 * bool(more)] = await ask(made, within_s=900, **given)

            async with anyio.create_task_group() as group:
                for number in range(200):
                    group.start_soon(answer, number)
            plain = {"disco": {"migrate": False, "speculate": False}}
            for number in range(0, 200, 20):
                await answer(number, extra_body=plain)
    for number in range(200):
        is_whole(found[number], 16)
        assert [one.outcome for one in found[number].route.attempts] == ["finished"]
    same = [
        found[number].choices[0].message.content == found[number + 1000].choices[0].message.content
        for number in range(0, 200, 20)
    ]
    assert same.count(True) >= 9  # a Q4 model may flip a near-tie beside others
