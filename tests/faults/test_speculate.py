"""A pair of drafter and verify server, where one of them dies, in every phase of a round: whole answers, exact ledgers.

Here the server and the drafter are scripts, on real connections; `tests/endpoints/speculative/test_killed.py` kills
real ones.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from endpoints.speculative.made_pair import TARGET, SlowDrafter
from endpoints.speculative.test_clients import Device, ask, client, preset
from endpoints.speculative.verify_server import SPOKEN, VerifyServer

from disco.cost import Phase
from disco.endpoints.drafter import Drafted, Drafting, DraftOrder
from disco.endpoints.llamacpp.batching.round_limits import Limits
from disco.endpoints.llamacpp.batching.slots import Slots
from disco.errors import EndpointFailure, FailureKind
from disco.events import Usage
from disco.session.records.route_record import RouteRecord
from disco.speculate.estimates import Estimates
from disco.speculate.messages import Round
from tests.endpoints.llamacpp.batching.fakes import Bench, FakeModel, whole_answer

pytestmark = [pytest.mark.anyio, pytest.mark.real]

STAYS = {"disco": {"migrate": False}}
PHASES = ("before", "prompt", "alone", "line", "draft", "sent", "verdict", "last")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # of the server


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft is late behind half a second, not 20 ms: the machine may do something else meanwhile."""
    usual = Estimates.patience_s
    monkeypatch.setattr(
        Estimates, "patience_s", lambda self, tokens, read: max(0.5, usual(self, tokens, read))
    )


@pytest.fixture(params=[1, 2])
def parallel(request: pytest.FixtureRequest) -> int:
    return request.param


@dataclass
class FaultyServer(VerifyServer):
    """Breaks off in a phase: one connection, or with `dies` all of them, for good. Mutable: `windows`, `broken`."""

    phase: str = ""
    dies: bool = True
    windows: int = 0
    broken: bool = False

    async def round(self, writer: asyncio.StreamWriter, round_: Round) -> None:
        self.windows += bool(round_.draft)
        last = round_.at + len(round_.draft) + 1 >= len(TARGET)
        meets = {
            "prompt": round_.opening is not None,
            "line": bool(round_.alone),
            "sent": self.windows == 3,
            "verdict": self.windows == 3,
            "last": bool(round_.draft) and last,
        }
        if self.broken or not meets.get(self.phase):
            await super().round(writer, round_)
        elif self.phase in ("line", "verdict"):
            await super().round(Cut(self, writer, 4 if round_.alone else 0), round_)  # type: ignore[arg-type]
        else:
            await asyncio.sleep(0.003)
            self.break_off(writer)

    def break_off(self, writer: Any) -> None:
        self.broken = True
        if self.dies:
            self.die()
        else:
            writer.transport.abort()


