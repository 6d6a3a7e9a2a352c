"""A drafter and a verify server in memory, which take time; and an attempt of the two."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import anyio
import openai
from speculate.made_verifier import MadeVerifier, text_of

from disco.endpoints.drafter import Drafted, Drafter, Drafting, DraftOrder
from disco.endpoints.openai_api import OpenAIEndpoint
from disco.endpoints.speculative import SpeculativeEndpoint
from disco.endpoints.speculative.pairing import Pairing
from disco.errors import EndpointFailure, FailureKind
from disco.events import Traffic, Usage
from disco.request import Request
from disco.speculate.effects import Send
from disco.speculate.messages import Opening, Round, Verdict, VerifierFacts

PROMPT = tuple(range(900, 950))
TARGET = tuple((7 * i * i + i) % 251 for i in range(60))
FACTS = VerifierFacts("target", "vocab", 4096, 4, ((1, 0.020), (2, 0.021), (9, 0.030)), fingerprint="f1")
REQUEST = Request([{"role": "user", "content": "Tell me."}], "target", {"temperature": 0.8, "seed": 7})
ANSWER = text_of(TARGET)
LOST = EndpointFailure(FailureKind.CONNECTION, openai.APIConnectionError(request=None))  # type: ignore[arg-type]


@dataclass
class SlowVerifier:
    """Follows the rules of a verify server over `target`, on a network with a round trip.

    Mutable: what it counts; `dies_at`, a number of replies after which it is gone (None: never); `loses`, numbers of
    replies that are lost.
    """

    target: Sequence[int] = TARGET
    reason: str = "stop"
    round_trip_s: float = 0.010
    token_s: float = 0.020
    dies_at: int | None = None
    loses: frozenset[int] = frozenset()
    forgets: frozenset[int] = frozenset()  # numbers of replies before which it loses the answer
    release_s: float = 0.1
    released: int = 0
    opening: Opening | None = None
    closed: int = 0
    open: int = 0  # rounds that are being answered
    asked: list[Round] = field(default_factory=list)
    rows: int = 0
    replies: int = 0
    rejected: int = 0
    answer: MadeVerifier | None = None
    reopen: Callable[[], Opening] | None = None

    @property
    def is_dead(self) -> bool:
        return self.dies_at is not None and self.replies >= self.dies_at

    async def round(self, round_: Round) -> Verdict:
        async with aclosing(self.alone(round_)) as verdicts:
            async for verdict in verdicts:
                return verdict
        raise AssertionError("no verdict")

    async def alone(self, round_: Round) -> AsyncGenerator[Verdict, None]:
        self.asked.append(round_)
        self.open += 1
        try:
            await anyio.sleep(self.round_trip_s / 2)
            if self.is_dead:
                raise LOST
            answer = self._answer(round_)
            send = Send(round_.number, round_.at, round_.draft, round_.alone)
            while (lines := answer.replies(send)) is None:  # noqa: ASYNC110 - virtual time
                await anyio.sleep(0.001)
            for verdict in lines:
                judged = len(round_.draft) if verdict.at == round_.at else 0
                wrong = max(0, judged - max(0, len(verdict.ids) - 1)) if verdict.rows else 0
                self.rejected += wrong
                rows = len(verdict.ids) + wrong
                self.rows += rows
                await anyio.sleep(self.token_s + 0.001 * rows)
                if self.is_dead:
                    raise LOST
                self.replies += 1
                if self.replies in self.loses:
                    raise LOST
                await anyio.sleep(self.round_trip_s / 2 if not round_.alone else 0)
                yield replace(
                    verdict,
                    prompt_tokens=len(PROMPT),
                    completion_tokens=answer.length,
                    rejected_tokens=self.rejected,
                    prompt_ids=PROMPT if round_.wants_prompt else None,
                    compute_s=self.token_s,
                    deltas=tuple(
                        {**one, "ids": [self.target[one["at"]]] if one["tokens"] == 1 else None}
                        for one in verdict.deltas
                    ),
                )
        finally:
            self.open -= 1

    def _answer(self, round_: Round) -> MadeVerifier:
        if self.answer is None:
            assert round_.opening is not None
            self.opening = round_.opening
            self.answer = MadeVerifier(self.target, self.reason)
        return self.answer

    async def release(self, key: str) -> None:
        await anyio.sleep(self.release_s)
        assert self.asked[0].key == key
        self.released += 1

    async def aclose(self) -> None:
        self.closed += 1

    @property
    def traffic(self) -> Traffic:
        return Traffic(100 * len(self.asked), 200 * self.replies)


@dataclass
class SlowDrafter(Drafter):
    """Guesses `target`, wrongly at the positions in `wrong`, in 5 ms a token. Mutable: `open_ones`, `drafts`."""

    target: Sequence[int] = TARGET
    wrong: frozenset[int] = frozenset()
    vocabulary: str | None = "vocab"  # type: ignore[assignment]
    read_s: float = 0.05
    token_s: float = 0.005
    dies_at: int | None = None  # a number of drafts; 0: it cannot read
    hangs: bool = False
    name: str = "device"
    open_ones: int = 0
    opens: int = 0
    busy: bool = False  # with other requests; drafting would now displace theirs
    drafts: int = 0

    def open(self, *, seed: int, sampling: Mapping[str, Any]) -> Drafting:
        assert seed == 7
        assert sampling["temperature"] == 0.8
        self.open_ones += 1
        self.opens += 1
        return _SlowDrafting(self)


class _SlowDrafting(Drafting):
    def __init__(self, of: SlowDrafter) -> None:
        self.of = of
        self.sequence: list[int] = []
        self.read_tokens = self.drafted = 0
        self.broken_off = anyio.Event()
        self.is_open = True

    async def read(self, prompt_ids: Sequence[int]) -> None:
        assert tuple(prompt_ids) == PROMPT
        await anyio.sleep(self.of.read_s)
        if self.of.dies_at == 0:
            raise EndpointFailure(FailureKind.CRASHED, RuntimeError())
        self.read_tokens = len(prompt_ids)

    async def draft(self, order: DraftOrder) -> Drafted:
        of = self.of
        of.drafts += 1
        assert order.keep <= len(self.sequence)
        self.sequence = [*self.sequence[: order.keep], *order.append]
        self.read_tokens += len(order.append)
        if of.hangs:
            await anyio.sleep_forever()
        if of.dies_at is not None and of.drafts >= of.dies_at:
            raise EndpointFailure(FailureKind.CRASHED, RuntimeError())
        ids: list[int] = []
        self.broken_off = anyio.Event()
        while len(ids) < order.count and (at := len(self.sequence)) < len(of.target):
            with anyio.move_on_after(of.token_s):
                await self.broken_off.wait()
                break
            token = of.target[at] + (1000 if at in of.wrong else 0)
            ids.append(token)
            self.sequence.append(token)
        self.drafted += len(ids)
        return Drafted(order.number, tuple(ids), of.token_s * len(ids), len(order.append))

    def stop(self) -> None:
        self.broken_off.set()

    @property
    def busy(self) -> bool:
        return self.of.busy

    @property
    def usage(self) -> Usage:
        return Usage(self.read_tokens, self.drafted)

    async def aclose(self) -> None:
        if self.is_open:
            self.is_open = False
            self.of.open_ones -= 1


class Pair:
    """An endpoint of the two; `facts` None: it is not known that the server verifies."""

    def __init__(
        self,
        verifier: SlowVerifier | None = None,
        drafter: Drafter | None = None,
        *,
        facts: VerifierFacts | None = FACTS,
        server: OpenAIEndpoint | None = None,
        **settings: Any,
    ) -> None:
        self.verifier = verifier or SlowVerifier()
        self.drafter = SlowDrafter() if drafter is None else drafter
        self.server = server or OpenAIEndpoint(
            client=openai.AsyncOpenAI(api_key="key", base_url="http://server.invalid/v1")
        )
        self.pairing = Pairing(self.drafter)
        self.pairing.learn(facts)
        self.settings = {"always": True, "window": 4, "parallel": 1, **settings}

    def endpoint(self) -> SpeculativeEndpoint:
        def connect(request: Request, reopen: Callable[[], Opening]) -> SlowVerifier:
            self.verifier.reopen = reopen
            return self.verifier

        return SpeculativeEndpoint(self.server, self.pairing, verifier=connect, **self.settings)

    async def aclose(self) -> None:
        await self.pairing.aclose()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is open of either."""
        return not self.verifier.open and not getattr(self.drafter, "open_ones", 0)


def are_successive(numbers: Sequence[int]) -> bool:
    return all(a < b for a, b in pairwise(numbers))
