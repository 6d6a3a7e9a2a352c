"""Drafter and verify server of a replay, driven by the live rounds (`SpeculativeEndpoint`) in virtual time."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from heapq import heappop, heappush
from random import Random
from typing import Any

import anyio
import openai

from disco.endpoints.drafter import Drafted, Drafter, Drafting, DraftOrder
from disco.endpoints.openai_api import OpenAIEndpoint
from disco.endpoints.simulation.simulated_script import prose
from disco.endpoints.speculative import SpeculativeEndpoint
from disco.endpoints.speculative.pairing import Pairing
from disco.events import Traffic, Usage
from disco.replay.pairs import Pair
from disco.replay.pairs.pair_rounds import _Drafter
from disco.replay.pairs.verify_server import Reply, VerifyServer
from disco.replay.stations import Station, StationWorkload
from disco.replay.stations.station import key_of
from disco.speculate.effects import Send
from disco.speculate.messages import Round, Verdict, VerifierFacts


class Verifier:
    """The verify server of a replay on a real event loop: whoever waits for a reply lets time pass in it."""

    def __init__(self, pair: Pair, *, prompt_tokens: int, **server: Any) -> None:
        self.pair, self.prompt_tokens = pair, prompt_tokens
        self.began_at = anyio.current_time()
        self.heap: list[tuple[float, int, Callable[[float], None]]] = []
        self.ties = itertools.count()
        self.replies: dict[int, deque[Reply]] = {}
        self.latest_s = 0.0  # of what has happened: the clock of the loop is rounded otherwise
        self.server = VerifyServer(
            pair, fault=None, rng=Random(0), schedule=self.schedule, send=self.send, **server
        )

    @property
    def now(self) -> float:
        return max(self.latest_s, anyio.current_time() - self.began_at)

    def schedule(self, at_s: float, what: Callable[[float], None]) -> None:
        heappush(self.heap, (at_s, next(self.ties), what))

    def send(self, at_s: float, reply: Any) -> None:
        self.schedule(at_s, lambda _: self.replies.setdefault(reply.verdict.number, deque()).append(reply))

    def catch_up(self) -> None:
        while self.heap and self.heap[0][0] <= self.now + 1e-9:
            self.latest_s, _, what = heappop(self.heap)
            what(self.latest_s)

    async def alone(self, round_: Round) -> AsyncGenerator[Verdict, None]:
        number, is_over = round_.number, False
        asked = Send(number, round_.at, round_.draft, round_.alone)
        arrives_s = self.now + self.pair.round_trip_s / 2
        self.schedule(arrives_s, lambda at_s: self.server.take(asked, at_s))
        replies = self.replies.setdefault(number, deque())
        try:
            while not is_over:
                self.catch_up()
                if not replies:
                    await anyio.sleep_until(self.began_at + self.heap[0][0])
                    continue
                reply = replies.popleft()
                is_over = reply.is_last
                yield self.told(reply.verdict, round_)
        finally:
            if not is_over:
                self.schedule(
                    self.now + self.pair.round_trip_s / 2, lambda at_s: self.server.stop(number, at_s)
                )

    def told(self, verdict: Verdict, round_: Round) -> Verdict:
        texts = prose(512)
        deltas = [{"delta": {"content": texts[token][0].text}, "at": token} for token in verdict.ids]
        return replace(
            verdict,
            deltas=tuple(deltas),
            prompt_tokens=self.prompt_tokens,
            prompt_ids=tuple(range(self.prompt_tokens)) if round_.wants_prompt else None,
        )

    async def round(self, round_: Round) -> Verdict:
        async with aclosing(self.alone(round_)) as verdicts:
            async for verdict in verdicts:
                return verdict
        raise AssertionError("no verdict")

    async def release(self, key: str) -> None:
        await anyio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()

    @property
    def traffic(self) -> Traffic:
        return Traffic()


class PairDrafter(Drafter):
    """The drafter of a replay; `sequences` of the answer that is opened next."""

    vocabulary = None  # type: ignore[assignment]

    def __init__(self, pair: Pair) -> None:
        self.pair, self.name = pair, pair.drafter
        self.sequences: Any = None
        self.rng = Random(0)

    def open(self, *, seed: int, sampling: Mapping[str, Any]) -> Drafting:
        return _Drafting(self.pair, self.sequences, self.rng)


class _Drafting(Drafting):
    def __init__(self, pair: Pair, sequences: Any, rng: Random) -> None:
        self.pair, self.drafter = pair, _Drafter(pair, sequences, rng)
        self.read_tokens = self.drafted = 0
        self.stopped = anyio.Event()
        self.read_from = math.inf

    async def read(self, prompt_ids: Sequence[int]) -> None:
        self.read_from = anyio.current_time()
        await anyio.sleep(self.pair.reads_s(len(prompt_ids)))
        self.read_tokens = len(prompt_ids) if self.pair.reads_prompt else 0

    async def draft(self, order: DraftOrder) -> Drafted:
        began_at, self.stopped = anyio.current_time(), anyio.Event()
        done_at = self.drafter.begin(began_at, order)  # type: ignore[arg-type]  # has the fields of a Draft
        ids: tuple[int, ...] = ()
        try:
            with anyio.move_on_at(done_at):
                await self.stopped.wait()
                self.drafter.stop(anyio.current_time())
        except BaseException:
            self.drafter.stop(anyio.current_time())
            raise
        finally:
            now = anyio.current_time()
            ids, read, ahead = self.drafter.finish(now)
            self.read_tokens += read if self.pair.reads_prompt else 0
            self.drafted += len(ids) + ahead
        return Drafted(order.number, ids, now - began_at)

    def stop(self) -> None:
        self.stopped.set()

    @property
    def usage(self) -> Usage:
        read = self.read_tokens
        if not read and self.pair.reads_prompt and self.read_from < math.inf:
            read = int((anyio.current_time() - self.read_from) * (self.pair.read_tps or 0.0))
        return Usage(read, self.drafted)

    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()


def pair_of(station: Station, column: int) -> Callable[[StationWorkload, int], SpeculativeEndpoint]:
    """Makes the endpoints of a station with a pair, which share what they learn of it."""
    pair = station.pair
    assert pair is not None
    drafts = station.split is None or station.split.draft_s is not None
    drafter = PairDrafter(pair)
    pairing = Pairing(drafter if drafts else None)
    pairing.learn(VerifierFacts("m", "v", 4096, 4, pair.verify.points, fingerprint="f"))

    def made(workload: StationWorkload, row: int) -> SpeculativeEndpoint:
        tokens = int(workload.answers_of(column)[row])
        limit = workload.limit_of(row)
        length = tokens if limit is None else min(tokens, limit)

        def connect(request: Any, reopen: Any) -> Verifier:
            streams = 0, 11, key_of(station.name)  # as `resolve_stations` names them
            drafter.sequences = pair.sequences(row, tokens, streams)
            drafter.rng = Random(f"{streams} {row} 0")
            return Verifier(
                pair,
                prompt_tokens=int(workload.prompt_tokens[row]),
                tokens=length,
                reason="stop" if limit is None or tokens < limit else "length",
                first_s=float(workload.ttft_s[row, column]),
                alone_s=float(workload.tpot_s[row, column]),
            )

        client = openai.AsyncOpenAI(api_key="key", base_url="http://server.invalid/v1")
        return SpeculativeEndpoint(
            OpenAIEndpoint(client=client, name=station.name),
            pairing,
            window=pair.window,
            max_window=pair.max_window,
            parallel=pair.parallel,
            min_gain=pair.min_gain or 0.0,
            always=pair.min_gain is None,
            verifier=connect,
        )

    return made