class Cut:
    """Writes half of a reply, behind so many whole writes. Mutable: `left`."""

    def __init__(self, server: FaultyServer, writer: asyncio.StreamWriter, whole: int) -> None:
        self.server, self.writer, self.left = server, writer, whole

    def write(self, data: bytes) -> None:
        if self.left < 0:
            return
        self.left -= 1
        if self.left >= 0:
            self.writer.write(data)
            return
        self.writer.write(data[: len(data) // 2])
        self.server.break_off(self.writer)

    async def drain(self) -> None:
        await asyncio.sleep(0)

    def is_closing(self) -> bool:
        return self.writer.is_closing()


@dataclass
class CountedDrafter(SlowDrafter):
    """Remembers its draftings, fails in a phase, and calls `on_draft` with the number of each draft. Mutable."""

    fails: str = ""
    on_draft: Any = None
    draftings: list[Drafting] = field(default_factory=list)

    def open(self, *, seed: int, sampling: Mapping[str, Any]) -> Drafting:
        if self.fails == "open":
            raise RuntimeError("no drafter")
        inner = super().open(seed=seed, sampling=sampling)
        self.draftings.append(inner)
        return _Counted(inner, self)

    @property
    def usage(self) -> tuple[int, int]:
        """Tokens read and drafted."""
        used = [one.usage for one in self.draftings]
        return sum(one.prompt_tokens for one in used), sum(one.completion_tokens for one in used)


class _Counted(Drafting):
    def __init__(self, inner: Drafting, of: CountedDrafter) -> None:
        self.inner, self.of, self.number = inner, of, 0

    async def read(self, prompt_ids: Any) -> None:
        if self.of.fails == "hangs in reading":
            await asyncio.sleep(3600)
        await self.inner.read(prompt_ids)

    async def draft(self, order: DraftOrder) -> Drafted:
        self.number += 1
        if self.of.on_draft is not None:
            self.of.on_draft(self.number)
        if self.of.fails == "hangs" and self.number == 3:
            await asyncio.sleep(3600)
        last = order.keep + len(order.append) + order.count + 1 >= len(TARGET)
        if self.of.fails == "last" and last:
            raise EndpointFailure(FailureKind.CRASHED, RuntimeError())
        drafted = await self.inner.draft(order)
        if self.of.fails == "behind":  # it was drafted, and the reply is lost
            raise EndpointFailure(FailureKind.CRASHED, RuntimeError())
        return drafted

    def stop(self) -> None:
        self.inner.stop()

    @property
    def usage(self) -> Usage:
        return self.inner.usage

    async def aclose(self) -> None:
        await self.inner.aclose()


def is_exact(route: RouteRecord) -> None:
    """Every charge is its tokens at its endpoint's rates, each attempt has its own, and the sums are theirs."""
    charges, rates = route.ledger.charges, route.ledger.rates
    for one in charges:
        assert one.policy_cost == rates[one.endpoint].cost(
            one.prompt_tokens, one.completion_tokens, one.cached_tokens
        )
    assert (
        route.policy_cost
        == route.ledger.totals().policy_cost
        == math.fsum(one.policy_cost for one in charges)
    )
    for number, attempt in enumerate(route.attempts):
        own = [one.policy_cost for one in charges if one.attempt == number]
        assert attempt.policy_cost == pytest.approx(math.fsum(own), rel=1e-12)
    assert sum(one.completion_tokens for one in charges if one.phase is Phase.ANSWER) >= len(TARGET)


def drafts_of(route: RouteRecord) -> tuple[int, int]:
    """Tokens that the device is charged for as a drafter: read and drafted."""
    own = [one for one in route.ledger.charges if (one.endpoint, one.phase) == ("device", Phase.DRAFT)]
    return sum(one.prompt_tokens for one in own), sum(one.completion_tokens for one in own)


def rejected_of(route: RouteRecord) -> int:
    """Tokens that the server is charged for because they were drafted wrongly."""
    own = [one for one in route.ledger.charges if (one.endpoint, one.phase) == ("server", Phase.DRAFT)]
    return sum(one.completion_tokens for one in own)


async def started(served: FaultyServer) -> FaultyServer:
    served.server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    served.port = served.server.sockets[0].getsockname()[1]
    return served


async def ended(served: FaultyServer, drafter: CountedDrafter) -> None:
    """Nothing is left of an answer."""
    assert drafter.open_ones == 0
    async with asyncio.timeout(5):
        while served.open:  # noqa: ASYNC110 - it notices with its next step
            await asyncio.sleep(0.001)
    served.die()


def pair(served: FaultyServer, drafter: CountedDrafter, parallel: int) -> Any:
    windows = {"window": 4, "parallel": parallel}
    return client(served, Device(drafter), preset=preset(speculate=windows))


def quick(**more: Any) -> CountedDrafter:
    return CountedDrafter(token_s=0.0005, read_s=0.005, wrong=frozenset(range(5, 60, 11)), **more)


@pytest.mark.parametrize("phase", PHASES)
async def test_the_server_dies_in_a_phase_and_the_device_goes_on(phase, parallel):
    served, drafter = await started(FaultyServer(phase=phase)), quick()
    async with pair(served, drafter, parallel) as made:
        await made.warm_up()
        if phase == "before":
            served.die()
        elif phase == "alone":
            served.dies_after = 3
        elif phase == "draft":
            drafter.on_draft = lambda number: served.die() if number == 4 else None
        text, route = await ask(made, extra_body=STAYS)
    assert text == SPOKEN
    assert route.seamless
    assert [(one.endpoint, one.outcome) for one in route.attempts] == [
        ("server", "failed"),
        ("device", "finished"),
    ]
    died = route.attempts[0]
    assert died.failure == "connection"
    assert (died.tokens > 0) == (phase not in ("before", "prompt"))
    is_exact(route)
    assert drafts_of(route) == drafter.usage
    if phase in ("before", "prompt"):
        assert drafter.usage == (0, 0)
    assert (drafter.usage[1] > 8) == (phase in ("draft", "sent", "verdict", "last"))
    assert rejected_of(route) <= served.rejected
    await ended(served, drafter)


@pytest.mark.parametrize("phase", ["line", "sent", "verdict", "last"])
async def test_a_connection_that_is_lost_costs_a_round_and_nothing_else(phase, parallel):
    served, drafter = await started(FaultyServer(phase=phase, dies=False)), quick()
    async with pair(served, drafter, parallel) as made:
        await made.warm_up()
        text, route = await ask(made, extra_body=STAYS)
    assert served.broken
    assert text == SPOKEN
    ((endpoint, failure),) = [(one.endpoint, one.failure) for one in route.attempts]
    assert (endpoint, failure, route.seamless) == ("server", None, True)
    is_exact(route)
    assert drafts_of(route) == drafter.usage
    assert rejected_of(route) == served.rejected
    await ended(served, drafter)


@pytest.mark.parametrize(
    "fails", ["open", "reading", "hangs in reading", "first", "third", "behind", "hangs", "last"]
)
async def test_the_drafter_fails_in_a_phase_and_nobody_notices(fails, parallel):
    numbers = {"reading": 0, "first": 1, "third": 3}
    served = await started(FaultyServer())
    drafter = quick(fails=fails, dies_at=numbers.get(fails))
    async with pair(served, drafter, parallel) as made:
        await made.warm_up()
        text, route = await ask(made, extra_body=STAYS)
    assert text == SPOKEN
    ((endpoint, failure),) = [(one.endpoint, one.failure) for one in route.attempts]
    assert (endpoint, failure, route.seamless) == ("server", None, True)
    is_exact(route)
    assert drafts_of(route) == drafter.usage
    assert rejected_of(route) == served.rejected
    report = route.attempts[0].speculation
    assert report.distributed_tokens + report.alone_tokens == len(TARGET)
    assert (report.distributed_tokens > 0) == (fails in ("third", "hangs", "last"))
    await ended(served, drafter)


@pytest.mark.parametrize("count", [30, pytest.param(200, marks=pytest.mark.slow)])
async def test_many_answers_at_once_whose_server_dies_are_all_whole(count):
    served = await started(FaultyServer())
    drafter = quick()
    async with pair(served, drafter, 2) as made:
        await made.warm_up()
        served.dies_after = 15 * count
        found = await asyncio.gather(*(ask(made, extra_body=STAYS) for _ in range(count)))
    assert [text for text, _ in found] == [SPOKEN] * count
    assert {len(route.attempts) for _, route in found} == {2}
    for _, route in found:
        assert route.seamless
        is_exact(route)
    served.die()


def test_200_answers_over_8_slots_which_they_lose_in_mid_answer_are_those_of_the_model_alone(monkeypatch):
    """The real scheduler with a model whose next token depends on what its caches hold."""
    lost, take = [], Slots.take

    def watched(slots: Slots, holder: Any, ids: Any, now: float) -> Any:
        before = [one.holder for one in slots.all]
        slot = take(slots, holder, ids, now)
        if slot is not None and before[slot.number] is not None:
            lost.append(before[slot.number])
        return slot

    monkeypatch.setattr(Slots, "take", watched)
    bench, rng, limit = Bench(FakeModel(slots=8), Limits(hold_s=1.0)), Random(5), 12
    prompts = [[1 + (key * 7 + place) % 40 for place in range(5 + key % 9)] for key in range(200)]
    expected = [whole_answer(prompt, limit) for prompt in prompts]
    written: list[list[int]] = [[] for _ in prompts]
    rounds, ends = [0] * 200, [""] * 200
    under_way: dict[int, Any] = {}
    while not all(ends):
        for key, prompt in enumerate(prompts):
            if not ends[key] and key not in under_way and rng.random() < 0.5:
                at = len(written[key])
                right = expected[key][0][at : at + 3]
                draft = [token if rng.random() < 0.7 else 1 + token % 40 for token in right]
                opening = prompt if rounds[key] == 0 else None
                asked = bench.ask(key, rounds[key], at, draft, prompt=opening, limit=limit, run=False)
                under_way[key] = asked
                rounds[key] += 1
        bench.wait(0.6)
        for key, asked in list(under_way.items()):
            if asked.reply.closed:
                (verdict,) = asked.reply.items
                assert verdict.at == len(written[key])
                written[key] += verdict.ids
                ends[key] = verdict.finish_reason or ""
                assert verdict.completion_tokens == len(written[key])
                del under_way[key]
    assert [(ids, end) for ids, end in zip(written, ends, strict=True)] == expected
    in_mid_answer = [one for one in lost if one.length > len(one.prompt)]
    assert len(in_mid_answer) > 100
    assert bench.scheduler.slots.held == 0
