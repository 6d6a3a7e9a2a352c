"""What the formula of a round needs, measured: medians of one cell of the table, and what follows from them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from pair_lab import Carried, Watch
from papers.fleet.fleet_simulator import simulate_fleet
from papers.fleet.fleet_toml import scenario_from

from disco.endpoints.drafter import Drafted, Drafter, Drafting, DraftOrder
from disco.events import Progress, Usage
from disco.replay.pairs.draft_trace import DraftedRequest
from disco.speculate.predict import token_s
from disco.speculate.seen import Seen, VerifyCurve

__all__ = ["Span", "Terms", "WatchedDrafter", "simulated_s", "span_of"]

_PAUSE = 3.0  # a draft that took so many times the median was interrupted by another process


class WatchedDrafter(Drafter):
    """A drafter whose drafts are timed. Mutable: `drafts`, (ordered, drafted, seconds, when it ended)."""

    def __init__(self, inner: Drafter) -> None:
        self.name = inner.name
        self._inner = inner
        self.drafts: list[tuple[int, int, float, float]] = []

    @property
    def vocabulary(self) -> str | None:
        return self._inner.vocabulary

    @property
    def ready(self) -> bool:
        return self._inner.ready

    async def warm_up(self) -> None:
        await self._inner.warm_up()

    def open(self, *, seed: int, sampling: Mapping[str, Any]) -> Drafting:
        return _WatchedDrafting(self._inner.open(seed=seed, sampling=sampling), self.drafts)


class _WatchedDrafting(Drafting):
    def __init__(self, inner: Drafting, drafts: list[tuple[int, int, float, float]]) -> None:
        self._inner, self._drafts = inner, drafts

    async def read(self, prompt_ids: Sequence[int]) -> None:
        await self._inner.read(prompt_ids)

    async def draft(self, order: DraftOrder) -> Drafted:
        drafted = await self._inner.draft(order)
        self._drafts.append((order.count, len(drafted.ids), drafted.took_s, time.perf_counter()))
        return drafted

    def stop(self) -> None:
        self._inner.stop()

    @property
    def busy(self) -> bool:
        return self._inner.busy

    @property
    def progress(self) -> Progress | None:
        return self._inner.progress

    @property
    def usage(self) -> Usage:
        return self._inner.usage

    async def aclose(self) -> None:
        await self._inner.aclose()


@dataclass(frozen=True)
class Span:
    """The part of an answer that was written by windows of full size: positions, and seconds."""

    first: int
    last: int
    took_s: float

    @property
    def token_s(self) -> float:
        return self.took_s / (self.last - self.first)


def span_of(watch: Watch, least: int) -> Span | None:
    """From the first verdict on a window to the last one of at least so many tokens; None where there are not two.

    Where the answer fell back to the target alone in between, the longest part without it counts.
    """
    parts: list[list[tuple[float, int, int]]] = [[]]  # (when, length, drafted)
    length = 0
    for one in sorted(watch.carried, key=lambda one: one.came_s):
        length = max(length, one.verdict.at + len(one.verdict.ids))
        if one.alone:
            parts.append([])
        else:
            parts[-1].append((one.came_s, length, one.drafted))
    best: Span | None = None
    for part in parts:
        full = [n for n, (_, _, drafted) in enumerate(part) if drafted >= least]
        if full and full[-1] > 0:
            (began, first, _), (ended, last, _) = part[0], part[full[-1]]
            if last > first and (best is None or last - first > best.last - best.first):
                best = Span(first, last, ended - began)
    return best


@dataclass
class Terms:
    """Measurements of one cell. Mutable: they grow with each answer."""

    drafts: list[float] = field(default_factory=list)  # s per token
    wires: list[float] = field(default_factory=list)
    queues: list[float] = field(default_factory=list)
    batches: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    judged: int = 0
    accepted: int = 0

    def add(
        self,
        carried: Sequence[Carried],
        drafts: Sequence[tuple[int, int, float, float]],
        window: int,
        least: int,
    ) -> None:
        """Add what one answer showed; for times only drafts of full size count, and windows of at least `least`.

        Drafts before the first verdict on a window do not count: shadows are made while the target computes.
        """
        began_s = min((one.came_s for one in carried if not one.alone), default=float("inf"))
        self.drafts += [
            took_s / made
            for asked, made, took_s, ended_s in drafts
            if made == asked == window and ended_s > began_s
        ]
        for one in carried:
            verdict = one.verdict
            if one.alone or not verdict.ids:
                continue
            self.judged += verdict.judged
            self.accepted += verdict.accepted
            if one.drafted >= least and verdict.rows:
                self.wires.append(one.wire_s)
                self.queues.append(verdict.queue_s)
                self.batches[verdict.rows].append(verdict.compute_s)

    @property
    def draft_s(self) -> float:
        """The mean, without drafts that were interrupted: behind a window that was all right one token more is read."""
        usual = median(self.drafts)
        return fmean(one for one in self.drafts if one < _PAUSE * usual)

    @property
    def round_trip_s(self) -> float:
        return max(0.0, median(self.wires))

    def seen(self, acceptance: float, *, parallel: int) -> Seen:
        """What the formula takes. In parallel, windows of one answer wait for each other: the formula knows that."""
        points = [(rows, median(seconds)) for rows, seconds in self.batches.items()]
        return Seen(
            acceptance=acceptance,
            draft_s=self.draft_s,
            round_trip_s=self.round_trip_s,
            queue_s=median(self.queues) if parallel == 1 else 0.0,
            verify=VerifyCurve(points),
        )

    def formula_s(self, window: int, acceptance: float, parallel: int) -> float:
        return token_s(window, self.seen(acceptance, parallel=parallel), parallel)


def simulated_s(terms: Terms, window: int, parallel: int, parts: Sequence[tuple[bytes, Span]]) -> float:
    """Return the fleet simulator's time per token for the same answers, with measured times.

    Args:
        terms: of the cell.
        window: drafted tokens.
        parallel: windows in flight.
        parts: for each answer, where the draft agrees with it, and the part that was measured.
    """
    seen = terms.seen(0.5, parallel=parallel)  # the simulator takes sequences
    content = {
        "name": "one-pair",
        "parallel": parallel,
        "window": {"name": "static", "n": window},
        "targets": [
            {"name": "t", "count": 1, "slots": 8, "steps_ms": [[r, 1e3 * s] for r, s in seen.verify.points]}
        ],
        "drafters": [{"name": "d", "count": 1, "steps_ms": [[1, 1e3 * seen.draft_s]]}],
        "links": [{"rtt_ms": 1e3 * (seen.round_trip_s + seen.queue_s)}],
        "arrivals": {"kind": "closed_loop", "requests": len(parts)},
        "requests": {"trace": "given"},
    }
    # The first token of a simulated answer is there when its rounds begin.
    requests = [
        DraftedRequest(60, span.last - span.first + 1, accepts[span.first - 1 : span.last])
        for accepts, span in parts
    ]
    answers = simulate_fleet(scenario_from(content), requests).answers
    took_s = sum(one.done_s - one.first_s for one in answers)
    return took_s / sum(span.last - span.first for _, span in parts)
